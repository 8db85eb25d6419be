"""Learning-rate schedules and the mean of the last checkpoints."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate import merge
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.averaging import _AverageCallback
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine.callbacks import Clock, follow
from acclimate.engine.schedules import SHAPES, read_schedule
from acclimate.labs.plan.schedule import Schedule as Planned
from tests.adaptation.test_checkpoints import DOCUMENTS, SHORT, read_lines
from tests.cases import each
from tests.kills import killed

RUN = {**SHORT, "save_every": 2, "steps": 10}


def share_of_peak(shape: str, done: float, warmup: float, decay: float) -> float:
    """The share of the peak rate after the warm-up, case by case."""
    if shape == "constant":
        return 1.0
    if shape == "wsd":
        return 1.0 if done <= 1 - decay else (1 - done) / decay
    left = (1 - done) / (1 - warmup)
    return left if shape == "linear" else 0.5 * (1 + math.cos(math.pi * (1 - left)))


@settings(deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    steps=st.integers(1, 400),
    warmup=st.floats(0, 0.6),
    decay=st.floats(0.01, 0.4),
    speed=st.floats(0, 3),
)
def test_each_step_has_the_rate_of_the_formula(shape, steps, warmup, decay, speed):
    """By steps alone, by the time that the first process tells the others, and in a plan."""
    text = f"wsd decay={decay!r}" if shape == "wsd" else shape
    schedule = read_schedule(text, warmup)

    for spends, times in ((False, 0.0), (True, speed)):
        clock, now = Clock(60 if spends else None), 0.0
        clock._group = SimpleNamespace(size=2, broadcast_value=lambda _: now)  # noqa: B023
        factor = follow(schedule, steps, clock)
        for step in range(steps):
            now = min(1.0, times * step / steps)
            clock.synchronize()
            done = max(step / steps, now)
            rising = max(done, 1 / steps) / warmup if done < warmup else None
            expected = share_of_peak(shape, done, warmup, decay) if rising is None else min(1, rising)
            assert factor(step) == pytest.approx(expected, abs=1e-9)
            if not spends and step in (0, steps // 2, steps - 1):
                planned = Planned(shape, steps, 3e-4, warmup, decay).rates()
                assert planned[step] == pytest.approx(3e-4 * factor(step), abs=1e-12)


def test_the_rates_of_a_training_survive_a_kill(tiny_bert, tmp_path):
    schedule = "wsd decay=0.4"
    with killed(5):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", schedule=schedule, **RUN)
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", schedule=schedule, **RUN)
    lines = read_lines(tmp_path / "out" / "log.jsonl")
    factor = follow(read_schedule(schedule, 0.1), 10, Clock())
    assert [line["learning_rate"] / 1e-3 for line in lines] == pytest.approx([factor(step) for step in range(10)])
    assert read_json(tmp_path / "out" / "acclimate.json")["schedule"]["shape"] == schedule.split()[0]


def test_the_mean_of_the_last_checkpoints_is_their_soup(tiny_bert, tmp_path):
    steps = [6, 8, 10]
    held = {"heldout": Corpus.of(DOCUMENTS[:3])}
    about = {"schedule": "constant decay=0.6", "average_last": 3, "keep_steps": steps, **held}
    with killed(9):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", **about, **RUN)
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", **about, **RUN)
    assert result.preparation["average.json"] == {"steps": steps}
    kept = [tmp_path / "out" / f"step-{step:06d}" for step in steps]
    merge([str(path) for path in kept], "soup", out=tmp_path / "soup", progress=False)
    found, soup, last = (
        load_file(path / "model.safetensors") for path in (tmp_path / "out", tmp_path / "soup", kept[-1])
    )
    assert max(float((found[name] - last[name]).abs().max()) for name in found) > 1e-4
    for name, value in found.items():
        torch.testing.assert_close(value, soup[name], atol=1e-7, rtol=1e-7, msg=name)
    adapt(tmp_path / "out", Corpus.of(DOCUMENTS), "mlm", tmp_path / "more", **held, **{**RUN, "steps": 1})
    after, before = (
        [line["heldout"]["loss"] for line in read_lines(tmp_path / name / "log.jsonl") if "heldout" in line]
        for name in ("out", "more")
    )
    assert after[-1] == pytest.approx(before[0], abs=1e-6)  # the mean is measured, not the last weights


@settings(deadline=None)
@given(steps=st.integers(1, 300), count=st.integers(1, 40), share=st.floats(0.05, 1))
def test_averaged_steps_are_spread_evenly(steps, count, share):
    if round(steps * share) < count:
        return
    weight = torch.nn.Parameter(torch.zeros(1))
    engine = SimpleNamespace(model=SimpleNamespace(named_parameters=lambda: [("w", weight)]))
    callback = _AverageCallback(SimpleNamespace(engine=engine, clock=Clock()), count, share, [])
    control = SimpleNamespace(should_training_stop=False)
    for step in range(1, steps + 1):
        callback.on_step_end(None, SimpleNamespace(global_step=step, max_steps=steps), control)
    distances = np.diff(callback.steps)
    assert callback.steps[-1] == steps and len(callback.steps) >= count - 1
    assert all(abs(found - steps * share / count) <= 1 + 1e-6 for found in distances)


@each(
    ("given", "says"),
    [
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule": "cosine decay=0.2"}, "Only 'wsd' has a decay"),
        ({"schedule": "wsd decay=0.95"}, "exceed the training"),
        ({"schedule": "wsd decay=0"}, "parameter 'decay'"),
        ({"schedule": "wsd peak=1"}, "peak"),
        ({"average_last": 5}, "average fewer"),
        ({"average_last": 2, "heldout": DOCUMENTS[:2], "keep_best": True}, "keep_best or patience"),
        ({"average_last": 2, "adapter": "lora"}, "mean of its factors"),
    ],
)
def test_wrong_schedules_are_errors(tiny_bert, tmp_path, given, says):
    with pytest.raises(UserError, match=says):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", **given, **RUN)
