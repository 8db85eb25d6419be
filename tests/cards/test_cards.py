"""Model cards: metadata that the Hub can read, method, training, data and results."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from huggingface_hub import ModelCard

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.adaptation.pretrain import pretrain
from acclimate.cards.card import Origin, display_name, escape_markdown, find_origin, format_bytes, hub_name
from acclimate.cards.results import eval_results
from acclimate.cards.writers import summarize_sources, task_model_name, write_adapted_card
from acclimate.data.documents import Corpus
from acclimate.models.kinds import MASKED
from acclimate.models.loading import load_language_model
from acclimate.results.scores import Comparison, Comparisons, Interval, LossRow, MetricSummary, ScoreRow
from acclimate.results.study import StudyResults
from acclimate.tasks.finetune import finetune
from tests.tiny import TEXTS

OPTIONS = {"steps": 2, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}


def card(folder) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def rows(text, title):
    """Return the cells of all table rows of a section."""
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [cells for cells in lines if not set("".join(cells)) <= set("-")]


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "secret place" / "reviews.txt"
    file.parent.mkdir()
    file.write_text("\n".join(f"{text} {number}" for text in [*TEXTS, TEXTS[0]] for number in (1, 2)))
    return file


@pytest.mark.needs("dga")
def test_an_adapted_model(tiny_bert, text_file, tmp_path):
    adapt(tiny_bert, text_file, get("dga", importance_tokens=100), tmp_path / "out", **OPTIONS)
    made = card(tmp_path / "out")
    assert made.data.pipeline_tag == "fill-mask" and {"acclimate", "dga"} <= set(made.data.tags)
    assert made.data.base_model is None and made.data.eval_results is None
    assert "Ke et al., EMNLP 2022" in made.text and "Not evaluated" in made.text
    assert ["importance\\_tokens", "100"] in rows(made.text, "Method")
    assert ["steps", "2"] in rows(made.text, "Training")
    assert f"1 file, {text_file.stat().st_size} bytes, " in made.text
    written = [(tmp_path / "out" / name).read_text() for name in ("README.md", "acclimate.json")]
    assert not any("reviews.txt" in text or "secret place" in text for text in written)  # names can be private
    assert "2 duplicates removed" in made.text
    assert Corpus(text_file).fingerprint in made.text
    assert "secret place" not in made.content  # local paths are private
    assert "AutoModelForMaskedLM.from_pretrained('out')" in made.text


@pytest.mark.needs("tapter")
def test_file_parameters_are_named_without_their_folder(tiny_bert, text_file, tmp_path):
    words = text_file.parent / "rare words.txt"
    words.write_text("menu\n")
    vectors = text_file.parent / "wiki.npy"
    np.save(vectors, np.ones((len(load_language_model(tiny_bert).tokenizer), 8), dtype=np.float32))
    method = get("tapter", vectors=str(vectors), stop_words=str(words))
    adapt(tiny_bert, text_file, method, tmp_path / "out", **OPTIONS)
    made = card(tmp_path / "out")
    shown = rows(made.text, "Method")
    assert ["vectors", "wiki.npy"] in shown and ["stop\\_words", "rare words.txt"] in shown
    assert "secret place" not in made.content


@pytest.mark.needs("adapter")
def test_a_model_with_custom_modules_has_loading_instructions(tiny_bert, text_file, tmp_path):
    adapt(tiny_bert, text_file, "adapter", tmp_path / "out", **OPTIONS)
    text = card(tmp_path / "out").text
    assert "needs acclimate" in text and "load_language_model" in text and "AutoModelForMaskedLM" not in text


@pytest.mark.needs("ensemble")
def test_a_fine_tuned_model_with_custom_modules_loads_as_its_card_says(
    tiny_bert, text_file, tmp_path, task, monkeypatch
):
    adapt(tiny_bert, text_file, "ensemble", tmp_path / "out", **OPTIONS)
    tuned = tmp_path / "tuned"
    finetune(tmp_path / "out", task, epochs=1, out=tuned, progress=False, precision="fp32")
    code = re.search(r"Load this folder with\n\n(.*?)\n\nor pass", card(tuned).text, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(textwrap.dedent(code), names)
    assert type(names["model"]).__name__ == "BertForSequenceClassification"
    assert names["model"].config.id2label == {0: "no", 1: "yes"}


@pytest.mark.needs("tapt")
def test_all_stages_list_their_text(tiny_bert, text_file, tmp_path, task):
    adapt(tiny_bert, text_file, get("dapt+tapt", task_steps=1), tmp_path / "out", task=task, **OPTIONS)
    text = card(tmp_path / "out").text
    data = text.split("## Data\n")[1].split("\n## ")[0]
    assert data.count("hash of all") == 2 and "8 documents" in data and "1 file, " in data


def test_a_model_from_scratch(text_file, tmp_path):
    options = {**OPTIONS, "architecture": "bert", "size": "tiny", "vocab_size": 90}
    pretrain(text_file, tmp_path / "out", changes={"max_position_embeddings": 64}, **options)
    made = card(tmp_path / "out")
    assert "trained from scratch" in made.text and made.data.base_model is None


@pytest.fixture
def task(tmp_path):
    folder = tmp_path / "polarity"
    folder.mkdir()
    lines = [json.dumps({"text": text, "label": "no" if n % 2 else "yes"}) for n, text in enumerate(TEXTS)]
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_fine_tuned_model(tiny_bert, task, tmp_path):
    result = finetune(tiny_bert, task, out=tmp_path / "out", epochs=1, max_length=24, progress=False)
    made = card(tmp_path / "out")
    assert made.data.pipeline_tag == "text-classification"
    found = {entry.metric_name: entry for entry in made.data.eval_results}
    assert found["macro f1"].metric_value == pytest.approx(result.metrics["macro_f1"], abs=1e-4)
    assert found["macro f1"].metric_type == "f1" and found["macro f1"].dataset_name == "polarity"
    assert ["test", "8"] in rows(made.text, "Data") and "one model with seed 0" in made.text
    low, high = (found["macro f1"].metric_args[end] for end in ("low", "high"))
    assert 0 <= low <= result.metrics["macro_f1"] <= high <= 1 and low < high
    shown = [f"{100 * value:.1f}" for value in (result.metrics["macro_f1"], low, high)]
    assert ["macro\\_f1", *shown] in rows(made.text, "Results")
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == result.steps
    mean = sum(line["loss"] for line in log) / len(log)  # short runs log every step
    assert len(log) == result.steps and mean == pytest.approx(result.train_loss, rel=1e-5)


SCORE = MetricSummary(mean=0.71234, sd=0.012, by_seed=[0.7, 0.72])
ENTRY = Comparison(
    **{"difference": 0.0213, "low": 0.004, "high": 0.0386, "p": 0.02, "p_holm": 0.04, "verdict": "helped"},
    **{"before": 0.69, "after": 0.7113, "p_models": 0.01},
)
LOSS = Interval(difference=0.12, low=0.1, high=0.14, p=0.0, verdict="helped")
PLACE = {"model": "bert", "domain": "cs", "method": "mlm"}
RESULTS = StudyResults(
    name="s",
    title="a | study",
    baseline="none",
    scores=[
        ScoreRow(
            **{**PLACE, "task": "My task", "metric": "macro_f1", "test_items": 50},
            summaries={"macro_f1": SCORE},
            difference=Comparisons(seeds=[0, 1], metrics={"macro_f1": ENTRY}),
        )
    ],
    losses=[
        LossRow(**PLACE, text="general", before=2.0, nats=2.12, difference=LOSS, texts=40),
        LossRow(**PLACE, text="domain", before=3.0, nats=2.5, difference=LOSS, texts=20),
    ],
    notes=["A note."],
)


def test_results_of_a_study_are_in_the_card_and_in_the_model_index(tiny_bert, text_file, tmp_path):
    adapt(tiny_bert, text_file, "mlm", tmp_path / "out", **OPTIONS)
    write_adapted_card(tmp_path / "out", "my-model", RESULTS)
    made = card(tmp_path / "out")
    (line,) = rows(made.text, "Results")[1:]
    assert line == ["My task", "macro\\_f1", "71.2 ± 1.2", "2", "+2.1", "+0.4 to +3.9", "helped", "0.040"]
    assert ["general text", "2.000", "2.120", "+0.120", "+0.100 to +0.140"] in rows(
        made.text, "Held-out loss and forgetting"
    )
    assert "A note." in made.text and "a \\| study" in made.text
    assert made.data.model_name == "my-model"
    score, general, domain = made.data.eval_results
    assert (score.task_type, score.dataset_type, score.metric_type) == ("text-classification", "my-task", "f1")
    assert score.metric_value == 0.7123
    assert score.metric_args["difference_to"] == "none" and score.metric_args["low"] == 0.004
    assert (general.metric_type, general.metric_value, general.metric_args["before"]) == ("loss", 2.12, 2.0)
    assert domain.dataset_name == "cs, held-out text"
    head = made.data.to_dict()["model-index"]
    assert head[0]["name"] == "my-model" and len(head[0]["results"]) == 3


def test_missing_measurements_are_reported(tiny_bert, text_file, tmp_path):
    adapt(tiny_bert, text_file, "mlm", tmp_path / "out", **OPTIONS)
    write_adapted_card(tmp_path / "out", "m", replace(RESULTS, losses=[]))
    assert "Forgetting of general text was not measured." in card(tmp_path / "out").text
    assert [entry["metric_type"] for entry in eval_results(replace(RESULTS, losses=[]), MASKED)] == ["f1"]


def test_license_languages_and_base_model_come_from_the_base_model(tiny_bert, text_file, task, tmp_path, monkeypatch):
    """From the card in its folder, or of its folder in the cache of the Hub; an adapted model passes on its own."""
    head = "---\nlicense: apache-2.0\nlanguage:\n- en\nbase_model: {}\n---\n# A model\n"
    base = tmp_path / "hub" / "models--org--tiny-bert" / "snapshots" / "abc"
    shutil.copytree(tiny_bert, base)
    (base / "README.md").write_text(head.format("org/other"))
    adapt(base, text_file, "lm", tmp_path / "out", **OPTIONS)
    finetune(tmp_path / "out", task, out=tmp_path / "tuned", epochs=1, max_length=24, progress=False)
    for name in ("out", "tuned"):
        data = card(tmp_path / name).data
        assert (data.license, data.language, data.base_model) == ("apache-2.0", ["en"], "org/tiny-bert")
    local = tmp_path / "local"
    local.mkdir()
    assert find_origin(None) == find_origin(str(local)) == Origin()
    (local / "config.json").write_text('{"_name_or_path": "roberta-base"}')
    assert find_origin(str(local)) == Origin(base_model="roberta-base")
    (local / "README.md").write_text("---\nlicense: [\n---\n")  # cannot be parsed
    assert find_origin(str(local)) == Origin(base_model="roberta-base")
    (local / "README.md").write_text(head.format("org/other"))
    assert find_origin(str(local)) == Origin("org/other", "apache-2.0", language=["en"])
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: str(local / file))
    assert find_origin("org/name") == Origin("org/name", "apache-2.0", language=["en"])
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: None)
    assert find_origin("org/name") == Origin("org/name")


def test_the_steps_of_a_card_run(tiny_bert, text_file, task, tmp_path, monkeypatch):
    adapt(tiny_bert, text_file, "lm", tmp_path / "out", **OPTIONS)
    finetune(tiny_bert, task, out=tmp_path / "seed-1", epochs=1, max_length=24, progress=False)
    monkeypatch.chdir(tmp_path)
    for name in ("out", "seed-1"):
        code = re.findall(r"```python\n(.*?)```", card(tmp_path / name).text, re.DOTALL)
        assert len(code) == 2
        for block in code:
            exec(block, {"print": lambda *values: None})
    text = card(tmp_path / "out").text
    assert "acclimate finetune --model out --task TASK" in text
    assert "# out\n" in text and "-polarity-seed-1\n" in card(tmp_path / "seed-1").text


def test_the_card_of_a_sentence_encoder_encodes(tiny_bert, text_file, tmp_path):
    adapt(tiny_bert, text_file, "lm", tmp_path / "out", **OPTIONS)
    (tmp_path / "out" / "modules.json").write_text("[]")
    write_adapted_card(tmp_path / "out", "out")
    made = card(tmp_path / "out")
    assert (made.data.library_name, made.data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert "SentenceTransformer('out')" in made.text and "acclimate finetune" not in made.text


def test_what_is_kept_of_sources():
    rows = [{"name": "/home/me/a.txt", "bytes": 3}, {"name": "hf:org/data:train", "bytes": None}]
    assert summarize_sources(rows) == {"files": 1, "bytes": 3, "datasets": ["org/data"]}
    assert summarize_sources([{"name": "a"}, {"name": "b"}]) == {"files": 2, "bytes": None, "datasets": []}
    assert task_model_name("org/bert base", "my task", "seed-12") == "bert-base-my-task-seed-12"
    assert task_model_name("bert", "a", "tuned") == "bert-a"


def test_names_and_sizes(tmp_path):
    assert hub_name("roberta-base") == "roberta-base" and hub_name("org/name") == "org/name"
    assert hub_name(str(tmp_path)) is None and hub_name("./x") is None and hub_name("a/b/c") is None
    assert display_name(str(tmp_path / "model")) == "model"
    assert [format_bytes(count) for count in (None, 12, 1500, 2_000_000, 3_500_000_000)] == [
        *(None, "12 bytes", "1.5 kB", "2.0 MB", "3.5 GB")
    ]
    assert escape_markdown("<b>a|b</b>\n# c") == "\\<b\\>a\\|b\\</b\\> \\# c"
