"""Studies without a file: ``compare`` and ``init`` with a model, text and tasks."""

from __future__ import annotations

import os
import sys

import pytest
import yaml

from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.results.study import StudyResults
from acclimate.study.config import StudyConfig
from acclimate.study.described import init
from acclimate.study.draft import draft_study
from acclimate.study.options import InitOptions
from tests.cases import each
from tests.study.fakes import World, files
from tests.test_cli import call


@pytest.fixture
def world(monkeypatch, no_report):
    world = World()
    monkeypatch.setattr(sys.modules["acclimate.study.compare"], "Backend", world.backend)
    return world


@pytest.fixture
def described(folder, monkeypatch):
    """Options with relative paths, from the folder of the files."""
    monkeypatch.chdir(folder)
    return ["--model", "model", "--corpus", "cs.txt", "--task", "intent", "--seeds", 2, "--tokens", 5000]


@pytest.mark.needs("dga")
def test_one_line_runs_a_study_whose_file_goes_on(world, described, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    code, shown, err = call(monkeypatch, capsys, "compare", *described, "--methods", "mlm,dga", "--out", out)
    assert code == 0 and f"acclimate compare {out / 'study.yaml'} --out {out}" in shown
    assert "2 % of the documents of the corpus" in err and "forgetting is not measured" in err
    adapted = [one["method"] for one in world.arguments if one["kind"] == "adapt"]
    assert sorted(adapted) == ["dga", "dga", "mlm", "mlm"] and world.calls["finetune"] == 6 + 3
    searched = [one["learning_rate"] for one in world.arguments if one["kind"] == "finetune" and one["seed"] == 2]
    assert searched == [5e-5, 1e-4, 2e-4]  # of the base model, with a seed that is not scored
    config = StudyConfig.load(out / "study.yaml")
    assert (config.row_labels, config.seeds, config.adapt.tokens) == (["none", "mlm", "dga"], [0, 1], 5000)
    done = world.calls.total()
    monkeypatch.chdir(tmp_path)  # the file works from anywhere
    code, _, err = call(monkeypatch, capsys, "compare", out / "study.yaml", "--out", out)
    assert code == 0 and world.calls.total() == done, err


def test_the_domain_is_described_before_training(world, described, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    command = ["compare", *described, "--methods", "mlm", "--general", "general.txt", "--out", tmp_path / "out"]
    code, _, err = call(monkeypatch, capsys, *command)
    lines = err.splitlines()
    (said,) = [number for number, line in enumerate(lines) if "before training: " in line]
    assert code == 0 and "294 documents with about 120,000 tokens, little text. The base model predicts" in lines[said]
    assert said < next(number for number, line in enumerate(lines) if "adapt · " in line)
    assert "No dev or test text was found" in err
    (asked,) = world.advised
    assert len(asked["documents"]) == 294 and len(asked["held_out"]) == 6 and len(asked["general"]) == 80
    results = StudyResults.load(tmp_path / "out" / "results.json")
    (table,) = [table for table in results.tables if table.title == "Before training"]
    (row,) = table.rows
    assert dict(zip(table.columns, row, strict=True))["95 % interval"] == "+0.250 to +0.750"
    assert table.note in lines[said]
    assert call(monkeypatch, capsys, *command)[0] == 0 and len(world.advised) == 1
    # The file of an earlier version has no such measurement, and is resumed as it is.
    path = tmp_path / "out" / "study.yaml"
    path.write_text(path.read_text().replace("evaluate:\n  advice: true\n", ""))
    for arguments in ([], ["--no-advice"]):
        assert call(monkeypatch, capsys, *command, *arguments)[0] == 0 and len(world.advised) == 1
    assert not StudyConfig.load(path).evaluate.advice


def test_text_that_cannot_be_measured_before_training_stops_nothing(world, described, tmp_path, monkeypatch, capsys):
    world.fail_on["advice"] = UserError("The loss needs at least two documents.")
    code, _, err = call(monkeypatch, capsys, "compare", *described, "--methods", "mlm", "--out", tmp_path / "out")
    assert code == 0 and "before training: Not measured: The loss needs" in " ".join(err.split())
    assert StudyResults.load(tmp_path / "out" / "results.json").tables[0].rows == []
    assert "Not measured: The loss needs" in (tmp_path / "out" / "results.md").read_text()


def test_held_out_documents_are_not_adapted_to(world, described, tmp_path, monkeypatch, capsys):
    call(monkeypatch, capsys, "compare", *described, "--methods", "mlm", "--out", tmp_path / "out", "--quiet")
    read = {text for one in world.arguments if one["kind"] == "adapt" for text in one["documents"]}
    measured = {text for one in world.arguments if one["kind"] == "lm_loss" for text in one["texts"]}
    assert measured and len(read | measured) == 300 and not read & measured


def test_the_same_line_resumes_and_another_is_refused(world, described, tmp_path, monkeypatch, capsys):
    command = ["compare", *described, "--methods", "mlm", "--out", tmp_path / "out", "--quiet"]
    assert call(monkeypatch, capsys, *command)[0] == 0
    done = world.calls.total()
    assert call(monkeypatch, capsys, *command)[0] == 0 and world.calls.total() == done
    code, _, err = call(monkeypatch, capsys, *command, "--set", "finetune.epochs=1")
    assert code == 2 and "study.yaml' describes another study" in err and len(err.splitlines()) == 1


def test_a_mistake_leaves_no_study_file_that_refuses_the_corrected_line(
    world, described, tmp_path, monkeypatch, capsys
):
    command = ["compare", *described, "--methods", "mlm", "--out", tmp_path / "out", "--quiet"]
    code, _, err = call(monkeypatch, capsys, *command, "--general", "generla.txt", "--heldout", "held.txt")
    assert code == 2 and "2 problems" in err and not (tmp_path / "out").exists()
    assert call(monkeypatch, capsys, *command, "--general", "general.txt")[0] == 0
    assert (tmp_path / "out" / "study.yaml").exists()


def test_without_a_task_only_losses_are_compared(world, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    command = ["compare", "--model", "model", "--corpus", "cs.txt", "--heldout", "heldout.txt", "--methods", "mlm"]
    code, _, err = call(monkeypatch, capsys, *command, "--general", "general.txt", "--out", tmp_path / "out")
    assert code == 0, err
    assert "only the loss of the language model" in err and "reads the corpus once" in err and "drawn" not in err
    assert world.calls["adapt"] == 3 and not world.calls["finetune"]


@each(
    ("arguments", "message"),
    [
        (["compare", "--out", "o"], "STUDY is required: YAML or TOML file that describes the study."),
        (["compare", "s.yaml", "--out", "o", "--no-advice"], "the study: remove --no-advice, or the"),
        (["compare", "s.yaml", "--out", "o", "--model", "m"], "already describes the study: remove --model, or the"),
        (["compare", "s.yaml", "--out", "o", "--label-column", "l"], "remove --label-column, or the file"),
        (["compare", "--out", "o", "--model", "m"], "--corpus is missing"),
        (["compare", "--out", "o", "--model", "m", "--corpus", "c", "--methods", "lmm"], "Did you mean 'lm'?"),
        (["init", "s.yaml", "--corpus", "c"], "--model is missing"),
        (["init", "s.toml", "--model", "m", "--corpus", "c.txt"], "ends in .yaml"),
        (["init", "s.yaml", "--model", "m", "--corpus", ""], "--corpus must not be empty"),
        (["init", "--model", "m", "--corpus", "c"], "STUDY is required"),
        (["init", "s.yaml", "--recipe", "sentiments"], "Unknown recipe 'sentiments'. Did you mean 'sentiment'?"),
        (["init", "s.yaml", "--recipe", "sentiment", "--seeds", "3"], "remove seeds, and change the file"),
        (["compare", "s.yaml", "--out", "o", "--report-to", "tensorbord"], "Unknown tracker 'tensorbord'."),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").touch()
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2 and message in err and len(err.splitlines()) == 1
    assert os.listdir(tmp_path) == ["c.txt"]


@pytest.mark.needs("dga", "kd")
def test_init_writes_a_file_and_never_over_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(files(tmp_path / "files"))
    path = tmp_path / "study.yaml"
    command = [
        "init",
        path,
        "--model",
        "model",
        "--model",
        "bert-base-uncased",
        "--corpus",
        "hf:imdb:plain_text:train",
    ]
    assert call(monkeypatch, capsys, *command, "--corpus", "cs.txt")[0] == 0
    study = yaml.safe_load(path.read_text())
    assert study["models"] == [str(tmp_path / "files" / "model"), "bert-base-uncased"]
    assert study["domains"][0]["corpus"] == ["hf:imdb:plain_text:train", str(tmp_path / "files" / "cs.txt")]
    assert StudyConfig.load(path).row_labels == ["none", "lm"]
    code, _, err = call(monkeypatch, capsys, *command)
    assert code == 2 and "describes another study" in err
    assert yaml.safe_load(path.read_text()) == study
    assert init(tmp_path / "b.yaml", model="model", corpus="cs.txt:body", methods=["lm,dga", "kd"]).is_file()
    domain = StudyConfig.load(tmp_path / "b.yaml").domains[0]
    assert (domain.name, domain.corpus) == ("cs", [str(tmp_path / "files" / "cs.txt:body")])


@each(
    ("source", "name"),
    [("a/reviews.jsonl.gz", "reviews"), ("a/*.txt", "domain"), ("a/reviews/", "reviews"), ("hf:imdb", "imdb")],
)
def test_the_domain_is_named_after_its_text(source, name):
    study = draft_study(build(InitOptions, "s.yaml", model="m", corpus=source))
    assert study["domains"][0]["name"] == name and study["title"] == f"m adapted to {name}"


def test_a_task_is_a_file_with_named_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"model": "m", "corpus": "c.txt", "task": ["reviews.csv:title", "hf:glue:mrpc"]}
    study = draft_study(build(InitOptions, "s.yaml", label_column="queue", **given))
    first, second = StudyConfig.of(study).domains[0].tasks
    assert (first.path, first.name) == (str(tmp_path / "reviews.csv:title"), "reviews")
    assert (second.path, second.name) == ("hf:glue:mrpc", "glue-mrpc")
    assert first.label_column == second.label_column == "queue"
    study = draft_study(build(InitOptions, "s.yaml", **given), {"domains.0.tasks.reviews.label_column": "queue"})
    assert [task.label_column for task in StudyConfig.of(study).domains[0].tasks] == ["queue", None]


@pytest.mark.needs("relations")
def test_files_of_methods_are_those_of_the_current_folder(tmp_path, monkeypatch):
    """The study file can be in any folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "codes.csv").write_text("text,code\n")
    methods = ["lm", "relations taxonomy=codes.csv level=2"]
    study = draft_study(build(InitOptions, "s.yaml", model="m", corpus="c.txt", methods=methods))
    none, lm, relations = StudyConfig.of(study).methods
    assert (none.name, lm.name, relations.name) == ("none", "lm", "relations")
    assert relations.parameters["taxonomy"] == str(tmp_path / "codes.csv") and int(relations.parameters["level"]) == 2


def test_a_draft_needs_a_model():
    with pytest.raises(UserError, match="--model is missing"):
        init("s.yaml", corpus="c")


def test_columns_of_the_task_are_in_the_study_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "labelled.csv").write_text("review,sentiment\n" + "".join(f"text {n},{n % 2}\n" for n in range(40)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("text\n")
    command = [
        "init",
        "s.yaml",
        "--model",
        "m",
        "--corpus",
        "c.txt",
        "--task",
        "labelled.csv:review",
        "--task",
        "hf:imdb",
    ]
    assert call(monkeypatch, capsys, *command, "--label-column", "sentiment", "--split-seed", 3)[0] == 0
    read = {"label_column": "sentiment", "split_seed": 3}
    tasks = yaml.safe_load((tmp_path / "s.yaml").read_text())["domains"][0]["tasks"]
    assert tasks == [{"path": f"{tmp_path}/labelled.csv:review", **read}, {"path": "hf:imdb", **read}]
    assert [task.name for task in StudyConfig.load(tmp_path / "s.yaml").domains[0].tasks] == ["labelled", "imdb"]


def test_init_names_every_file_that_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.csv").write_bytes("text\ngrößer\n".encode("cp1252"))
    (tmp_path / "t.csv").write_bytes("text,label\ngrößer,a\n".encode("cp1252"))
    command = ["init", "s.yaml", "--model", "./m", "--corpus", "c.csv", "--general", "g.txt", "--task", "u.csv"]
    code, _, err = call(monkeypatch, capsys, *command)
    assert code == 2 and len(err.splitlines()) == 1 and not (tmp_path / "s.yaml").exists()
    assert "3 problems" in err and "no model folder './m'" in err and "no file 'g.txt'" in err and "'u.csv'" in err
    command = ["init", "s.yaml", "--model", "m", "--corpus", "c.csv", "--task", "t.csv", "--encoding", "cp1252"]
    assert call(monkeypatch, capsys, *command)[0] == 0
    domain = StudyConfig.load(tmp_path / "s.yaml").domains[0]
    assert domain.corpus == [{"path": str(tmp_path / "c.csv"), "encoding": "cp1252"}]
    assert domain.tasks[0].encoding == "cp1252" and domain.name == "c"


def test_models_and_tasks_with_the_same_name_are_named_by_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/intent.csv", "b/intent.csv", "b/intent.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text,label\n")
    places = ["a/intent.csv", "b/intent.csv", "b/intent.json", "hf:imdb"]
    options = build(InitOptions, "s.yaml", model=["x/adapted", "y/adapted"], corpus=["cs.txt"], task=places)
    study = StudyConfig.of(draft_study(options))
    assert [task.name for task in study.domains[0].tasks] == ["a-intent", "b-intent", "b-intent-2", "imdb"]
    assert [model.name for model in study.models] == ["x-adapted", "y-adapted"]


def test_all_that_is_missing_is_listed_at_once(described, monkeypatch, capsys, tmp_path):
    command = ["--corpus", "none.txt", "--task", "none.csv", "--methods", "lmm,dag", "--out", tmp_path / "o"]
    code, _, err = call(monkeypatch, capsys, "compare", "--model", "model", *command)
    assert code == 2 and all(part in err for part in ("4 problems", "'lmm'", "'dag'", "none.txt", "none.csv")), err
    code, _, err = call(monkeypatch, capsys, "compare", "--task", "intent", "--out", tmp_path / "o")
    assert code == 2 and "--model and --corpus are missing" in err


def test_columns_and_edits_apply_to_texts_and_tasks(tmp_path):
    """They are in the section of the adaptation and in each task; a task that names its own column keeps it."""
    given = {"text_column": ["subject", "body"], "clean": "html,quotes", "mask_personal": True, "encoding": "cp1252"}
    options = build(InitOptions, "s.yaml", model=["m"], corpus=["a.csv"], task=["b.csv", "c.csv:note"], **given)
    study = StudyConfig.of(draft_study(options))
    read = {"text_column": "subject,body", "clean": ("html", "quotes"), "mask_personal": True}
    assert read.items() <= study.adapt.given().items()
    for task in study.domains[0].tasks:
        assert {**read, "encoding": "cp1252"}.items() <= task.given().items()
    assert study.domains[0].corpus[0]["encoding"] == "cp1252" and study.domains[0].tasks[1].path.endswith("c.csv:note")


def test_a_recipe_becomes_the_study_file_with_its_own_name(tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "init", tmp_path / "own.yaml", "--recipe", "chat-model")
    assert code == 0 and f"acclimate compare {tmp_path / 'own.yaml'} --out" in out, err
    text = (tmp_path / "own.yaml").read_text()
    assert "chat-model.yaml" not in text and StudyConfig.load(tmp_path / "own.yaml").evaluate.documents
    assert call(monkeypatch, capsys, "init", tmp_path / "own.yaml", "--recipe", "chat-model")[0] == 0
    code, _, err = call(monkeypatch, capsys, "init", tmp_path / "own.yaml", "--recipe", "few-shot")
    assert code == 2 and "describes another study" in err and (tmp_path / "own.yaml").read_text() == text
