"""Several labelled tasks at once."""

from __future__ import annotations

import json

from acclimate.adaptation.method import get
from tests.papers.test_labelled import SOURCE, run


def test_muppet_reads_a_folder_of_tasks(tiny_bert, tmp_path, capsys):
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, labels in (("a", ["good", "bad"]), ("b", ["x", "y", "z", "good"])):
        rows = [{"text": f"{text} {n}", "label": labels[n % len(labels)]} for n, (text, _) in enumerate(SOURCE * 3)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = get("muppet", tasks=str(folder)).file_contents()
    result = run(
        tiny_bert,
        tmp_path / "out",
        "muppet",
        None,
        tasks=str(folder),
        lm_weight=0,
        r3f=0.1,
        options={"progress": True},
    )
    shown = capsys.readouterr().err
    assert "Task 'b'" in shown and "with 4 classes" in shown and "2 tasks; the paper found gains" in shown
    assert 0 < result.losses["classification"] < 1.05, "in units of a uniform guess"
    assert set(result.losses) == {"classification", "r3f", "loss"}
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, rows[:-1])))
    assert get("muppet", tasks=str(folder)).file_contents() != before
