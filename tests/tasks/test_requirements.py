"""``finetune --require``: scores with their intervals decide, and the exit code says how."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.evaluation.scoring import SingleLabel, make_scoring
from acclimate.evaluation.significance import bootstrap_intervals, score_interval
from acclimate.results.requirements import MET, NOT_MET, UNDECIDED
from acclimate.tasks.result import FinetuneResult, decide_scores
from tests.cases import each


def result(right: int, items: int = 400, *, seed: int = 0, kind: str = "single_label", **scoring) -> FinetuneResult:
    """Return the result of a model that has so many test items right."""
    gold = [number % 2 for number in range(items)]
    hits = np.random.default_rng(seed).permutation(items) < right
    predicted = [one if hit else 1 - one for one, hit in zip(gold, hits, strict=True)]
    return FinetuneResult(
        task="reviews", seed=seed, metrics={"accuracy": right / items}, dev_metrics=None, gold=gold,
        predicted=predicted, probabilities=[], labels=["no", "yes"], seconds=1.0, train_size=9, steps=1, epoch=1,
        train_loss=0.1, precision="fp32", kind=kind, scoring=scoring,
    )  # fmt: skip


@each(
    ("required", "state"),
    [("accuracy >= 80", MET), ("accuracy >= 95", NOT_MET), ("accuracy >= 90", UNDECIDED), ("accuracy < 95", MET)],
)
def test_a_score_is_decided_by_its_interval(required, state):
    decision = result(360).decide(required)
    assert decision.state == state
    (shown,) = decision.requirements[0].results
    low, high = bootstrap_intervals(SingleLabel(), result(360).gold, result(360).predicted, ["accuracy"])["accuracy"]
    assert (shown.low, shown.high) == pytest.approx((low, high), abs=0.01)  # as on the card
    assert f": {required} (this model 90.0 % [8" in decision.describe()[0]


def test_several_seeds_count_with_their_variance():
    alike = decide_scores([result(360, seed=seed) for seed in range(3)], ["accuracy >= 86"])
    apart = decide_scores([result(right, seed=seed) for seed, right in enumerate((320, 360, 400))], ["accuracy >= 86"])
    assert (alike.state, apart.state) == (MET, UNDECIDED)
    assert "(mean of 3 seeds 90.0 % [" in apart.describe()[0]


def test_few_items_that_are_all_right_prove_little():
    assert [result(items, items).decide("accuracy >= 99").state for items in (1, 6, 40, 400)] == 3 * [UNDECIDED] + [
        MET
    ]
    exact = result(40, 40)
    found = score_interval(SingleLabel(), exact.gold, [exact.predicted], "accuracy")
    assert (found.low, found.high) == pytest.approx((0.025 ** (1 / 40), 1.0))
    wrong = result(0, 40)
    found = score_interval(SingleLabel(), wrong.gold, [wrong.predicted], "accuracy")
    assert (found.low, found.high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 40)))


def test_groups_are_the_units():
    """Documents of ten items that are all right or all wrong say as much as one item each."""
    groups = [number // 10 for number in range(400)]
    gold, hits = [0] * 400, [group % 10 > 0 for group in groups]
    found = {
        name: score_interval(make_scoring("single_label", details), gold, [[int(not hit) for hit in hits]], "accuracy")
        for name, details in (("items", {}), ("documents", {"groups": groups}))
    }
    widths = {name: one.high - one.low for name, one in found.items()}
    assert widths["documents"] > 3 * widths["items"]


def test_errors_are_in_their_own_unit_and_lower_is_better():
    made = result(0, 40, kind="regression")
    error = next(iter(make_scoring("regression", {}).errors))
    assert made.decide(f"{error} <= 1.5").state == MET and " [1, 1]" in made.decide(f"{error} <= 1.5").describe()[0]
    with pytest.raises(UserError, match=f"Lower values of '{error}' are better"):
        made.decide(f"{error} >= 0.5")


@each(
    ("required", "code", "line"),
    [
        (["accuracy >= 80"], 0, "Requirement met: accuracy >= 80 (mean of 5 seeds 90.0 % ["),
        (["accuracy >= 80", "macro_f1 >= 99"], 1, "Requirement not met: macro_f1 >= 99 (mean of 5 seeds 90.0 % ["),
        (["accuracy >= 90", "--json"], 3, "Requirement undecided: accuracy >= 90 (mean of 5 seeds 90.0 % ["),
    ],
)
def test_the_command_ends_with_the_decision(required, code, line, tiny_bert, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("acclimate.tasks.seeds.finetune", lambda seed, **_: result(360, seed=seed))
    as_json, required = "--json" in required, [one for one in required if one != "--json"]
    flags = [word for one in required for word in ("--require", one)]
    ended, out, err = call(monkeypatch, capsys, tiny_bert, tmp_path, *flags, *["--json"] * as_json)
    assert ended == code and (err if as_json else out).splitlines()[-1].startswith(line)
    if as_json:
        decision = json.loads(out.splitlines()[-1])["decision"]
        assert decision["exit_code"] == code and [one["requirement"] for one in decision["requirements"]] == required


@each(
    ("flags", "message"),
    [
        (["--require", "accuracy"], "--require must be a name, one of >, >=, < and <=, and a finite number"),
        (["--require", "acuracy > 1"], "Unknown name in a requirement: 'acuracy'. Did you mean 'accuracy'?"),
        (["--require", "accuracy > 1", "--all-labels"], "no rows are left to test on"),
        (["--require", "accuracy > 1", "--probe"], "'require' does not apply with a probe"),
    ],
)
def test_a_wrong_requirement_of_a_command_is_refused_before_training(
    flags, message, tiny_bert, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("acclimate.tasks.seeds.finetune", None)
    ended, _, err = call(monkeypatch, capsys, tiny_bert, tmp_path, *flags)
    assert ended == 2 and message in err.splitlines()[-1] and "Traceback" not in err


def call(monkeypatch, capsys, model, folder, *flags):
    for split in ("train", "test"):
        rows = [{"text": f"{split} text {number}", "label": "ny"[number % 2]} for number in range(6)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["acclimate", "finetune", "--model", model, "--task", folder, *flags]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    return ended.value.code or 0, *capsys.readouterr()
