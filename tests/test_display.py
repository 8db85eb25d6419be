"""Results in Python and notebooks: short text, HTML, data frames and pages; and calls that print nothing."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from dataclasses import KW_ONLY
from typing import Annotated

import pandas
import pytest
from markupsafe import escape
from transformers.utils import logging as their_logging

from acclimate.adaptation.adapt import adapt
from acclimate.base import progress
from acclimate.base.errors import UserError
from acclimate.base.options import Option, options, verb
from acclimate.data.fields import Progress as ShowProgress
from acclimate.labs.inspection.embeddings import EmbeddingsResult
from acclimate.merging.merge import MergeResult
from acclimate.report import summarize
from acclimate.report.masked_text import REPLACEMENTS
from acclimate.results.study import Measurements, StudyResults
from acclimate.study.compare import compare
from acclimate.tasks.distillation.distill import DistillResult
from acclimate.tasks.finetune import finetune
from tests.study.fakes import World, files, study
from tests.tasks.test_classification import QUICK, keyword_task
from tests.tiny import TEXTS


@contextlib.contextmanager
def captured():
    """Collect what is written, with the bars of transformers, which the other tests switch off."""
    text = io.StringIO()
    their_logging.enable_progress_bar()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield text
    finally:
        their_logging.disable_progress_bar()


@pytest.fixture(scope="module")
def adapted(tiny_bert, tmp_path_factory):
    """An adaptation without progress, and what it printed."""
    folder = tmp_path_factory.mktemp("adapted")
    rows = pandas.DataFrame({"text": TEXTS})
    with captured() as text:
        result = adapt(
            tiny_bert, rows, out=folder / "out", steps=3, max_length=64, heldout=rows, heldout_every=2, progress=False
        )
    return result, text.getvalue()


@pytest.fixture(scope="module")
def tuned(tiny_bert):
    return finetune(tiny_bert, keyword_task(), epochs=1, seed=3, **QUICK)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    config = study(files(folder / "data"), seeds=3, adapt_seeds=None, title="A <b>study</b>")
    return compare(config, folder / "out", progress=False, backend=World().backend())


def assert_is_fragment(html: str) -> None:
    """Check that the outputs of a notebook do not disturb each other."""
    assert "<script" not in html and "<html" not in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', html)} <= {*ids}


def test_a_call_without_progress_prints_nothing(adapted):
    assert adapted[1] == ""


def test_libraries_are_silent_without_progress_only_and_as_before_afterwards():
    @options
    class Options:
        _: KW_ONLY
        fails: Annotated[bool, Option("Whether to fail.")] = False
        progress: ShowProgress = True

    def _work(given: Options) -> None:
        their_logging.tqdm(total=1).close()
        warnings.warn("something is deprecated", FutureWarning, stacklevel=1)
        if given.fails:
            raise UserError("It failed.")

    work = verb(Options)(_work)
    with captured() as silent:
        work(progress=False)
        with pytest.raises(UserError, match="It failed"):
            work(progress=False, fails=True)
        assert their_logging.is_progress_bar_enabled()
    with captured() as loud, pytest.warns(FutureWarning):
        work()
    assert silent.getvalue() == "" and "0/1" in loud.getvalue()


def test_an_adaptation_is_described_without_the_text_of_the_user(adapted):
    result, lines = adapted[0], repr(adapted[0]).splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"{result.out}: lm, 3 steps") and lines[1].startswith("Training")
    frame = result.to_pandas()
    first, *_, last = frame.heldout_loss
    assert f"{first:.3f} after step 0; mlm {last:.3f} after step 3" in lines[2]
    assert not any(word in repr(result) for word in ("waiter", "pizza"))


def test_the_log_is_a_data_frame(adapted):
    frame = adapted[0].to_pandas().set_index("step")
    lines = [json.loads(line) for line in (adapted[0].out / "log.jsonl").read_text().splitlines()]
    assert list(frame.index) == [0, 1, 2, 3]
    assert {line["step"]: line["loss"] for line in lines if "loss" in line} == frame.loss.dropna().to_dict()
    assert frame.heldout_mlm.dropna().to_dict() == {
        line["step"]: line["heldout"]["terms"]["mlm"] for line in lines if "heldout" in line
    }


def test_a_missing_log_is_an_error(tiny_bert, tmp_path):
    untrained = adapt(
        tiny_bert, pandas.DataFrame({"text": TEXTS}), "none", tmp_path / "out", max_length=64, progress=False
    )
    assert repr(untrained) == f"{tmp_path / 'out'}: none, 0 steps, 0 tokens"
    with pytest.raises(UserError, match="There is no log in"):
        untrained.to_pandas()


def test_a_notebook_shows_the_curve_and_the_budget_of_an_adaptation(adapted):
    html = adapted[0]._repr_html_()
    assert_is_fragment(html)
    assert html.count("<svg") == 1 and "Learning curves" in html and "Adaptation runs" in html
    assert not any(
        word in page for page in (html, adapted[0].report().html) for word in (REPLACEMENTS["mask"], "waiter")
    )
    assert adapted[0].masked["texts"]


def test_a_fine_tuning_is_described_by_its_metrics(tuned):
    assert repr(tuned).splitlines()[0].startswith("keyword, seed 3: 64 training examples")
    assert repr(tuned).splitlines()[-1].startswith(f"test: macro_f1 {tuned.metrics['macro_f1']:.4f}, accuracy ")
    assert len(repr(tuned)) < 300
    frame = tuned.to_pandas().set_index("split")
    assert frame.accuracy["test"] == tuned.metrics["accuracy"] and frame.nll["test"] == tuned.metrics["nll"]
    assert set(frame.seed) == {3} and "per_class" not in frame
    html = tuned._repr_html_()
    assert_is_fragment(html)
    assert f"{tuned.metrics['macro_f1']:.4f}" in html and "Classes, on test" in html


@pytest.mark.needs("dga")
def test_a_study_is_a_table_of_differences(compared):
    frame = compared.to_pandas()
    for row, found in zip(compared["scores"], frame.to_dict("records"), strict=True):
        assert found["method"] == row["method"] and found["mean"] == row[row["metric"]]["mean"]
        if "difference" in row:
            difference = row["difference"][row["metric"]]
            assert [found[key] for key in ("difference", "low", "high")] == [
                difference[key] for key in ("difference", "low", "high")
            ]
            assert f"{100 * found['low']:+.1f}, {100 * found['high']:+.1f}" in repr(compared)
    losses = compared.to_pandas("losses")
    assert list(losses.after) == [row["nats"] for row in compared["losses"]]
    assert list(losses.verdict) == [row["difference"]["verdict"] for row in compared["losses"]]
    assert set(losses.verdict) >= {"helped", "hurt"} and set(frame.verdict[1:]) == {"no difference shown"}
    with pytest.raises(UserError, match="scores"):
        compared.to_pandas("score")


def test_a_study_is_shown_with_its_figure_and_escaped(compared):
    html = compared._repr_html_()
    assert_is_fragment(html)
    assert str(escape(summarize(compared).headline)) in html
    assert "Paired differences" in html and "Scores on end tasks" in html
    assert "A &lt;b&gt;study&lt;/b&gt;" in html and "<b>study" not in html


def test_the_report_of_a_study_is_the_file_beside_it(compared, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("acclimate.results.display.webbrowser.open", opened.append)
    page = compared.report()
    assert page.path == compared.folder / "report.html" and page.html == page.path.read_text()
    page.open()
    assert opened == [page.path.as_uri()]
    frame = page._repr_html_()
    assert frame.startswith("<iframe") and "<html" not in frame
    assert compared.report(tmp_path / "copy.html").path == tmp_path / "copy.html"


def test_results_that_are_read_again_look_the_same_and_the_folder_is_not_in_the_file(compared):
    again = StudyResults.load(compared.folder / "results.json")
    assert (
        json.dumps(again.to_dict()) == json.dumps(compared.to_dict())
        and repr(again) == repr(compared)
        and again.folder == compared.folder
    )
    assert "folder" not in compared.to_dict() and "folder" not in json.loads(
        (compared.folder / "results.json").read_text()
    )
    assert StudyResults.from_dict({"name": "x", "folder": "/elsewhere"}).folder is None


def test_a_large_study_has_a_short_description(compared):
    many = StudyResults(name="many", scores=compared.scores * 20)
    assert len(repr(many).splitlines()) < 20 and "more rows" in repr(many)


def test_measurements_are_a_dictionary_with_a_table():
    found = Measurements({"a": [1]}, ["a <i>line</i>"], "Numbers", [{"x": 1, "y": None}, {"x": 2, "y": 0.5}])
    assert found == {"a": [1]} and json.loads(json.dumps(found)) == {"a": [1]} and repr(found) == "a <i>line</i>"
    assert found.to_pandas().y.tolist()[1] == 0.5
    html = found._repr_html_()
    assert_is_fragment(html)
    assert "a &lt;i&gt;line" in html and "0.5000" in html
    page = found.report()
    assert page.path is None and "<html" in page.html and "in memory" in repr(page)
    assert Measurements({}, [], "Nothing", []).to_pandas().empty


def test_other_results_have_tables_too(tuned, tmp_path):
    change = {"difference": 0.1, "low": -0.1, "high": 0.3}
    path = [
        {"alpha": share, "domain": {"nats": 2.0 + share, "bits_per_byte": 1.0, "change": change if share else None}}
        for share in (0.0, 1.0)
    ]
    merged = MergeResult(tmp_path, "interpolation", ["one note"], path)
    assert repr(merged).splitlines() == ["Merged: interpolation", "one note", f"model: {tmp_path}"]
    assert merged.to_pandas().nats.tolist() == [2.0, 3.0] and "3.0000" in merged._repr_html_()
    assert "<table" not in MergeResult(tmp_path, "soup")._repr_html_()

    given = {name: getattr(tuned, name) for name in tuned.__dataclass_fields__}
    sides = {f"{side}_{name}": tuned.metrics for side in ("teacher", "student") for name in ("metrics", "dev_metrics")}
    distilled = DistillResult(
        **{**given, **sides}, objective="activations", connector="none", distilled_epochs=1,
        disagreement=[9.0, 4.0, 5.0], units=32, teacher_trained=True, stage_seconds={},
    )  # fmt: skip
    assert repr(distilled).endswith("9 of 32 before, 5 at the end")
    assert "Agreement with the teacher" in distilled._repr_html_()
    assert list(distilled.to_pandas().split)[:2] == ["teacher", "student before"]

    drift = {"distance": 0.1, "coordinate": 0.01, "share": 0.2, "cosine": 0.99}
    moved = EmbeddingsResult({"movement": {"after": {"all": drift}}, "words": {}}, {}, [], {})
    assert repr(moved) == "after, all tokens: distance 0.1000, cosine 0.9900" and "0.9900" in moved._repr_html_()


def test_progress_in_a_notebook_updates_one_line(monkeypatch, capfd):
    shown: list[str] = []

    class Output:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return Output()

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    for persistent in (True, False):
        now[0] = 0.0
        with progress.Progress("Working", 100, unit="steps", delay=0, persistent=persistent) as bar:
            for now[0], count in ((0.0, 0), (0.1, 1), (1.0, 50)):
                bar.update(count)
    line = "Working: 50 of 100 steps, 50 %, 0:01 min"
    start = "Working: 0 of 100 steps, 0 %, 0:00 min"
    assert shown == [start, f"{line}, about 0:01 min left", line, start, f"{line}, about 0:01 min left", ""]
    assert capfd.readouterr() == ("", "")
