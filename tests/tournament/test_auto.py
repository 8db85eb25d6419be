"""Tournaments from the plan to the model that is handed back, with a fake backend."""

from __future__ import annotations

import json

import pytest

import acclimate
from tests.tournament.worlds import World, options, tournament_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tournament_files(tmp_path_factory.mktemp("auto"))


def test_an_adaptation_that_helps_is_handed_back(folder, tmp_path):
    world = World(gains={"lm": 0.12})
    result = acclimate.auto(**options(folder, tmp_path / "out", backend=world.backend()))
    print(result)
    assert result.winner == "lm" and result.holds
    assert json.loads((tmp_path / "out" / "model" / "config.json").read_text())["method"] == "lm"
