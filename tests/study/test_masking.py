"""Masking in study files: keys that stay, keys that change, files beside the study file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acclimate.errors import UserError
from acclimate.study import Parts, StudyConfig
from acclimate.study.plan import make_plan
from tests.cases import each
from tests.study.fakes import World, study

ADAPT = {"tokens": 200_000, "max_length": 64}
BEFORE = "29c543313f3acb89"
"""Key of the adaptation by mlm in this study, computed before the masking could be chosen."""


def settings(folder, adapt, own=None):
    """The key and the settings of the adaptation by mlm, with the real defaults of ``adapt``."""
    methods = ["none", {"name": "mlm", "label": "mlm", "adapt": own or {}}]
    parts = replace(World().parts(), adapt_defaults=Parts().adapt_defaults)
    plan = make_plan(StudyConfig.of(study(folder, adapt=adapt, methods=methods)), parts)
    (cell,) = [cell for cell in plan.cells.values() if cell.kind == "adapt"]
    return cell.key, cell.identity["settings"], plan.adapt[cell.key]


@each("own", [{}, {"masking": "random"}, {"masking": "random", "masking_settings": {"mask": 0.8}}])
def test_without_a_choice_the_key_is_what_it_was(folder, own):
    assert settings(folder, ADAPT, own)[0] == BEFORE


def test_a_choice_for_one_method_changes_its_key_and_reaches_adapt(folder):
    own = {"masking": "whole-word", "masking_settings": {"fate": "token"}}
    key, decides, options = settings(folder, ADAPT, own)
    assert key != BEFORE
    assert decides["masking"]["name"] == "whole-word"
    assert decides["masking"]["fate"] == "token"
    assert {name: options[name] for name in own} == own
    assert key == settings(folder, {**ADAPT, **own})[0], "for all methods or for one: the same"
    assert key != settings(folder, ADAPT, {"masking": "whole-word"})[0]


def test_what_a_lexicon_holds_decides_and_not_where_it_is(folder):
    for name, words in (("a", "pizza\n"), ("b", "pizza\n"), ("c", "pasta\n")):
        (folder / f"{name}.txt").write_text(words)
    keys = [
        settings(
            folder, ADAPT, {"masking": "lexicon-first", "masking_settings": {"lexicon": str(folder / f"{name}.txt")}}
        )[0]
        for name in "abc"
    ]
    assert keys[0] == keys[1] != keys[2]


def test_a_lexicon_is_looked_for_beside_the_study_file(folder):
    (folder / "words.txt").write_text("pizza\n")
    own = {"masking": "lexicon-first", "masking_settings": {"lexicon": "words.txt"}}
    config = StudyConfig.of(study(folder, adapt={**ADAPT, **own}, methods=["none", {"name": "mlm", "adapt": own}]))
    here = config.relative_to(folder)
    assert here.methods[1].adapt["masking_settings"]["lexicon"] == str(folder / "words.txt")
    assert here.adapt.given()["masking_settings"]["lexicon"] == str(folder / "words.txt")
    assert config.methods[1].adapt["masking_settings"]["lexicon"] == "words.txt"


def test_a_wrong_name_is_found_before_anything_is_trained(folder):
    with pytest.raises(UserError, match="Did you mean 'whole-word'"):
        settings(folder, ADAPT, {"masking": "whole-words"})
    with pytest.raises(UserError, match="there is no lexicon"):
        settings(folder, ADAPT, {"masking": "lexicon-first", "masking_settings": {"lexicon": "absent.txt"}})
