"""Study files of the repository, whose methods, mixes and operations may not all be there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from acclimate.adaptation.method import REGISTRY as METHODS
from acclimate.data.mix.base import MIXES
from acclimate.data.operations import SELECTIONS, TRANSFORMS


def named_parts(given: Any, key: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the registry and the name of each method, mix, selection and transform of a study."""
    registry = {"mix": MIXES, "select": SELECTIONS, "transform": TRANSFORMS}.get(key)
    for row in (given if isinstance(given, list) else [given]) if registry else ():
        yield registry, next(iter(row.split() if isinstance(row, str) else row))
    for name, value in (
        given.items() if isinstance(given, dict) else enumerate(given if isinstance(given, list) else ())
    ):
        yield from named_parts(value, str(name))


def skip_if_parts_are_missing(study: Path) -> None:
    """Skip a test of a study file if a method, mix or operation of it is not there."""
    given = yaml.safe_load(study.read_text(encoding="utf-8"))
    methods = [row["name"] if isinstance(row, dict) else row for row in given["methods"]]
    parts = [*((METHODS, name) for name in methods), *named_parts(given)]
    if missing := {name for registry, name in parts if name not in registry.names()}:
        pytest.skip(f"there is no {missing}")


RULES = {"l2_sp": "strength", "ewc": "strength", "layer_decay": "factor", "freeze": "names"}
"""Former options of ``adapt`` that are rules now, with their parameters."""


def spelled_today(adapt):
    """Options of ``adapt`` of stored results in the present spelling."""
    found, share = dict(adapt), adapt.get("replay_share")
    for name in ("replay_share", "replay_memory", "memory_share", "adapter_settings", *RULES):
        found.pop(name, None)
    if share is not None:
        found["replay"] = {adapt["replay"]: share} if "replay" in adapt else share
    if "replay_memory" in adapt:
        found["replay"] = {f"memory:{adapt['replay_memory']}": adapt["memory_share"]}
    if adapt.get("mix") == {"fixed": {}}:
        found["mix"] = "fixed"
    if "adapter_settings" in adapt:
        found["adapter"] = {adapt["adapter"]: adapt["adapter_settings"]}
    if rules := [{name.replace("_", "-"): {RULES[name]: adapt[name]}} for name in RULES if name in adapt]:
        found["rules"] = rules
    return found
