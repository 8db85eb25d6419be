"""Relations of pairs of entries of a taxonomy."""

from __future__ import annotations

import json

import numpy as np
import pytest

from acclimate.base.errors import UserError
from tests.papers.test_labelled import run


@pytest.mark.slow
def test_relations_are_learned(tiny_bert, tmp_path, capsys):
    """Which of four entries are in a pair shows its relation."""
    texts = {"good food": "F.1", "fresh soup": "F.1", "cold wine": "F.2", "the loss of the model": "M.1"}
    entries = [{"text": text, "code": code} for text, code in texts.items()]
    file = tmp_path / "taxonomy.jsonl"
    file.write_text("\n".join(map(json.dumps, [*entries, entries[0]])))
    given = {"taxonomy": str(file), "level": 1, "separator": ".", "weight": 3}
    run(tiny_bert, tmp_path / "out", "relations", None, **given, options={"steps": 40, "progress": True})
    shown = " ".join(capsys.readouterr().err.split())
    assert (
        "4 entries with pairs: 6 random, 2 linked, 4 grouped; left out because the text occurred before: 1." in shown
    )
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["relations"] for line in lines]
    assert abs(found[0] - np.log(3)) < 0.1 and np.mean(found[-5:]) < 0.5


def test_a_taxonomy_that_cannot_be_used_is_refused(tiny_bert, tmp_path):
    cases = [
        ("", None, "needs a taxonomy"),
        ("", str(tmp_path / "no.csv"), "There is no file"),
        ("text,code\ngood food,\n", None, "1 without a code"),
        ("text,code\n", None, "has no rows"),
        ("text,code\ngood food,AA1\nbad food,AA1\n", None, r"one relation only \(linked\)"),
    ]
    for number, (content, path, message) in enumerate(cases):
        file = tmp_path / f"{number}.csv"
        file.write_text(content)
        given = {"taxonomy": path or str(file)} if content or path else {}
        with pytest.raises(UserError, match=message):
            run(tiny_bert, tmp_path / "out", "relations", None, **given)
