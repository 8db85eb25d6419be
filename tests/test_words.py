"""The check for words that the glossary advises against."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_words", ROOT / "scripts" / "check_words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_planted_word_is_found_with_its_line(check):
    patterns = check.read_patterns()
    assert len(patterns) > 25
    text = f"def {'me' + 'nd'}_file():\n    # the model as\n    # it {'came'}\n"
    found = {(line, word) for line, word, _ in check.find_words("src/lu" + "ck.py", text, patterns)}
    assert {(0, "lu" + "ck"), (1, "me" + "nd"), (2, "the model as # it " + "came")} <= found
    assert {line for line, _ in found} == {0, 1, 2}


def test_standard_english_passes(check):
    text = "amendment, recommend, pluck, skin; stands for; out of the box; 5 tokens per second; unless told otherwise"
    assert not list(check.find_words("src/kind.py", text, check.read_patterns()))


@pytest.mark.slow
def test_the_repository_is_clean(check, capsys):
    assert check.main([]) == 0, capsys.readouterr().out
