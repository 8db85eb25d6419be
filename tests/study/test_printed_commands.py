"""Every command that a study prints runs: those of its report for each outcome, of its cards, and the last line."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from scripts import site_hooks
from typer.testing import CliRunner

from acclimate.base.registry import import_plugin
from acclimate.cli.main import app
from acclimate.report import markdown
from acclimate.report.next_steps import next_steps
from acclimate.results.scores import HELPED, HURT, NO_DIFFERENCE, NOT_LEARNED, WITHHELD
from acclimate.results.study import Failure
from acclimate.study.compare import compare
from tests.printed import PLACEHOLDER, check, printed, run
from tests.report.full import with_comparison
from tests.study.fakes import World, study
from tests.tiny import TEXTS, save_tiny

SAMPLES = {"TEXT": "text.txt", "GENERAL": "text.txt", "TASK": "tickets.csv", "DATA": "tickets.csv"}


def outcomes(results):
    """Yield results with each verdict on every comparison, of scores and of losses alone."""
    losses = [row for row in results.losses if row.difference]
    for verdict in (HELPED, HURT, NO_DIFFERENCE, WITHHELD, NOT_LEARNED):
        rows = [
            with_comparison(row, verdict=verdict, p_holm=0.01) if row.comparison else row for row in results.scores
        ]
        yield replace(results, scores=rows)
        changed = [replace(row, difference=replace(row.difference, verdict=verdict)) for row in losses]
        yield replace(results, scores=[], losses=changed)
    yield replace(results, failures=[Failure(job="x", error="y", state="failed")])


def commands_of(results, folder):
    """Return the commands of the report for every outcome, and those of the cards."""
    steps = [step for one in outcomes(results) for step in next_steps(one, folder)]
    cards = [command for card in sorted(folder.rglob("README.md")) for command in printed(card.read_text())]
    return list(dict.fromkeys([*(command for step in steps for command in step.commands), *cards]))


def write_files(folder: Path) -> None:
    (folder / "text.txt").write_text("\n".join(f"{text} {n}" for text in TEXTS for n in range(6)))
    rows = [f'"{TEXTS[n % 8]} {n}",{("food", "paper")[n % 2]}' for n in range(60)]
    (folder / "tickets.csv").write_text("\n".join(["body,queue", *rows]))


def test_the_commands_of_a_report_can_start(no_report, folder, tmp_path, monkeypatch):
    """With a study that has another name than its folder, in memory, with a plugin, from another folder."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    (tmp_path / "printed_plugin.py").write_text("NOTHING = 1\n")
    import_plugin(tmp_path / "printed_plugin.py")
    values = study(folder, methods=["none", "mlm"], name="my ablation", adapt_seeds=[0, 1, 2], keep="best")
    results = compare(values, "runs/a study", progress=False, backend=World().backend())
    found = commands_of(results, Path("runs/a study"))
    assert len(found) > 12 and any("--plugin 'runs/a study/plugins/printed_plugin.py'" in command for command in found)
    check(found, SAMPLES)
    shown = printed(markdown(results, Path("runs/a study")))
    assert shown and set(shown) <= set(found)
    named = [sorted(set(PLACEHOLDER.findall(command))) for command in found]
    assert {tuple(names) for names in named} == {(), ("DATA",), ("TASK",), ("TEXT",), ("NAME",)}


@pytest.mark.slow
def test_published_reports_name_no_folder_of_the_machine_that_made_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    save_tiny("bert", tmp_path / "OUT" / "model")
    (tmp_path / "OUT" / "study.yaml").write_text("models: [a]\n")
    samples = {**SAMPLES, "MODEL": "OUT/model"}
    for results in map(site_hooks.with_placeholders, site_hooks.studies().values()):
        assert not re.search(r'"(/|\.\./|docs/|runs/)', json.dumps(results.config))
        for entry in results.adaptations:
            (tmp_path / "OUT" / entry.folder).mkdir(parents=True, exist_ok=True)
        found = [command for step in next_steps(results, Path("OUT")) for command in step.commands]
        check([command for command in found if "roberta-base" not in command], samples)
    text = "\n".join(page.read_text(encoding="utf-8") for page in site_hooks.RESULTS.glob("*/README.md"))
    files = re.findall(r"acclimate compare (\S+)", text)
    assert len(files) > 2 and all((site_hooks.ROOT / file).is_file() for file in files)


@pytest.mark.slow
def test_all_commands_of_a_study_run_as_they_are_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    save_tiny("bert", tmp_path / "model", max_position_embeddings=160)
    words = ["--model", "model", "--corpus", "text.txt", "--general", "text.txt", "--task", "tickets.csv:body"]
    words += ["--label-column", "queue", "--seeds", "2", "--no-tune", "--no-advice", "--keep", "best", "--quiet"]
    small = {"adapt.steps": 2, "adapt.max_length": 24, "finetune.epochs": 1, "finetune.max_length": 24, "probe": False}
    small |= {"evaluate.documents": 5, "evaluate.max_length": 24, "general": "null"}
    words += [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    made = CliRunner().invoke(app, ["compare", *words[:4], *words[6:], "--out", "runs/tickets"])
    assert not made.exit_code, made.output
    (last,) = printed(made.output)
    assert shlex.split(last)[:4] == ["acclimate", "predict", "--model", "runs/tickets/kept/tickets/base"]
    from acclimate.results.study import StudyResults

    results = StudyResults.load(Path("runs/tickets/results.json"))
    found = [last, *commands_of(results, Path("runs/tickets"))]
    for command in dict.fromkeys(found):
        Path("predictions.csv").unlink(missing_ok=True)
        fresh = command.startswith("acclimate compare --model")  # a study of its own, with the defaults
        own = ["--label-column", "queue"] if "--task TASK" in command else []
        named = {**SAMPLES, "TASK": "tickets.csv:body", "DATA": "tickets.csv"}
        more = [word for name, value in small.items() for word in ("--set", f"{name}={value}")] if fresh else []
        run([command], named, *own, *more)
