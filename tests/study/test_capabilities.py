"""The capability sheet: measurements of a study in groups, for encoders and decoders; benchmarks in studies."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.judge.logs import Scores
from acclimate.report import markdown, render
from acclimate.results.study import StudyResults
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.jobs.capabilities import Capabilities
from tests.cases import each
from tests.study.fakes import World, graph_of, of_kind, study
from tests.tiny import decoder_tokenizer, tiny_model

GROUPS = {
    "domain knowledge": "domain text",
    "domain tasks": ["intent"],
    "general knowledge": ["general text", "aspect"],
}


@pytest.fixture
def encoders(folder):
    return study(folder, other_tasks=[str(folder / "aspect")], capabilities=GROUPS, adapt_seeds=3)


def test_the_sheet_groups_the_measurements_of_a_study(encoders, tmp_path, no_report):
    results = compare(encoders, tmp_path / "out", progress=False, backend=World().backend())
    rows = {(row.group, row.measure, row.method): row for row in results.rows["capabilities"]}
    assert len(rows) == len(results.rows["capabilities"]) == 4 * 2
    loss = next(row for row in results.losses if (row.text, row.method) == ("domain", "mlm"))
    found = rows["domain knowledge", "domain text", "mlm"]
    assert (found.before, found.after, found.unit, found.verdict) == (loss.before, loss.nats, "nats", "helped")
    score = next(row for row in results.scores if row.method == "mlm").comparison
    found = rows["domain tasks", "intent", "mlm"]
    assert (found.before, found.after) == pytest.approx((100 * score.before, 100 * score.after))
    assert found.difference.low == pytest.approx(100 * score.low) and found.verdict == score.verdict
    assert rows["general knowledge", "general text", "mlm"].verdict == "hurt"
    assert rows["general knowledge", "aspect", "mlm"].before == pytest.approx(100 * results.forgetting[0].before)
    again = StudyResults.from_dict(results.to_dict())
    assert (
        again.to_dict() == results.to_dict()
        and again.rows["capabilities"][0].verdict == results.rows["capabilities"][0].verdict
    )
    sheet, table = Capabilities.tables(results)
    assert sheet.columns == ["adapted to", "method", *GROUPS]
    row = next(row for row in sheet.rows if row[1].text == "mlm")
    assert (row[2].text, row[2].mark) == ("1 helped", "helped") and "1 hurt" in row[4].text
    assert len(table.rows) == 8 and table.groups()[0][0] == "domain knowledge"
    assert "Capability sheet" in render(results) and "Measurements by capability" in markdown(results)


def test_a_study_without_groups_has_no_sheet(folder):
    assert "capabilities" not in StudyConfig.of(study(folder)).resolved()


@each(
    ("groups", "message"),
    [
        ({"tasks": ["intnt"]}, "'tasks' names 'intnt'.*Did you mean 'intent'"),
        ({"instructions": ["instructions"]}, "does not measure"),
        ({"tasks": []}, "must not be empty"),
        (["intent"], "mapping|dictionary"),
    ],
)
def test_mistakes_are_explained_before_training(folder, groups, message):
    with pytest.raises(UserError, match=message):
        graph_of(study(folder, capabilities=groups))


@pytest.fixture
def decoders(folder):
    """A study of a decoder with a chat template and a benchmark."""
    tokenizer = decoder_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tiny_model("llama").save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    task = {"path": str(folder / "intent"), "likelihood": True}
    return study(
        folder,
        models=[str(folder / "llama")],
        methods=["none", "lm"],
        domains=[{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}],
        evaluate={"documents": 20, "instructions": True},
        benchmarks=["quiz", {"task": "sums", "metric": "exact", "limit": 30}],
        adapt_seeds=3,
        capabilities={
            "domain tasks": ["intent", "intent without fine-tuning"],
            "general knowledge": ["quiz", "sums"],
            "instructions": ["instructions"],
        },
    )


def measurements(model, **settings):
    """Return fake answers: the base model is right on the first half, adapted ones on the first third."""
    base = str(model).endswith("llama")
    count = settings.get("limit") or 60
    values = (np.arange(count) < count / (2 if base else 3)).astype(float)
    names = [f"{number}/h" for number in range(count)]
    pairs = [f"text {number // 2}" for number in range(count)]
    return {"acc": Scores(names, values, groups=pairs), "exact": Scores(names, 1 - values)}


def followed(model):
    """Return fake answers: adapted models follow fewer instructions."""
    most = 40 if str(model).endswith("llama") else 5
    return {"followed": [number < most for number in range(52)], "answers": [""] * 52, "unfinished": 0}


def test_decoders_have_benchmarks_and_instructions(decoders, tmp_path, no_report):
    world = World()
    world._kind = lambda model: "none" if str(model).endswith("llama") else "mlm"
    backend = world.backend(
        likelihood=lambda model: lambda texts, labels, **settings: _Answers([0] * len(texts)),
        others={"benchmark": measurements, "instructions": followed},
    )
    results = compare(decoders, tmp_path / "out", progress=False, backend=backend)
    rows = {row.measure: row for row in results.rows["capabilities"]}
    assert list(rows) == ["intent", "intent without fine-tuning", "quiz", "sums", "instructions"]
    before, after = (measurements(model)["acc"].values for model in ("llama", "adapted"))
    expected = paired_difference([after] * 3, before, groups=[number // 2 for number in range(len(before))])
    quiz = rows["quiz"]
    assert (quiz.before, quiz.after, quiz.verdict) == (50, pytest.approx(100 / 3), "hurt")
    assert quiz.difference.low == pytest.approx(100 * expected.low)
    assert rows["sums"].verdict == "helped" and rows["sums"].before == 50, "its metric is 'exact'"
    assert rows["instructions"].verdict == "hurt" and rows["instructions"].unit == "points"
    table = next(table for table in results.tables if table.title == "Benchmarks")
    assert len(table.rows) == 2 * 2 * 2 and table.rows[0][3] == "base model"
    again = compare(decoders, tmp_path / "out", progress=False, backend=backend)
    assert again.rows == results.rows and not again.jobs.done


class _Answers:
    def __init__(self, predicted):
        self.predicted, self.truncated = predicted, 0


def test_a_benchmark_is_identified_by_how_it_is_asked(decoders, folder):
    keys = {job.key for job in of_kind(graph_of(decoders), "benchmark")}
    same = {**decoders, "benchmarks": ["quiz", {"task": "sums", "limit": 30}]}
    assert {job.key for job in of_kind(graph_of(same), "benchmark")} == keys, "the metric changes no answer"
    other = {**decoders, "benchmarks": ["quiz", {"task": "sums", "limit": 31}]}
    assert {job.key for job in of_kind(graph_of(other), "benchmark")} != keys
    with pytest.raises(UserError, match="causal"):
        graph_of(study(folder, benchmarks="quiz"))
    with pytest.raises(UserError, match="duplicated under benchmarks"):
        graph_of({**decoders, "benchmarks": ["quiz", "quiz", "sums"]})
