"""What the page on masking shows must run, and its table must be whole."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

import yaml

from acclimate.masking import Strategy, base, get, lookup, names
from acclimate.study import MethodSpec
from tests.masking.kinds import batches, spoken

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "masking.md").read_text(encoding="utf-8")


def test_the_strategy_of_the_page_masks(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    try:
        (tmp_path / "regular_page.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module("regular_page")
        made = batches(get("regular", every="3"), texts=["unseen soup was unseen and cold"], layout="padded")
        assert int((made[0].labels >= 0).sum()) in (2, 7, 12)  # soup and and; two long words or one and a short
    finally:
        base.REGISTRY.entries.pop("regular", None)


def test_the_table_names_all_strategies_and_their_parameters():
    rows = {row[0]: row for row in re.findall(r"^\| `([\w-]+)` \|([^|]*)\|([^|]*)\|", PAGE, flags=re.M)}
    assert sorted(rows) == names()
    common = {field.name for field in fields(Strategy)}
    for name, row in rows.items():
        own = [field for field in fields(lookup(name)) if field.name not in common]
        for field in own:
            assert f"`{field.name}`" in row[2]
            if field.name not in lookup(name).files and isinstance(field.default, str | int | float):
                shown = str(field.default).lower() if isinstance(field.default, bool) else f"{field.default}"
                assert f"`{field.name}` ({shown})" in row[2].replace("(`", "(").replace("`)", ")").replace(
                    "(1)", "(1.0)"
                )


def test_the_study_of_the_page_can_be_read():
    (source,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    found = [MethodSpec.model_validate(method) for method in yaml.safe_load(source)["methods"]]
    assert [method.adapt.get("masking") for method in found] == [
        None,
        "whole-word",
        "lexicon-first",
        "random-same-count",
    ]


def test_the_words_of_the_page():
    assert len(spoken("roberta", "good.")) == 2
    assert len(spoken("roberta", "state-of-the-art")) == 7
