"""A feature of a run that is off executes nothing, and the code that a plain adaptation executes stays small."""

from __future__ import annotations

import importlib

from scripts.executed_lines import adapt_plainly

from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.run import Feature
from acclimate.base.options import option_fields

adapting = importlib.import_module("acclimate.adaptation.adapt")  # the package has a function of this name
MOST_LINES = 6_200
"""Lines of functions that a plain adaptation executes; the aim is 4,500. A change that raises it needs a reason."""
HOOKS = {name for name in vars(Feature) if not name.startswith("_")}


def test_what_is_off_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    executed = adapt_plainly(tmp_path)
    assert sum(sum(lines.values()) for lines in executed.values()) <= MOST_LINES
    features = {f"adaptation/{place.partition('.')[0]}.py" for place in adapting.FEATURES}
    assert len(features) > 8 and not features & executed.keys()
    ran = {name.partition(":")[0] for name in executed["adaptation/run.py"]}
    assert not ran & HOOKS


def test_each_feature_is_a_class_that_options_turn_on():
    for place, names in adapting.FEATURES.items():
        assert names and {*names} <= option_fields(AdaptOptions).keys()
        module, _, name = place.partition(".")
        found = getattr(importlib.import_module(f"acclimate.adaptation.{module}"), name)
        assert issubclass(found, Feature) and found.__doc__
