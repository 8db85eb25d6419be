"""Masking in study files: the identity of jobs, and files relative to the study file."""

from __future__ import annotations

import pytest

from acclimate.base.errors import UserError
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.study.fakes import graph_of, of_kind, study

ADAPT = {"tokens": 200_000, "max_length": 64}


def job_of(folder, adapt, own=None):
    """Return the adaptation job of ``mlm``."""
    methods = ["none", {"name": "mlm", "label": "mlm", "adapt": own or {}}]
    (job,) = of_kind(graph_of(study(folder, adapt=adapt, methods=methods)), "adapt")
    return job


@each("own", [{"masking": "random"}, {"masking": "random mask=0.8"}])
def test_defaults_change_no_key(folder, own):
    assert job_of(folder, ADAPT, own).key == job_of(folder, ADAPT).key


def test_the_masking_of_one_method_changes_its_key_and_reaches_adapt(folder):
    own = {"masking": "whole-word replacement=token"}
    job = job_of(folder, ADAPT, own)
    assert job.key != job_of(folder, ADAPT).key
    assert job.settings["masking"]["name"] == "whole-word"
    assert job.settings["masking"]["replacement"] == "token"
    assert {name: job.options[name] for name in own} == own
    assert job.key == job_of(folder, {**ADAPT, **own}).key, "for all methods or for one: the same"
    assert job.key != job_of(folder, ADAPT, {"masking": "whole-word"}).key


def test_the_content_of_a_lexicon_matters_and_not_its_path(folder):
    for name, words in (("a", "pizza\n"), ("b", "pizza\n"), ("c", "pasta\n")):
        (folder / f"{name}.txt").write_text(words)
    keys = [
        job_of(folder, ADAPT, {"masking": {"lexicon-first": {"lexicon": str(folder / f"{name}.txt")}}}).key
        for name in "abc"
    ]
    assert keys[0] == keys[1] != keys[2]


def test_the_path_of_a_lexicon_is_relative_to_the_study_file(folder):
    (folder / "words.txt").write_text("pizza\n")
    own = {"masking": "lexicon-first lexicon=words.txt"}
    config = StudyConfig.of(study(folder, adapt={**ADAPT, **own}, methods=["none", {"name": "mlm", "adapt": own}]))
    here = config.relative_to(folder)
    assert here.methods[1].adapt["masking"]["lexicon-first"]["lexicon"] == str(folder / "words.txt")
    assert here.adapt.given()["masking"]["lexicon-first"]["lexicon"] == str(folder / "words.txt")
    assert config.methods[1].adapt == own


def test_a_wrong_name_is_found_before_anything_is_trained(folder):
    with pytest.raises(UserError, match="Did you mean 'whole-word'"):
        job_of(folder, ADAPT, {"masking": "whole-words"})
    with pytest.raises(UserError, match="there is no file"):
        job_of(folder, ADAPT, {"masking": "lexicon-first lexicon=absent.txt"})
