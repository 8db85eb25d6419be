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
