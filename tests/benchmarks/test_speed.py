"""The speed benchmark: what it counts, its search and rounds, and that every contender trains; nothing is timed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.contenders import OTHERS, Clock, Finished, Job, SpreadTrainer, spread, train_with_acclimate
from transformers import AutoModelForMaskedLM, TrainingArguments

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.labs.bench import shapes as inputs
from acclimate.labs.bench.shapes import MAX_LENGTH, SHAPES, draw_lengths, make_tokenizer, write_inputs
from acclimate.models.kinds import MASKED
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from benchmarks import speed
from tests.cases import each


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model and texts of 12 tokens each."""
    made = tmp_path_factory.mktemp("inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "draw_lengths", lambda count, rng: np.full(count, 12))
        write_inputs(made, "tiny", 48, seed=0)
    return made


class Counts(Clock):
    """A clock that ends the measurement after two steps."""

    def step(self, tokens):
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens
        if self.steps == 2:
            raise Finished


def test_the_clock_counts_whole_steps_after_the_warm_up(monkeypatch):
    now = iter([0.0, 1.0, 2.0, 4.0, 7.0])
    monkeypatch.setattr("benchmarks.contenders.time.perf_counter", lambda: next(now))
    clock = Clock(warm_up=2, seconds=5.0, steps=1)
    with pytest.raises(Finished):
        for tokens in (100, 100, 10, 20, 40):
            clock.step(tokens)
    assert (clock.steps, clock.tokens, clock.elapsed) == (2, 30, 5.0)
    now = iter(range(9))
    clock = Clock(warm_up=0, seconds=1.0, steps=3)
    with pytest.raises(Finished):
        while True:
            clock.step(10)
    assert clock.tokens == 30


@each("count", [1, 2, 16, 64, 100])
def test_steps_by_length_are_spread_over_all_lengths(count):
    order = spread(count)
    assert sorted(order) == list(range(count))
    if count >= 16:
        first = np.array(order[1:4]) / count  # the steps that are measured after one warm-up step
        assert first.min() < 0.35 and first.max() > 0.65 and 0.3 < first.mean() < 0.7


def test_grouped_steps_hold_texts_of_like_length_in_every_epoch(folder, tmp_path):
    lengths = np.random.default_rng(0).permutation(np.arange(10, 74))
    rows = [{"input_ids": [1] * int(length)} for length in lengths]
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True, report_to="none",
        train_sampling_strategy="group_by_length",
    )  # fmt: skip
    model = AutoModelForMaskedLM.from_pretrained(folder / "model")
    order = list(SpreadTrainer(model=model, args=arguments, train_dataset=rows)._get_train_sampler())
    assert sorted(order) == list(range(64))
    spreads = [np.ptp(lengths[order[start : start + 4]]) for start in range(0, 64, 4)]
    assert np.median(spreads) <= 25  # of 63; four random texts spread over 38


@pytest.mark.needs("dga")
@each(("name", "precision"), [
    *((name, "fp32") for name in ("acclimate:mlm", "acclimate:dga", "acclimate:prompt", *OTHERS)),
    ("trainer-by-length", "bf16"), ("naive-dga", "bf16"),
])  # fmt: skip
def test_every_contender_counts_the_real_tokens_of_a_step(name, precision, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    job, clock = (
        Job(name, str(folder), precision, batch=2 if name == "trainer-blocks" else 4, micro=2),
        Counts(0, 0.0, 1),
    )
    train = train_with_acclimate if name.startswith("acclimate:") else OTHERS[name]
    step, before = Engine.step, torch.get_float32_matmul_precision()
    try:
        with pytest.raises(Finished):
            train(job, clock)
    finally:
        torch.set_float32_matmul_precision(before)
    assert Engine.step is step
    assert clock.tokens == 2 * (2 * 128 if name == "trainer-blocks" else 4 * 12)


@each("shape", ["tiny", "tiny-roberta"])
def test_fp32_loss_and_gradients_are_those_of_the_plain_model(shape, tmp_path, monkeypatch):
    """Both sides compute the same loss and gradients: on texts of the benchmark they agree to 1e-5."""
    monkeypatch.setitem(SHAPES, "tiny-roberta", replace(SHAPES["tiny"], family="roberta"))
    write_inputs(tmp_path, shape, 12, seed=3)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    ours, tokenizer = copy.deepcopy(theirs), make_tokenizer(shape)
    attach(ours)
    texts = [np.asarray(tokenizer(text)["input_ids"]) for text in inputs.read_texts(tmp_path)]
    batches = Collator.of(tokenizer, RandomMasking(), MASKED, tokens=400)(texts, np.random.default_rng(0))
    assert len(batches) > 1
    counts = [int((batch.labels >= 0).sum()) for batch in batches]
    losses = [
        theirs(input_ids=batch.masked, attention_mask=(batch.text >= 0).long(), labels=batch.labels).loss
        for batch in batches
    ]
    expected = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    expected.backward()
    terms = Engine(ours, [LanguageModelling()]).step(batches)
    torch.testing.assert_close(terms["loss"], expected.detach(), atol=1e-5, rtol=0)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    compared = [(value.grad, gradients[name]) for name, value in ours.named_parameters() if value.grad is not None]
    assert len(compared) > 20
    for gradient, other in compared:
        torch.testing.assert_close(gradient, other, atol=1e-5, rtol=0)


def test_texts_have_the_lengths_of_the_page_and_no_special_token_inside(tmp_path):
    lengths = draw_lengths(20_000, np.random.default_rng(0))
    assert (lengths.min(), lengths.max()) == (10, MAX_LENGTH)
    assert abs(np.median(lengths) - 64) < 2 and abs(lengths.mean() - speed.MEAN_LENGTH) < 1
    write_inputs(tmp_path, "tiny", 20, seed=0)
    tokenizer = make_tokenizer("tiny")
    for text in inputs.read_texts(tmp_path):
        ids = tokenizer(text)["input_ids"]
        assert 10 <= len(ids) <= MAX_LENGTH
        assert not set(tokenizer.all_special_ids) & set(ids[1:-1])
    tokenizer = make_tokenizer("base")
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.mask_token_id) == (50_265, 1, 50_264)


def entry(searched, rates, peak=2**20):
    return {"batch": 64, "searched": searched, "tokens_per_second": rates, "peak_bytes": [peak]}


def test_a_row_is_the_median_ratio_and_fails_where_search_and_rounds_differ():
    row = speed.ROWS[0]
    found = speed.compare(row, "fp32", entry(600, [600, 700, 500]), entry(110, [100, 100, 100]))
    assert (found["ratio"], found["lowest"], found["highest"], found["rounds"]) == (6, 5, 7, 3)
    assert found["stable"]
    assert not speed.compare(row, "fp32", entry(600, [600]), entry(120, [100]))["stable"]
    assert not speed.compare(row, "fp32", entry(500, [600]), entry(100, [100]))["stable"]
    assert "FAILED: search and rounds differ by +20% and +0%" in speed.text_table(
        [speed.compare(row, "fp32", entry(500, [600]), entry(100, [100]))]
    )


def fake_bench(monkeypatch, rate):
    """Replace the processes by a function of the job; return the jobs in the order in which they were measured."""
    measured = []

    def measure(self, job):
        measured.append(job)
        return {"tokens_per_second": rate(job), "steps": 1, "peak_bytes": 1, "allocator": "glibc 2.36"}

    monkeypatch.setattr(speed.Bench, "_measure", measure)
    monkeypatch.setattr(speed, "write_inputs", lambda *_, **__: None)
    monkeypatch.setattr(speed, "has_fast_bf16", lambda _: True)
    return measured


def test_the_others_are_measured_at_their_fastest_setting_and_the_same_batch(tmp_path, monkeypatch, capsys):
    def rate(job):
        if job.name.startswith("acclimate"):
            return 1_000.0
        return {4: 50.0, 8: 100.0, 16: 150.0, 32: 120.0}[job.micro] + 20 * (job.attention == "eager")

    measured = fake_bench(monkeypatch, rate)
    file, page = tmp_path / "speed.json", tmp_path / "page.md"
    page.write_text(f"above\n{speed.BEGIN}\nold\n{speed.END}\nbelow\n", encoding="utf-8")
    monkeypatch.setattr(speed, "PAGE", page)
    options = ["--rows", "mlm-minilm-by-length", "--precision", "bf16", "--rounds", "3", "--json", str(file)]
    assert speed.main([*options, "--update-docs"]) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    theirs = result["contenders"]["minilm/bf16/trainer-by-length"]
    assert (theirs["micro"], theirs["attention"], theirs["batch"]) == (16, "eager", 64)
    assert theirs["search"] == {"8 default": 100, "4 default": 50, "16 default": 150, "32 default": 120,
                                "16 eager": 170}  # fmt: skip
    assert {job.batch for job in measured} == {64}
    order = [job.name for job in measured[-6:]]
    assert order == ["acclimate:mlm", "trainer-by-length", *["trainer-by-length", "acclimate:mlm"],
                     "acclimate:mlm", "trainer-by-length"]  # fmt: skip
    (row,) = result["rows"]
    assert (row["ratio"], row["rounds"]) == (1_000 / 170, 3)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "glibc 2.36" in text and "5.88 x" in text
    assert speed.main(["--from-json", str(file), str(file)]) == 0
    assert capsys.readouterr().out.count("Trainer, group_by_length") == 3


def test_a_full_run_fails_where_the_rounds_differ_from_the_search(tmp_path, monkeypatch):
    measured = fake_bench(monkeypatch, lambda job: 100.0 if len(measured) <= 1 else 150.0)
    options = ["--rows", "cost-kd", "--precision", "fp32", "--rounds", "2", "--json", str(tmp_path / "a.json")]
    assert speed.main(options) == 1
    assert [row["stable"] for row in json.loads((tmp_path / "a.json").read_text())["rows"]] == [False]


def test_a_contender_that_fails_is_named_and_spares_the_others(tmp_path, monkeypatch):
    def rate(job):
        if job.name == "trainer-by-length":
            raise speed.ContenderFailed("out of memory")
        return 100.0

    fake_bench(monkeypatch, rate)
    file = tmp_path / "speed.json"
    options = ["--rows", "mlm-minilm", "--precision", "fp32", "--rounds", "2", "--json", str(file)]
    assert speed.main(options) == 1
    result = json.loads(file.read_text(encoding="utf-8"))
    assert [row["key"] for row in result["rows"]] == ["mlm-minilm-random", "mlm-minilm-blocks"]
    assert result["failed"] == {"minilm/fp32/trainer-by-length": "out of memory"}
    assert "Failed: minilm/fp32/trainer-by-length." in speed.markdown([result])


def test_no_round_begins_after_the_time_limit(tmp_path, monkeypatch):
    measured = fake_bench(monkeypatch, lambda _: 100.0)
    options = ["--rows", "cost-kd", "--precision", "fp32", "--minutes", "1e-9", "--json", str(tmp_path / "a.json")]
    assert speed.main(options) == 0
    assert len(measured) == 2 + 2 * 2  # the search, and two rounds


@pytest.mark.slow
def test_a_process_prints_what_it_measured(folder, monkeypatch):
    bench = speed.Bench(speed.Settings(True, 1, 0.0, 1, 1.0, 4, "tiny", 40, 1, None), folder)
    job = Job("trainer-by-length", str(folder), batch=4, micro=2, threads=1, seconds=0.0, steps=1)
    measured = bench._measure(job)
    assert measured["tokens_per_second"] > 0 and measured["steps"] == 1
    assert measured["peak_bytes"] > 0 and measured["allocator"]
    with pytest.raises(speed.ContenderFailed, match="absent"):
        bench._measure(replace(job, name="absent"))


def test_mistakes_are_one_clear_line(tmp_path, capsys):
    assert speed.main(["--rows", "nothing"]) == 2
    assert "mlm-minilm-by-length" in capsys.readouterr().err
    page = tmp_path / "page.md"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(UserError, match="measured:begin"):
        speed.update_page(page, [])
