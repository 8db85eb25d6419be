"""The measurements: what they count, how they judge, and that every contender trains. No test looks at a clock."""

from __future__ import annotations

import copy
import json
import os

import numpy as np
import pytest
import torch
from benchmarks.data import SHAPES, draw_lengths, make_model, make_texts, make_tokenizer
from benchmarks.gate import Finished, Gate, Job, endless, memory, peak_since
from benchmarks.measure import _context
from benchmarks.rows import ROWS, judge
from benchmarks.table import BEGIN, END, markdown, text_table, update_page
from benchmarks.worker import CONTENDERS

from acclimate.errors import UserError
from acclimate.masking import RandomMasking
from acclimate.models import attach
from acclimate.objectives import Batch, LanguageModelling
from acclimate.training.batches import Collator
from acclimate.training.engine import Engine
from benchmarks import speed
from tests.accelerator import emulated


class Script:
    """The other end of a gate: gives orders from a list and keeps the answers."""

    def __init__(self, *orders) -> None:
        self.orders, self.answers = [*orders, None], []

    def send(self, value) -> None:
        self.answers.append(value)

    def recv(self):
        return self.orders.pop(0)


def order(steps: int = 1, tokens: int = 0) -> dict[str, float]:
    return {"seconds": 0.0, "steps": steps, "tokens": tokens}


def test_a_turn_counts_whole_steps_and_not_the_first():
    script = Script(order(steps=2), order(tokens=25))
    gate = Gate(script)
    with pytest.raises(Finished):
        for _ in range(100):
            gate.step(10)
    assert [(answer["steps"], answer["tokens"]) for answer in script.answers] == [(2, 20), (3, 30)]
    assert all(answer["seconds"] > 0 for answer in script.answers)


def test_what_a_contender_does_not_use_is_free_while_it_waits(monkeypatch):
    freed, script = [], Script(order(), order())
    receive = script.recv
    monkeypatch.setattr(script, "recv", lambda: freed.append("waits") or receive())
    with emulated(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "empty_cache", lambda: freed.append("freed"))
        patch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
        gate = Gate(script)
        with pytest.raises(Finished):
            for _ in range(9):
                gate.step(10)
    assert freed == ["freed", "waits"] * 3


@pytest.mark.parametrize(("before", "after"), [(None, "0"), ("2,3", "2"), ("1", "1"), ("", "")])
def test_contenders_see_one_device(before, after, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that it is put back
    if before is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    _context(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == after


def test_peak_memory_counts_what_was_allocated_since():
    start = memory()
    block = torch.ones(16_000_000)
    assert peak_since(start) >= 0.9 * block.numel() * 4


@pytest.mark.parametrize(
    ("name", "shape", "precision"),
    [
        *((name, "tiny", "fp32") for name in sorted(CONTENDERS)),
        *((name, "tiny", "bf16") for name in ("three-forwards", "trainer-lines")),
        *((name, "tiny-roberta", "fp32") for name in ("ours-dga", "sample-loop", "three-forwards", "trainer-lines")),
    ],
)
def test_every_contender_works_and_counts_real_tokens(name, shape, precision, tmp_path, monkeypatch):
    """With texts of 12 tokens each, the tokens of a turn are those of its texts: padding never counts."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    script = Script(order(steps=2))
    job = Job(
        shape, precision, batch=1 if name == "sample-loop" else 3, folder=tmp_path, count=40, lengths="fixed:12",
        sample_tokens=48,
    )  # fmt: skip
    before = torch.get_float32_matmul_precision()
    try:
        with pytest.raises(Finished):
            CONTENDERS[name](job, Gate(script))
    finally:
        torch.set_float32_matmul_precision(before)
    (answer,) = script.answers
    texts = {"sample-loop": 1, "ours-importance": 4}.get(name, 3)
    expected = 3 * 128 if name == "trainer-grouped" else texts * 12
    assert (answer["steps"], answer["tokens"]) == (2, 2 * expected)


@pytest.mark.parametrize("shape", ["tiny", "tiny-roberta"])
def test_fp32_loss_and_gradients_are_those_of_the_plain_model(shape):
    """What is measured is the same mathematics: on the texts of the measurements, to 1e-5."""
    theirs = make_model(shape, seed=3).eval()
    ours = copy.deepcopy(theirs)
    attach(ours)
    texts = make_texts(shape, 12, seed=1)
    collator = Collator.of(make_tokenizer(shape), RandomMasking(), tokens=400)
    batches = collator(texts, np.random.default_rng(0))
    assert len(batches) > 1
    count = sum(int((batch.labels >= 0).sum()) for batch in batches)
    expected = sum(_plain_sum(theirs, batch) for batch in batches) / count
    expected.backward()
    terms = Engine(ours, [LanguageModelling()]).step(batches)
    torch.testing.assert_close(terms["loss"], expected.detach(), atol=1e-5, rtol=0)
    wanted = dict(theirs.named_parameters())
    for name, value in ours.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(value.grad, wanted[name].grad, atol=1e-5, rtol=0)


def _plain_sum(model, batch: Batch) -> torch.Tensor:
    loss = model(input_ids=batch.masked, attention_mask=(batch.text >= 0).long(), labels=batch.labels).loss
    return loss * int((batch.labels >= 0).sum())


def test_texts_have_the_announced_lengths_and_no_special_token_inside():
    rng = np.random.default_rng(0)
    lengths = draw_lengths("lognormal", 20_000, rng)
    assert (lengths.min(), lengths.max()) == (10, 164)
    assert abs(np.median(lengths) - 64) < 2
    special = set(SHAPES["base"].special.values())
    for text in make_texts("base", 20, seed=0, lengths="fixed:40"):
        assert len(text) == 40
        assert not special & set(text[1:-1].tolist())
    tokenizer = make_tokenizer("base")
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.mask_token_id) == (50_265, 1, 50_264)


def test_batches_without_end_visit_every_text_once_a_pass():
    batches = endless(9, 3, seed=0)
    for _ in range(2):
        assert sorted(index for _ in range(3) for index in next(batches)) == list(range(9))


def test_a_row_is_judged_by_the_median_of_its_rounds():
    rows = {row.key: row for row in ROWS}
    found = judge(rows["mlm-minilm"], "fp32", [600, 700, 500], [100, 100, 100])
    assert (found["ratio"], found["lowest"], found["highest"], found["met"]) == (6, 5, 7, True)
    assert not judge(rows["mlm-minilm"], "bf16", [600, 700, 500], [100, 100, 100])["met"]
    cost = judge(rows["dga-minilm-cost"], "fp32", [100.0], [290.0])
    assert (cost["ratio"], cost["met"]) == (2.9, False)
    assert judge(rows["memory-mlm-minilm"], "bf16", [55.0], [100.0])["met"]


def test_goals_are_complete():
    assert len({row.key for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert {row.ours, row.theirs} <= set(CONTENDERS)
        assert row.shape in SHAPES


def test_one_command_writes_rows_and_the_page(tmp_path, capsys, monkeypatch):
    file, page = tmp_path / "speed.json", tmp_path / "page.md"
    options = ["--rows", "minilm-grouped", "--precision", "fp32", "--shape", "tiny", "--batch", "4", "--threads", "1"]
    short = ["--quick", "--batches", "4", "--rounds", "1", "--seconds", "0", "--json", str(file)]
    assert speed.main([*options, *short]) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    keys = [row["key"] for row in result["rows"]]
    assert keys == ["mlm-minilm-grouped"]
    assert {"torch", "transformers", "processor", "threads", "bf16", "load"} <= set(result["machine"])
    assert result["batch_sizes"]["minilm/fp32/trainer-grouped"]["chosen"] == 4
    for row in result["rows"]:
        assert row["lowest"] <= row["ratio"] <= row["highest"]
        assert row["ours"] > 0 and row["theirs"] > 0
        assert row["rounds"] == 1
    assert len(result["contenders"]["minilm/fp32/ours-mlm"]["tokens_per_second"]) == 1
    assert result["failed"] == {}
    assert "Trainer, MLM, grouped texts" in capsys.readouterr().out
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n", encoding="utf-8")
    monkeypatch.setattr(speed, "PAGE", page)
    assert speed.main(["--from-json", str(file), "--update-docs"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert text.count("\n| ") == 1 + len(keys)
    assert "1 rounds, turns of at least 0 s, 4 texts a step of ours" in text
    other = tmp_path / "other.json"
    row = {**result["rows"][0], "key": "mlm-minilm", "work": "the first of all"}
    other.write_text(json.dumps({**result, "rows": [row]}), encoding="utf-8")
    assert speed.main(["--from-json", str(file), str(other), "--update-docs"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.index("the first of all") < text.index("grouped texts"), "one table, in the order of the goals"


def test_mistakes_are_told_in_one_line(tmp_path, capsys):
    assert speed.main(["--rows", "nothing"]) == 2
    assert "mlm-minilm" in capsys.readouterr().err
    page = tmp_path / "page.md"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(UserError, match="measured:begin"):
        update_page(page, [])
    assert "work" in text_table([])


def test_a_contender_that_fails_is_named(tmp_path, capsys):
    file = tmp_path / "speed.json"
    options = ["--rows", "mlm-minilm-grouped", "--precision", "fp32", "--shape", "absent", "--quick"]
    assert speed.main([*options, "--threads", "1", "--json", str(file)]) == 1
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["rows"] == []
    assert "Unknown shape 'absent'" in result["failed"]["minilm fp32"]


def test_what_does_not_fit_together_is_measured_row_by_row(tmp_path, monkeypatch, capsys):
    together = []

    def interleave(specs, **_):
        together.append(set(specs))
        if len(specs) > 2:
            raise speed.ContenderFailed("out of memory")
        return {name: [1.0, 2.0] for name in specs}

    monkeypatch.setattr(speed, "interleave", interleave)
    file = tmp_path / "speed.json"
    rows = ["--rows", "mlm-minilm", "--rows", "dga-minilm-cost", "--precision", "fp32", "--quick", "--json", str(file)]
    assert speed.main(rows) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    assert [row["key"] for row in result["rows"]] == ["mlm-minilm", "dga-minilm-cost"]
    assert together[1:] == [{"ours-mlm", "trainer-lines"}, {"ours-dga", "ours-mlm"}]
    assert result["contenders"]["minilm/fp32/ours-mlm/mlm-minilm"]["tokens_per_second"] == [1.0, 2.0]
    assert "row by row" in capsys.readouterr().err


def test_a_row_that_fails_by_itself_does_not_take_the_others_with_it(tmp_path, monkeypatch):
    def interleave(specs, **_):
        if "trainer-lines" in specs:
            raise speed.ContenderFailed("out of memory")
        return {name: [1.0, 2.0] for name in specs}

    monkeypatch.setattr(speed, "interleave", interleave)
    file = tmp_path / "speed.json"
    rows = ["--rows", "mlm-minilm", "--rows", "dga-minilm-cost", "--precision", "fp32", "--quick", "--json", str(file)]
    assert speed.main(rows) == 1
    result = json.loads(file.read_text(encoding="utf-8"))
    assert [row["key"] for row in result["rows"]] == ["dga-minilm-cost"]
    assert result["failed"] == {"minilm fp32 mlm-minilm": "out of memory"}
    assert "a contender failed: minilm fp32 mlm-minilm." in markdown([result])
    other = {**result, "rows": [{**result["rows"][0], "key": "mlm-minilm"}], "failed": {}}
    assert "a contender failed" not in markdown([result, other])
