"""Similarities of texts as in a teacher."""

from __future__ import annotations

import pytest

from tests.papers.test_labelled import run
from tests.tiny import save_tiny


@pytest.mark.slow
def test_similarities_of_a_teacher_are_kept(tiny_bert, tmp_path):
    """The distance to the similarities of a wider teacher falls further than without its weight."""
    teacher = save_tiny("bert", tmp_path / "teacher", seed=4, hidden_size=48, initializer_range=0.2)
    found = []
    for weight in (0.0, 300.0):
        given = {"teacher": str(teacher), "similarity_weight": weight, "lm_weight": 0}
        options = {"steps": 12, "learning_rate": 3e-3}
        found.append(run(tiny_bert, tmp_path / str(weight), "similarity-kd", **given, options=options).losses)
    assert found[1]["similarity"] < 0.7 * found[0]["similarity"]
    assert set(found[1]) == {"classification", "similarity", "loss"}
