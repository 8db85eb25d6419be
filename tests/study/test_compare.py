"""A study runs every job once, survives interruptions and failures, and writes results and a report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from acclimate.base.errors import UserError
from acclimate.base.registry import import_plugin
from acclimate.report.next_steps import next_steps
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.study.fakes import World, study

JOBS = 2 + 6 + 9  # adaptations, losses, fine-tunings


def calls(world: World) -> int:
    return sum(world.calls[kind] for kind in ("adapt", "lm_loss", "finetune"))


@pytest.mark.needs("dga")
def test_results_and_files(folder, tmp_path, capsys):
    world = World()
    results = compare(study(folder), tmp_path / "out", backend=world.backend())
    assert calls(world) == JOBS
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results.to_dict()
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert len(list((tmp_path / "out" / "jobs").glob("*.json"))) == JOBS
    assert [row["method"] for row in results["scores"]] == ["none", "mlm", "dga, no contrast"]
    row = results["scores"][1]
    assert len(row["macro_f1"]["by_seed"]) == 3 and row["test_items"] == 120
    difference = row["difference"]["macro_f1"]
    assert difference["low"] <= difference["difference"] <= difference["high"]
    assert difference["p"] is None and "p_holm" not in difference  # one adaptation
    general = next(row for row in results["losses"] if row["text"] == "general" and row["method"] == "mlm")
    assert general["nats"] - general["before"] == pytest.approx(general["difference"]["difference"], abs=1e-9)
    assert general["percent"] == pytest.approx(100 * (general["nats"] / general["before"] - 1), abs=1e-6)
    assert results["adaptations"][0]["tokens"] == 200_000 and len(results["adaptations"][0]["curve"]) == 40
    output = capsys.readouterr()
    printed = " ".join(output.out.split())
    assert "mlm: no verdict" in printed and "Set adapt_seeds" in printed
    assert output.err.count("✓") == JOBS


@pytest.mark.parametrize(
    "after", [pytest.param(1, marks=pytest.mark.slow), 5, pytest.param(JOBS - 1, marks=pytest.mark.slow)]
)
def test_an_interrupted_study_resumes_and_repeats_no_finished_job(no_report, folder, tmp_path, after):
    whole = compare(study(folder), tmp_path / "whole", progress=False, backend=World().backend())
    killed = World()
    killed.die_after = after
    with pytest.raises(KeyboardInterrupt):
        compare(study(folder), tmp_path / "out", progress=False, backend=killed.backend())
    assert not (tmp_path / "out" / "results.json").exists()
    again = World()
    results = compare(study(folder), tmp_path / "out", progress=False, backend=again.backend())
    assert len(list((tmp_path / "out" / "jobs").glob("*.json"))) == JOBS
    done = results["jobs"]
    assert (done["done"], done["reused"]) == (calls(again), JOBS - calls(again))
    for key in ("scores", "losses", "adaptations"):
        assert results[key] == whole[key]
    third = World()
    compare(study(folder), tmp_path / "out", progress=False, backend=third.backend())
    assert calls(third) == 0


def test_the_folder_has_the_study_so_that_printed_commands_run(no_report, folder, tmp_path, monkeypatch):
    """Whatever the name of the study, where its file is, and from where the command is run."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    out = tmp_path / "out"
    plain = study(folder, methods=["none", "mlm"], name="my-ablation")
    (tmp_path / "own.py").write_text("def rate(text):\n    return 0\n")
    import_plugin(tmp_path / "own.py")
    file = tmp_path / "sub" / "a-study.yml"
    file.write_text(json.dumps(plain, default=str))
    compare(str(file), out, settings={"seeds": 2}, progress=False, backend=World().backend())
    assert (out / "plugins" / "own.py").read_text() == (tmp_path / "own.py").read_text()
    monkeypatch.chdir(tmp_path)
    again = World()
    results = compare(out / "study.yaml", out, progress=False, backend=again.backend())
    assert calls(again) == 0 and results.name == "my-ablation"
    commands = [command for step in next_steps(results, out) for command in step.commands]
    words = [shlex.split(command) for command in commands if command.startswith("acclimate compare")]
    assert words and all(Path(word).exists() for found in words for word in found if word.startswith("/"))
    assert all(found[2:5] == [str(out / "study.yaml"), "--plugin", str(out / "plugins" / "own.py")] for found in words)
    (out / "study.yaml").write_text("# mine\n" + (out / "study.yaml").read_text())
    compare(str(file), out, progress=False, backend=World().backend())
    assert (out / "study.yaml").read_text().startswith("# mine")


def test_another_method_adds_only_its_own_jobs(no_report, folder, tmp_path):
    compare(study(folder, methods=["none", "mlm"]), tmp_path / "out", progress=False, backend=World().backend())
    world = World()
    compare(study(folder), tmp_path / "out", progress=False, backend=world.backend())
    assert (world.calls["adapt"], world.calls["lm_loss"], world.calls["finetune"]) == (1, 2, 3)


def test_a_deleted_model_is_made_again_only_when_needed(no_report, folder, tmp_path):
    import shutil

    compare(study(folder), tmp_path / "out", progress=False, backend=World().backend())
    shutil.rmtree(tmp_path / "out" / "models")
    world = World()
    compare(study(folder), tmp_path / "out", progress=False, backend=world.backend())
    assert calls(world) == 0
    compare(study(folder, seeds=4), tmp_path / "out", progress=False, backend=world.backend())
    assert (world.calls["adapt"], world.calls["finetune"]) == (2, 3)


@pytest.mark.parametrize(
    "error", [pytest.param(UserError("The loss is nan."), marks=pytest.mark.slow), RuntimeError("out of\nmemory")]
)
def test_a_failed_job_does_not_stop_the_others(folder, tmp_path, error):
    world = World()
    world.fail_on["finetune intent"] = error
    domains = [
        {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(folder / "intent"), str(folder / "aspect")]}
    ]
    values = study(folder, domains=domains)
    with pytest.raises(UserError, match="9 of 26 jobs failed") as caught:
        compare(values, tmp_path / "out", progress=False, backend=world.backend())
    assert "\n" not in str(caught.value)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {row["task"] for row in results["scores"]} == {"aspect"}
    assert len(results["failures"]) == 9
    assert "Failed and missing jobs" in (tmp_path / "out" / "report.html").read_text()
    fixed = World()
    compare(values, tmp_path / "out", progress=False, backend=fixed.backend())
    assert calls(fixed) == 9


@pytest.mark.needs("dga")
def test_jobs_that_need_a_failed_adaptation_are_not_tried(no_report, folder, tmp_path):
    world = World()
    world.fail_on["adapt dga"] = UserError("The loss is nan at step 3.")
    with pytest.raises(UserError, match=r"1 of 17 jobs failed.*The loss is nan at step 3"):
        compare(study(folder), tmp_path / "out", progress=False, backend=world.backend())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["jobs"]["blocked"] == 5
    assert [row["method"] for row in results["scores"]] == ["none", "mlm"]


def test_a_missing_head_is_trained_first(no_report, folder, tmp_path):
    world = World(headless=True)
    results = compare(study(folder), tmp_path / "out", progress=False, backend=world.backend())
    first = world.arguments[0]
    assert (first["kind"], first["method"]) == ("adapt", "none")
    assert all(document.startswith("general") for document in first["documents"])
    measured = next(
        entry["texts"] for entry in world.arguments if entry["kind"] == "lm_loss" and "general" in entry["texts"][0]
    )
    assert not set(measured) & set(first["documents"])
    made = str(tmp_path / "out" / results["adaptations"][0]["folder"])
    later = [entry for entry in world.arguments[1:] if entry["kind"] == "adapt"]
    assert later and all(entry["model"] == made for entry in later)


@pytest.mark.needs("dga")
def test_parameters_reach_methods_and_settings_reach_tasks(no_report, folder, tmp_path):
    world = World()
    task = {"path": str(folder / "intent"), "epochs": 7, "few_shot": 16}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    compare(study(folder, domains=domains), tmp_path / "out", progress=False, backend=world.backend())
    dga = next(entry for entry in world.arguments if entry["kind"] == "adapt" and entry["method"] == "dga")
    assert dga["settings"] == {"contrast_weight": 0} and dga["tokens"] == 200_000 and dga["seed"] == 0
    tuned = next(entry for entry in world.arguments if entry["kind"] == "finetune")
    assert (tuned["epochs"], tuned["few_shot"]) == (7, 16)


@pytest.mark.needs("dga")
@each(
    ("changes", "message"),
    [
        ({"methods": ["none", "dgaa"]}, "Unknown method 'dgaa'. Did you mean 'dga'?"),
        ({"methods": ["none", {"name": "dga", "contrast": 1}]}, "contrast_weight"),
        ({"adapt": {"token": 5}}, "unknown key 'adapt.token'. Did you mean 'tokens'?"),
        ({"adapt": {"out": "x"}}, "'adapt': the study itself sets 'out'"),
        ({"general": "missing.txt"}, "missing.txt"),
        ({"models": ["./missing"]}, "There is no model folder './missing'"),
    ],
)
def test_mistakes_are_found_before_any_job_runs(folder, tmp_path, changes, message):
    world = World()
    with pytest.raises(UserError) as caught:
        compare(study(folder, **changes), tmp_path / "out", progress=False, backend=world.backend())
    assert message in str(caught.value)
    assert calls(world) == 0


def test_one_seed_no_general_text_no_tasks(folder, tmp_path, no_report):
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "heldout": str(folder / "heldout.txt")}]
    values = study(folder, domains=domains, methods=["mlm"], seeds=1)
    values.pop("general")
    results = compare(StudyConfig.of(values), tmp_path / "out", progress=False, backend=World().backend())
    assert results["scores"] == []
    assert [(row["text"], row["method"]) for row in results["losses"]] == [("domain", "mlm")]
    assert "before" in results["losses"][0]
