"""The stability monitor: dips of curves, when it measures, that it changes nothing, and the best measured model."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.adaptation.heldout import is_log_spaced
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.evaluation.dips import Dip, describe_dips, dip_is_over, find_best, find_dip, is_in_dip
from acclimate.results.adaptations import read_curves
from tests.adaptation.test_heldout import DOCUMENTS, HELD, held, lines, run
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import weights
from tests.test_cli import call
from tests.tiny import TEXTS

GENERAL = ["the price of the wine was not bad", "a rude table", "we test the text", "the figure is slow and cold"]
GRID = [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128]
SHAPE = [0.0, 0.1, 0.2, 0.4, 0.8, 0.7, 0.6, 0.4, 0.3, 0.1, 0.0, -0.1, -0.2, -0.25, -0.3]
"""A dip of 0.8 in step 4, half recovered in step 11, and whole in step 32."""


def test_depth_step_and_recovery_of_a_dip():
    assert find_dip(GRID, [2 + rise for rise in SHAPE]) == Dip(pytest.approx(0.8), 4, 11, 32, pytest.approx(-0.3))
    assert find_dip(GRID, [-rise for rise in SHAPE]).step == 128, "the largest rise, at the end"
    assert find_dip([0], [1.0]) == find_dip([0, 1], [1.0, 1.0]) == Dip(0.0, None, None, None, 0.0)
    partly = find_dip(GRID[:5], [1, 3, 2.5, 2, 1.5])
    assert partly == Dip(2, 1, 3, None, 0.5)
    assert "0.500 remained" in partly.describe() and "step 3" in partly.describe()
    assert "back at the base model's after step 32" in find_dip(GRID, SHAPE).describe()
    assert "did not fall by half" in find_dip(GRID[:6], SHAPE[:6]).describe()
    assert find_dip([0, 1], [1, 0.5]).describe() == "never rose above the base model's"


def test_a_dip_is_over_when_half_of_it_is_gone():
    inside = is_in_dip(SHAPE)
    assert [step for step, here in zip(GRID, inside, strict=True) if here] == [1, 2, 3, 4, 6, 8]
    assert dip_is_over([]) and dip_is_over([1.0]) and dip_is_over([1.0, 0.5, 0.9])
    assert not dip_is_over(SHAPE[:7]) and dip_is_over(SHAPE[:8])
    # A later rise counts if it is larger.
    assert dip_is_over([0, 4, 1, 3]) and not dip_is_over([0, 4, 1, 5])


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_entry_is_that_of_the_shortened_curve(losses):
    found = is_in_dip(losses)
    assert found == [not dip_is_over(losses[: place + 1]) for place in range(len(losses))]
    dip = find_dip(range(len(losses)), losses)
    assert found[-1] == (dip.step is not None and dip.half is None)
    assert not any(inside and loss <= losses[0] for inside, loss in zip(found, losses, strict=True))


def best_by_search(losses, general):
    """The rule of `find_best`, told measurement by measurement."""
    allowed, before = [], [False, False]
    for place in range(len(losses)):
        now = [not dip_is_over(curve[: place + 1]) for curve in (losses, general)]
        if any(was and not here for was, here in zip(before, now, strict=True)):
            allowed = []
        allowed += [place] if place else []
        before = now
    best = min(allowed, key=lambda place: losses[place])
    later = sum(
        dip_is_over(losses[: place + 1]) and dip_is_over(general[: place + 1])
        for place in range(best + 1, len(losses))
    )
    return best, later


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=10))
@settings(max_examples=80, deadline=None)
def test_the_best_measurement_lies_after_every_dip_that_has_ended(pairs):
    losses, general = zip(*pairs, strict=True)
    assert find_best(losses, general) == best_by_search(losses, general)
    # Whatever is best now was so before, or is the last: so one copy of the weights is enough.
    if len(pairs) > 2:
        assert find_best(losses, general)[0] in (find_best(losses[:-1], general[:-1])[0], len(pairs) - 1)


def test_the_best_checkpoint_is_not_one_of_the_dip():
    falling = [1.0, 0.5, 0.2, 0.3, 0.4, 0.35]
    assert find_best(falling)[0] == 2
    assert find_best(falling, [0, 1, 2, 0.5, 0.4, 0.4])[0] == 3, "the general loss recovered there"
    assert find_best(falling, [0, 1, 2, 3, 4, 5]) == (2, 0), "forgetting is no dip as long as it does not recover"
    assert find_best([1.0, 2.0, 3.0, 1.2, 1.1])[0] == 4


def test_the_steps_are_powers_of_the_root_of_two():
    assert [step for step in range(129) if is_log_spaced(step)] == GRID[1:]
    expected = {round(2 ** (power / 2)) for power in range(41)}
    assert {step for step in sorted(expected | {step + 1 for step in expected}) if is_log_spaced(step)} == expected


def test_it_measures_both_texts_on_its_grid_and_changes_no_weight(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "plain", steps=7)
    result = run(tiny_bert, tmp_path / "seen", steps=7, heldout=HELD, general=GENERAL, monitor=True)
    one, other = (weights(tmp_path / name) for name in ("plain", "seen"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [step for step, _ in held(tmp_path / "seen")] == [0, 1, 2, 3, 4, 6, 7]
    general = [line["general"] for line in lines(tmp_path / "seen") if "heldout" in line]
    assert len(general) == 7 and all(set(found) == {"loss", "terms"} for found in general)
    # The general text has the same loss alone, and held-out text at other steps.
    run(tiny_bert, tmp_path / "alone", steps=4, heldout=GENERAL, heldout_every=3, warmup=0)
    assert held(tmp_path / "alone")[0][1] == general[0]
    recorded = read_json(tmp_path / "seen" / "acclimate.json")
    assert recorded["monitor"] is True and recorded["heldout_every"] is None and len(recorded["general"]) > 10
    curves = read_curves(tmp_path / "seen" / "log.jsonl")
    assert [point.step for point in curves["general_curve"]] == [0, 1, 2, 3, 4, 6, 7]
    assert len(curves["curve"]) == 7 and len(describe_dips(curves)) == 2
    assert describe_dips(read_curves(tmp_path / "alone" / "log.jsonl")) == [], "not measured from the first step"
    assert sum("loss" in line.lower() for line in result.describe()) == 5
    frame = result.to_pandas()
    assert frame["general_mlm"].count() == frame["heldout_mlm"].count() == 7


def losses_of(monkeypatch, heldout, general=None):
    """Let the measurements of a training have these losses."""
    import acclimate.adaptation.heldout as module

    values = {"heldout": iter(heldout), "general": iter(general or [])}
    names = iter(lambda: None, 0)

    def measure(engine, steps, seed=0):
        nonlocal names
        name = next(names, None)
        if name is None:
            names = iter(["heldout", "general"] if general else ["heldout"])
            name = next(names)
        value = next(values[name])
        return {"mlm": value, "loss": value}

    names = iter([])
    monkeypatch.setattr(module, "measure_heldout_terms", measure)


@pytest.fixture(scope="module")
def every_step(tiny_bert, tmp_path_factory):
    """A training that keeps the model of every step."""
    out = tmp_path_factory.mktemp("steps") / "out"
    run(tiny_bert, out, keep_steps=range(1, 6))
    return out


@each(
    ("heldout", "general", "best"),
    [([3, 2, 1, 2, 1.2, 1.5], [0, 1, 2, 1, 0, 0], 4), ([3, 2, 1, 1, 1, 0], None, None)],
)
def test_the_model_of_the_best_step_is_the_result(
    tiny_bert, tmp_path, every_step, monkeypatch, heldout, general, best
):
    texts = {"heldout": HELD, "heldout_every": 1, **({"general": GENERAL} if general else {})}
    losses_of(monkeypatch, heldout, general)
    result = run(tiny_bert, tmp_path / "best", keep_best=True, **texts)
    assert result.kept_step == best and result.steps == 5
    found, expected = weights(tmp_path / "best"), weights(every_step / f"step-{best or 5:06d}")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert read_json(tmp_path / "best" / "acclimate.json")["result"].get("kept_step") == best
    again = run(tiny_bert, tmp_path / "best", keep_best=True, **texts)
    assert again.kept_step == best and any(f"step {best}" in line for line in again.describe()) == (best is not None)


@pytest.mark.parametrize("adapter", [None, pytest.param("lora", marks=pytest.mark.slow)])
def test_the_best_model_survives_a_kill(tiny_bert, tmp_path, every_step, monkeypatch, adapter):
    options = {"heldout": HELD, "heldout_every": 1, "keep_best": True, "save_every": 1, "adapter": adapter}
    losses_of(monkeypatch, [3, 1, 2, 2.5])
    with killed(3):
        run(tiny_bert, tmp_path / "cut", **options)
    losses_of(monkeypatch, [2.4, 2.3, 2.2])
    result = run(tiny_bert, tmp_path / "cut", **options)
    assert result.kept_step == 1 and result.steps == 5
    if adapter:
        run(tiny_bert, tmp_path / "all", adapter=adapter, keep_steps=[1])
    found, expected = weights(tmp_path / "cut"), weights((tmp_path / "all" if adapter else every_step) / "step-000001")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_patience_ends_the_training_but_not_in_a_dip(tiny_bert, tmp_path, monkeypatch, capsys):
    options = {"heldout": HELD, "heldout_every": 1, "patience": 2, "steps": 9}
    losses_of(monkeypatch, [3, 2, 2.1, 2.2, 2.3])
    result = run(tiny_bert, tmp_path / "early", **options)
    assert (result.steps, result.kept_step) == (3, 1)
    said = capsys.readouterr()
    assert "not fallen since step 1; the training ends after step 3" in " ".join((said.out + said.err).split())
    losses_of(monkeypatch, [3, 2, 2.1, 2.2, 2.3, 1.9, 2, 2.1, 2.2, 2.3], [0, 1, 2, 3, 4, 1, 1, 1, 1, 1])
    result = run(tiny_bert, tmp_path / "late", **options, general=GENERAL)
    assert (result.steps, result.kept_step) == (7, 5)


@each("name", ["monitor", "keep_best", "patience"])
def test_options_without_held_out_text_are_errors(tiny_bert, tmp_path, name):
    with pytest.raises(UserError, match=f"'{name}' needs held-out text"):
        run(tiny_bert, tmp_path / "out", **{name: 1})


def test_the_command_line_says_what_was_measured(tiny_bert, tmp_path, monkeypatch, capsys):
    for name, texts in (("corpus", DOCUMENTS), ("held", HELD), ("general", TEXTS)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts))
    code, out, _ = call(
        monkeypatch, capsys, "adapt", "--model", tiny_bert, "--corpus", tmp_path / "corpus.txt", "--steps", 2,
        "--heldout", tmp_path / "held.txt", "--general", tmp_path / "general.txt", "--monitor", "--keep-best",
        "--max-length", 24, "--out", tmp_path / "cli", "--quiet",
    )  # fmt: skip
    assert code == 0 and "Loss on general text, nats" in out and "Loss on held-out text" in out
    log = (tmp_path / "cli" / "log.jsonl").read_text().splitlines()
    assert sum("general" in json.loads(line) for line in log) == 3
