"""A kind of job is one class, and appears in the study file, the jobs, the results, the report and the dry run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acclimate.base.errors import UserError
from acclimate.base.records import Record
from acclimate.cards.results import result_sections
from acclimate.models.kinds import MASKED
from acclimate.report import markdown, render, results_table
from acclimate.results.scores import Interval
from acclimate.results.study import StudyResults
from acclimate.study.compare import compare
from acclimate.study.config import JOB_KINDS, StudyConfig
from acclimate.study.forecast import forecast
from acclimate.study.job import Job, Model, register, used_kinds
from acclimate.study.sections import SectionEntry
from tests.study.fakes import World, graph_of, of_kind, study
from tests.tiny import save_tiny


def shown(config, out, world) -> dict[str, tuple[int, int]]:
    estimates = forecast(StudyConfig.of(config), out, world.backend()).estimates
    return {estimate.kind: (estimate.jobs, estimate.done) for estimate in estimates}


@pytest.fixture
def with_checkpoint(folder):
    save_tiny("bert", folder / "external")
    (folder / "aspect" / "x").mkdir()
    return study(
        folder,
        methods=["none", "mlm"],
        other_tasks=[str(folder / "aspect")],
        checkpoints=[{"path": str(folder / "external"), "label": "external"}],
        seeds=2,
    )


def test_an_external_checkpoint_is_measured_beside_the_methods(with_checkpoint, tmp_path, no_report):
    world, out = World(), tmp_path / "out"
    before = shown(with_checkpoint, out, world)
    assert before["checkpoint"] == (1, 0) and not world.calls
    results = compare(with_checkpoint, out, progress=False, backend=world.backend())
    path = with_checkpoint["checkpoints"][0]["path"]
    calls = [call for call in world.arguments if call.get("model") == path]
    assert {call["kind"] for call in calls} == {"lm_loss", "finetune"}
    assert not any(call["kind"] == "adapt" and call["model"] == path for call in world.arguments)
    assert [row.method for row in results.scores] == ["none", "mlm", "external"]
    assert results.scores[2].comparison is not None and results.scores[2].stage_seconds["finetuning"] == 1.5
    assert {row.method for row in results.losses} == {row.method for row in results.forgetting} == {"mlm", "external"}
    assert [(row.label, row.name) for row in results.methods][2] == ("external", "checkpoint")
    (table,) = results.tables
    domain, label, architecture, parameters, vocabulary, ratio = table.rows[0]
    assert (domain, label, architecture) == ("cs", "external", "bert") and ratio >= 1
    assert parameters > 1000 and vocabulary > 10
    stored = StudyResults.load(out / "results.json")
    assert stored == results.to_dict() and stored.config["checkpoints"] == [{"label": "external", "path": path}]
    for page in (markdown(results), render(results)):
        assert "External checkpoints" in page and "external" in page
    assert shown(with_checkpoint, out, world)["checkpoint"] == (1, 1)
    again = World()
    compare(with_checkpoint, out, progress=False, backend=again.backend())
    assert not again.calls


def test_a_section_is_a_list_an_entry_or_empty(folder):
    teacher = {"label": "taught", "teacher": {"path": "x"}}
    for given, count in (([], 0), (None, 0), (teacher, 1), ([teacher], 1)):
        config = StudyConfig.of(study(folder, distill=given, checkpoints=[]))
        assert len(config.sections["distill"]) == count and config.sections["checkpoints"] == []


def test_a_checkpoint_changes_no_other_job(with_checkpoint):
    plain = graph_of({key: value for key, value in with_checkpoint.items() if key != "checkpoints"})
    graph = graph_of(with_checkpoint)
    assert plain.jobs.keys() < graph.jobs.keys()
    added = [job for key, job in graph.jobs.items() if key not in plain.jobs]
    assert {job.place.method for job in added} == {"external"}
    assert len(of_kind(graph, "finetune", method="external")) == 2 * 2  # its own and the other task, two seeds each


def test_a_checkpoint_without_a_head_has_no_loss(with_checkpoint, tmp_path):
    graph = graph_of(with_checkpoint, World(headless=True))
    assert not of_kind(graph, "lm_loss", method="external") and of_kind(graph, "finetune", method="external")


def test_a_checkpoint_in_a_search_keeps_the_settings_of_the_study(with_checkpoint, tmp_path, no_report):
    search = {"seeds": 1, "finetune": {"learning_rate": [1e-5, 1e-3]}}
    results = compare(
        {**with_checkpoint, "search": search, "seeds": 1}, tmp_path / "out", progress=False, backend=World().backend()
    )
    assert [row.methods for row in results.searches] == [["none"], ["mlm"]]
    (row,) = [row for row in results.scores if row.method == "external"]
    assert row.seeds == [0]


def test_mistakes_in_checkpoints(folder, tmp_path):
    cases = {
        "has no 'path'": ([{"label": "x"}], "checkpoints[0].path"),
        "has a typo": ([{"path": "x", "lable": "y"}], "Did you mean 'label'?"),
        "sets a search": ([{"path": "x", "search": {}}], "unknown key 'checkpoints[0].search'"),
        "does not exist": (["./missing"], "the checkpoint 'checkpoint missing': There is no model folder"),
    }
    for name, (value, message) in cases.items():
        with pytest.raises(UserError) as caught:
            compare(study(folder, checkpoints=value), tmp_path / "out", progress=False, backend=World().backend())
        assert message in str(caught.value) and "\n" not in str(caught.value), name
    with pytest.raises(UserError, match="'mlm' is duplicated under methods and checkpoints"):
        StudyConfig.of(study(folder, checkpoints=[{"path": "x", "label": "mlm"}]))


def test_relative_paths_of_checkpoints_start_at_the_study_file(folder):
    (folder / "study.yaml").write_text(
        "models: [model]\nmethods: [none]\ncheckpoints: [./model, org/name]\ndomains: [{name: d, corpus: cs.txt}]\n"
    )
    config = StudyConfig.load(folder / "study.yaml")
    assert [spec.path for spec in config.sections["checkpoints"]] == [str(folder / "model"), "org/name"]
    assert [spec.label for spec in config.sections["checkpoints"]] == ["checkpoint model", "checkpoint name"]
    assert StudyConfig.of(config.resolved()) == config and "sections" not in config.resolved()


class Size(Record):
    """The result of this test's kind of job."""

    bytes: int
    limit: int


class SizeRow(Record):
    """A row of the results of this kind."""

    model: str
    domain: str
    method: str
    file_size: int
    change: Interval | None = None


class SizeSpec(SectionEntry):
    """The section of the study file for this kind of job."""

    limit: int


@pytest.fixture
def size_kind():
    """A kind of job that exists only in this test."""

    @register("size")
    class SizeJob(Job):
        """Measure the size of the configuration of a model."""

        model: Model
        limit: int

        cost, result_type, section = 0.25, Size, ("sizes", SizeSpec)
        row_type, title, note = SizeRow, "Size of configurations", "In bytes."

        def run(self, context):
            from pathlib import Path

            return Size(bytes=(Path(context.path(self.model)) / "config.json").stat().st_size, limit=self.limit)

        @classmethod
        def measure(cls, planner, subject):
            for spec in planner.config.sections.get("sizes", []):
                planner.add(cls(place=subject.place, model=subject.model, limit=spec.limit))

        @classmethod
        def rows(cls, view):
            found = [(job.place, result) for job, result in view.find(Size)]
            change = Interval(difference=0.5, low=-1.0, high=2.0, p=0.25, verdict="no difference shown")
            return {
                cls.name: [
                    SizeRow(
                        model=place.model,
                        domain=place.domain,
                        method=place.method or "base model",
                        file_size=result.bytes,
                        change=change if place.method == "mlm" else None,
                    )
                    for place, result in found
                ]
            }

    yield SizeJob
    JOB_KINDS.entries.pop("size")


@pytest.mark.needs("dga")
def test_a_kind_that_only_this_test_registers(folder, tmp_path, size_kind):
    config, world, out = study(folder, sizes=[{"limit": 100}], seeds=1), World(), tmp_path / "out"
    assert shown(config, out, world)["size"] == (3, 0)  # the base model, shared with none, and two adapted ones
    results = compare(config, out, progress=False, backend=world.backend())
    rows = results.rows["size"]
    assert [row.method for row in rows] == ["base model", "none", "mlm", "dga, no contrast"]
    assert all(row.file_size > 0 for row in rows)
    stored = StudyResults.load(out / "results.json")
    assert stored == results.to_dict() and isinstance(stored.rows["size"][2].change, Interval)
    assert stored.config["sizes"] == [{"label": "", "limit": 100}]
    assert "## Size of configurations\n\nIn bytes." in (out / "results.md").read_text()
    assert "| method | file size | change | 95 % interval | verdict |" in (out / "results.md").read_text()
    assert "<p>In bytes.</p>" in (out / "report.html").read_text()
    assert f"mlm & {rows[2].file_size:,} & 0.5 & $-$1 to +2 & no difference shown" in (out / "results.tex").read_text()
    frame = results.to_pandas("size")
    assert list(frame["file_size"]) == [row.file_size for row in rows] and frame["low"][2] == -1.0
    with pytest.raises(UserError, match=r"Unknown table 'sise'\. Did you mean 'size'"):
        results.to_pandas("sise")
    assert any("Size of configurations" in str(table.title) for table in results_table(results))
    sections = dict(result_sections(replace(results, rows={"size": rows[2:3]}), MASKED))
    assert f"| {rows[2].file_size:,} | 0.5 |" in sections["Size of configurations"]
    again = World()
    assert compare(config, out, progress=False, backend=again.backend()).jobs.done == 0
    config["sizes"] = [{"limit": 200}]
    assert compare(config, out, progress=False, backend=again.backend()).jobs.done == 3 and not again.calls
    with pytest.raises(UserError, match=r"sizes\[0\]\.limit"):
        StudyConfig.of(study(folder, sizes=[{"limit": "many"}]))


def test_rows_that_no_results_have_are_an_error(folder, tmp_path, size_kind, monkeypatch):
    monkeypatch.setattr(size_kind, "rows", lambda view: {"table": []})
    with pytest.raises(TypeError, match="jobs of kind 'size' return rows 'table'"):
        compare(study(folder, sizes=[{"limit": 100}]), tmp_path / "out", progress=False, backend=World().backend())


def test_a_study_asks_only_the_kinds_that_it_uses(folder, size_kind):
    def used(**more):
        return {kind.name for kind in used_kinds(StudyConfig.of(study(folder, **more)))}

    least = used()
    assert {"adapt", "finetune", "lm_loss"} <= least and not {"size", "merge", "distill", "drift", "teacher"} & least
    assert used(sizes=[{"limit": 1}]) - least == {"size"}
    assert used(evaluate={"drift": True}) - least == {"drift"}


def test_results_of_an_unknown_kind_can_still_be_read(folder, tmp_path, size_kind, no_report):
    compare(study(folder, sizes=[{"limit": 1}]), tmp_path / "out", progress=False, backend=World().backend())
    JOB_KINDS.entries.pop("size")
    page = markdown(StudyResults.load(tmp_path / "out" / "results.json"))
    JOB_KINDS.entries["size"] = size_kind
    assert "## size" in page and "| method | file size |" in page


def test_an_unknown_section_proposes_those_of_kinds(folder):
    with pytest.raises(UserError, match=r"unknown key 'checkpoint'\. Did you mean 'checkpoints'\?"):
        StudyConfig.of(study(folder, checkpoint=["x"]))
