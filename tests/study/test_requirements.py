"""Requirements on a study: what they can name, and that a missing verdict or job decides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from acclimate.base.errors import UserError
from acclimate.results.requirements import MET, NOT_MET, UNDECIDED
from acclimate.results.study import StudyResults
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.forecast import forecast
from tests.cases import each
from tests.study.fakes import World, study

pytestmark = pytest.mark.usefixtures("no_report")


def gated(folder: Path, out: Path, *require: str, world: World | None = None, gain: float = 0.3, **changes):
    values = study(folder, **{"methods": ["none", "mlm"], **changes})
    world = world or World(300, gain)
    return compare(values, out, require=require, progress=False, backend=world.backend())


def states(results: StudyResults) -> list[str]:
    return [] if results.decision is None else [one.state for one in results.decision.requirements]


def test_everything_that_a_study_measures_can_be_required(folder, tmp_path):
    (domain,) = study(folder)["domains"]
    domains = [{**domain, "tasks": [str(folder / "intent"), str(folder / "aspect")]}]
    required = ["intent > 0", "aspect:accuracy >= 5", "mean > 0", "intent:micro_f1 < 60", "intent > 60"]
    required += ["general text <= 0.02", "domain text < 0"]
    results = gated(folder, tmp_path / "out", *required, domains=domains, adapt_seeds=3)
    assert states(results) == [MET, MET, MET, MET, NOT_MET, NOT_MET, MET]
    assert results.decision.exit_code == 1
    lines = results.decision.describe()
    row = next(row for row in results.scores if (row.task, row.method) == ("intent", "mlm"))
    shown = f"{100 * row.comparison.difference:+.1f} points [{100 * row.comparison.low:+.1f}, "
    assert lines[0].startswith(f"Requirement met: intent > 0 (mlm {shown}")
    assert "(mlm +0." in lines[5] and " nats [" in lines[5]
    assert "decision" not in results.to_dict() and "measured" not in results.to_dict()


@pytest.mark.slow
def test_each_method_has_to_meet_a_requirement_and_only_narrows_them(folder, tmp_path):
    both = [*study(folder)["methods"][:2], {"name": "dga", "label": "dga"}]
    results = gated(folder, tmp_path / "out", "intent > 0", methods=both, adapt_seeds=3)
    assert states(results) != [MET] and "dga" in results.decision.describe()[0]
    narrowed = compare(
        study(folder, methods=both, adapt_seeds=3), tmp_path / "out", only="method=mlm", require="intent > 0",
        progress=False, backend=World(300, 0.3).backend(),
    )  # fmt: skip
    assert states(narrowed) == [MET]


def test_without_a_verdict_or_with_jobs_left_nothing_is_decided(folder, tmp_path):
    one = gated(folder, tmp_path / "one", "intent > 0", "general text <= 9")  # one adaptation
    assert states(one) == [UNDECIDED, UNDECIDED] and one.decision.exit_code == 3
    assert "one seed or adaptation" in one.decision.describe()[0]
    values = study(folder, methods=["none", "mlm"], adapt_seeds=3)
    part = compare(
        values, tmp_path / "part", shard="1/3", require="intent > 0", progress=False, backend=World().backend()
    )
    assert states(part) == [UNDECIDED] and f"{part.jobs.left} of {part.jobs.total} jobs are left" in str(
        part.decision.describe()
    )
    assert compare(values, tmp_path / "part", progress=False, backend=World().backend()).decision is None


@each(
    ("required", "message"),
    [
        (
            "intnt > 0",
            r"Unknown name in a requirement: 'intnt'\. Did you mean 'intent'\? Available: .*intent:accuracy",
        ),
        ("mean > 0", "Unknown name in a requirement: 'mean'"),  # a single task
        ("intent:auc > 0", "Unknown name in a requirement: 'intent:auc'"),
        ("general text >= -0.5", "Lower values of 'general text' are better, so require 'general text <= -0.5'"),
        ("intent", "'require' must be a name, one of >, >=, < and <=, and a finite number"),
    ],
)
def test_a_wrong_requirement_is_refused_before_anything_is_trained(folder, tmp_path, required, message):
    world = World()
    with pytest.raises(UserError, match=message):
        gated(folder, tmp_path / "out", required, world=world)
    assert not world.calls and not (tmp_path / "out").exists()
    if required != "intent":
        with pytest.raises(UserError, match=message):
            forecast(StudyConfig.of(study(folder)), tmp_path / "out", world.backend(), require=[required])
