"""Everything that a study lacks is reported at once."""

from __future__ import annotations

import shutil

import pytest

from acclimate.base.errors import Problems, UserError, UserErrors
from acclimate.data.documents import Corpus
from acclimate.study.config import StudyConfig
from tests.study.fakes import graph_of, study


@pytest.mark.needs("dga")
def test_all_that_is_missing_is_listed_once(folder):
    """Remove one thing after another: the message lists those that are gone, and no others."""
    domain = {
        "name": "cs",
        "corpus": [str(folder / "cs.txt"), str(folder / "food.txt")],
        "heldout": str(folder / "heldout.txt"),
        "tasks": [str(folder / "intent"), str(folder / "aspect")],
    }
    checkpoints = [str(folder / "other"), str(folder / "another")]
    values = study(folder, domains=[domain], checkpoints=checkpoints)
    for checkpoint in checkpoints:
        shutil.copytree(folder / "model", checkpoint)
    graph_of(values)
    gone = []
    for name in ("cs.txt", "food.txt", "heldout.txt", "general.txt", "model", "intent", "aspect", "other", "another"):
        (folder / name).unlink() if name.endswith(".txt") else shutil.rmtree(folder / name)
        gone.append(name)
        with pytest.raises(UserError) as error:
            graph_of(values)
        found = getattr(error.value, "messages", [str(error.value)])
        assert len(found) == len(gone) and "\n" not in str(error.value)
        assert all(sum(f"{folder / one}'" in message for message in found) == 1 for one in gone)
    values["methods"] = ["none", "lmm", {"name": "dga", "temprature": 1}]
    with pytest.raises(UserErrors) as several:
        graph_of(values)
    assert str(several.value).startswith("11 problems: (1) ") and " (11) " in str(several.value)
    assert "Did you mean 'lm'?" in str(several.value) and "Did you mean 'temperature'?" in str(several.value)


def test_a_corpus_lists_all_missing_sources(tmp_path):
    (tmp_path / "there.txt").write_text("text\n")
    with pytest.raises(UserErrors) as error:
        Corpus([tmp_path / "a.txt", tmp_path / "there.txt", tmp_path / "b*.txt"])
    assert len(error.value.messages) == 2


def test_one_problem_keeps_its_message_and_other_errors_are_not_collected():
    problems = Problems()
    problems.check()
    for _ in range(2):
        with problems.collect("study: "):
            raise UserError("No file 'a'.")
    with pytest.raises(UserError) as error:
        problems.check()
    assert str(error.value) == "study: No file 'a'." and not isinstance(error.value, UserErrors)
    with pytest.raises(ZeroDivisionError), problems.collect():
        raise ZeroDivisionError


def test_all_unknown_keys_of_a_study_file_are_listed():
    values = {
        "models": "m",
        "method": "lm",
        "domains": [{"name": "d", "corpus": "c", "task": "t"}],
        "adapt": {"lr": 1},
    }
    with pytest.raises(UserError) as error:
        StudyConfig.of(values)
    for hint in ("'method'. Did you mean 'methods'?", "'domains[0].task'. Did you mean 'tasks'?", "'adapt.lr'"):
        assert str(error.value).count(f"unknown key {hint}") == 1
