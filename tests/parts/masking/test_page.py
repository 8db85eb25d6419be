"""The code examples in docs/masking.md run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import yaml

from acclimate.parts.masking import base, get
from acclimate.study.config import MethodSpec
from tests.parts.masking.kinds import batches, word_tokens

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "masking.md").read_text(encoding="utf-8")


def test_the_example_strategy_masks(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    try:
        (tmp_path / "regular_page.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module("regular_page")
        made = batches(get("regular", every="3"), texts=["unseen soup was unseen and cold"], layout="padded")
        assert int((made[0].labels >= 0).sum()) in (2, 7, 12)  # two short words; a long and a short one; two long ones
    finally:
        base.REGISTRY.entries.pop("regular", None)


def test_the_example_study_is_valid():
    (source,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    found = [MethodSpec.model_validate(method) for method in yaml.safe_load(source)["methods"]]
    assert [method.adapt.get("masking") for method in found] == [
        None,
        "whole-word",
        "lexicon-first lexicon=terms.txt",
        "random-same-count of=lexicon-first lexicon=terms.txt",
    ]


def test_the_word_counts_of_the_page():
    assert len(word_tokens("roberta", "good.")) == 2
    assert len(word_tokens("roberta", "state-of-the-art")) == 7
