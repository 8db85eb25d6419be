"""Merges for which models are measured or divided: Fisher weights, greedy soups, selected experts, and layers."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from typer.testing import CliRunner

from acclimate import merge
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.cli import main as cli
from acclimate.data.task_kinds import load_task
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.merging.measuring import MeasuredTask, open_data
from acclimate.merging.methods.fisher import expected_terms, fisher_information, fisher_weighted, sampled_terms
from acclimate.merging.methods.greedy_soup import GreedySoup, greedy_soup
from acclimate.merging.options import MergeOptions, read_method
from acclimate.merging.weights import Checkpoint
from acclimate.tasks.finetune import finetune
from tests.cases import each
from tests.tasks.test_contract import SAMPLES, options_of, splits_of
from tests.tiny import TEXTS, save_tiny, tiny_tokenizer

FLOOR = 1e-6
"""Least Fisher information of a parameter, relative to the root mean square over the model."""

QUIET = {"progress": False}
LABELS = ["bad", "fine", "good"]


def state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def save_classifier(folder: Path, seed: int, labels: list[str] = LABELS) -> Path:
    """Save a BERT with random weights as a classifier."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.from_pretrained(save_tiny("bert", folder, seed))
    config.id2label, config.label2id = dict(enumerate(labels)), {name: place for place, name in enumerate(labels)}
    config.problem_type, config.initializer_range = "single_label_classification", 0.5
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "reviews"
    folder.mkdir()
    for split, count in (("train", 6), ("dev", 8), ("test", 3)):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            rows.writerows(zip((f"{text} {split}" for text in TEXTS[:count]), itertools.cycle(LABELS), strict=False))
    return folder


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("private")
    return [save_classifier(folder / f"m{seed}", seed) for seed in range(3)]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("text") / "domain.txt"
    file.write_text("\n".join(TEXTS))
    return file


def test_fisher_information_of_a_softmax_regression_equals_the_analytic_one():
    """For logits W x, the entry (c, j) of the diagonal is the mean of p_c (1 - p_c) x_j^2; sampling agrees."""
    generator = torch.Generator().manual_seed(0)
    inputs, layer = torch.randn(5, 4, generator=generator), torch.nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, 4, generator=generator))
    chance = layer(inputs).softmax(-1).detach()
    expected = torch.einsum("nc,nj->cj", chance * (1 - chance), inputs.square()) / len(inputs)
    rows = [lambda row=row: expected_terms(layer(row[None])) for row in inputs]
    torch.testing.assert_close(fisher_information(layer, rows)["weight"], expected)
    # the answers of all rows at once, as the predicted tokens of a text, many times
    draws = [lambda: sampled_terms(layer(inputs), generator)] * 700
    sampled = fisher_information(layer, draws)["weight"] / len(inputs)
    assert ((sampled - expected).abs() / expected.max()).max() < 0.15


def test_fisher_information_of_labels_and_numbers():
    layer, inputs = torch.nn.Linear(4, 3, bias=False), torch.randn(1, 4, generator=torch.Generator().manual_seed(1))
    chance = layer(inputs).sigmoid().detach()[0]
    found = fisher_information(layer, [lambda: expected_terms(layer(inputs), several=True)])["weight"]
    expected = torch.outer(chance * (1 - chance), inputs[0].square())
    torch.testing.assert_close(found, expected)
    number = torch.nn.Linear(4, 1, bias=False)
    found = fisher_information(number, [lambda: expected_terms(number(inputs))])["weight"]
    torch.testing.assert_close(found, inputs.square())
    generator = torch.Generator().manual_seed(2)
    draws = [lambda: sampled_terms(layer(inputs), generator, several=True)] * 700
    assert ((fisher_information(layer, draws)["weight"] - expected).abs() / expected.max()).max() < 0.15


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.floats(0.1, 3), min_size=1, max_size=4), seed=st.integers(0, 99), scale=st.floats(1e-9, 9))
def test_fisher_weights_equal_their_formula_and_equal_ones_give_the_mean(weights, seed, scale):
    rng = np.random.default_rng(seed)
    values, information = (rng.random((len(weights), 3, 2)).astype(np.float32) for _ in range(2))
    information[:, 0] = 0  # of no model: the plain mean
    information[0, 1] = 0  # of the first model alone, which then hardly counts

    def merged(measured):
        rule = fisher_weighted(
            weights, [lambda name, one=one: None if one is None else torch.tensor(one) for one in measured]
        )
        return rule("w", [lambda value=value: torch.tensor(value) for value in values]).numpy()

    shares = np.array(weights)[:, None, None] * np.maximum(information, FLOOR)
    np.testing.assert_allclose(merged(information), (shares * values).sum(0) / shares.sum(0), rtol=1e-4)
    mean = np.average(values, axis=0, weights=weights)
    np.testing.assert_allclose(merged(information)[0], mean[0], rtol=1e-4)
    for equal in ([np.full((5, 2), scale, dtype=np.float32)] * len(weights), [None] * len(weights)):
        np.testing.assert_allclose(merged(equal), mean, rtol=1e-4)


def slow_fisher(folder: Path, texts: list[str], wanted: str) -> np.ndarray:
    """Compute the Fisher information of a classifier text by text and class by class, relative to its norm."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    total = {name: 0.0 for name, _ in model.named_parameters()}
    for one in texts:
        for label in range(3):
            model.zero_grad()
            logs = model(**tiny_tokenizer()(one, return_tensors="pt")).logits.log_softmax(-1)[0]
            logs[label].backward()
            for name, value in model.named_parameters():
                total[name] = total[name] + float(logs[label].detach().exp()) * value.grad.double().numpy() ** 2
    every = np.concatenate([np.ravel(value) for value in total.values()])
    return np.maximum(total[wanted] / np.sqrt(np.mean(every**2)), FLOOR)


@pytest.mark.slow
def test_classifiers_are_merged_with_their_fisher_information(classifiers, task, tmp_path):
    merge(classifiers[:2], {"fisher": {"weights": [1, 3]}}, tmp_path / "out", data=task, documents=6, **QUIET)
    found, states = state(tmp_path / "out"), [state(folder) for folder in classifiers[:2]]
    train = [example.text for example in load_task(task).train]
    for name in ("classifier.weight", "bert.encoder.layer.0.attention.self.value.weight"):
        shares = [
            weight * slow_fisher(folder, train, name)
            for weight, folder in zip((0.25, 0.75), classifiers[:2], strict=True)
        ]
        values = [one[name].double().numpy() for one in states]
        expected = sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)
        np.testing.assert_allclose(found[name].numpy(), expected, atol=2e-4, err_msg=name)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Matena and Raffel" in card and "text-classification" in card
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []
    made = (tmp_path / "out" / "model.safetensors").stat().st_ino
    merge(classifiers[:2], {"fisher": {"weights": [1, 3]}}, tmp_path / "out", data=[task], documents=6, **QUIET)
    assert (tmp_path / "out" / "model.safetensors").stat().st_ino == made
    # the same model twice has the same information, so it stays as it is
    merge([classifiers[0], classifiers[0]], "fisher", tmp_path / "same", data=task, documents=2, **QUIET)
    for name, value in state(tmp_path / "same").items():
        torch.testing.assert_close(value, states[0][name], msg=name)


@pytest.mark.slow
def test_language_models_are_merged_with_their_fisher_information(text, tmp_path):
    for kind in ("bert", "llama"):
        models = [save_tiny(kind, tmp_path / f"{kind}{seed}", seed) for seed in (0, 1)]
        for name, seed in (("one", 0), ("again", 0), ("other", 1)):
            merge(models, {"fisher": {"seed": seed}}, tmp_path / kind / name, data=[text, text], documents=2, **QUIET)
        one, again, other = (state(tmp_path / kind / name) for name in ("one", "again", "other"))
        first, second = map(state, models)
        for name in one:
            assert torch.equal(one[name], again[name])
            low, high = torch.minimum(first[name], second[name]), torch.maximum(first[name], second[name])
            assert ((one[name] >= low - 1e-6) & (one[name] <= high + 1e-6)).all(), name
        assert any(not torch.equal(one[name], other[name]) for name in one)  # labels are drawn with the seed
        assert any(not torch.allclose(one[name], (first[name] + second[name]) / 2, atol=1e-4) for name in one)


def test_heads_of_other_tasks_are_not_merged(classifiers, task, tmp_path):
    other = save_classifier(tmp_path / "other", 5, ["no", "yes"])
    with pytest.raises(UserError, match="different labels"):
        merge([classifiers[0], other], "soup", tmp_path / "soup", **QUIET)
    base = save_tiny("bert", tmp_path / "base", 9)
    result = merge(
        [classifiers[0], other], {"task-arithmetic": {"weights": [0.5, -1]}}, tmp_path / "out", base=base, **QUIET
    )
    found, first, second, zero = map(state, (tmp_path / "out", classifiers[0], other, base))
    assert torch.equal(found["classifier.weight"], first["classifier.weight"])
    assert any("Kept as in" in note and "classifier" in note for note in result.notes)
    name = "bert.encoder.layer.1.output.dense.weight"
    expected = zero[name] + 0.5 * (first[name] - zero[name]) - (second[name] - zero[name])
    torch.testing.assert_close(found[name], expected)
    merge([other], "task-arithmetic", tmp_path / "default", base=base, **QUIET)
    torch.testing.assert_close(state(tmp_path / "default")[name], zero[name] + 0.4 * (second[name] - zero[name]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 99))
def test_a_greedy_soup_is_never_worse_than_its_best_model(scores, seed):
    rng = np.random.default_rng(seed)
    asked: dict[frozenset, float] = {}

    def score(kept):
        return asked.setdefault(frozenset(kept), float(rng.integers(0, 6)))

    soup = greedy_soup(scores, score)
    assert soup.score >= max(scores) and sum(soup.weights) == pytest.approx(1) and scores[soup.kept[0]] == max(scores)
    kept, best = [], -1.0  # Recipe 1 of the paper
    for number in sorted(range(len(scores)), key=lambda one: (-scores[one], one)):
        found = scores[number] if not kept else asked[frozenset([*kept, number])]
        if found >= best:
            kept, best = [*kept, number], found
    assert soup.kept == kept and soup.score == best


def test_each_mean_that_a_greedy_soup_measures_is_the_equal_mean_of_its_models():
    weights = [torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])]
    scores, measured, written = {"a": 3.0, "b": 2.0, "c": 1.0}, [], []

    def write(folder, rule):
        written.append(rule("weight", [lambda value=value: value for value in weights]))

    def score(model):
        if model in scores:
            return scores[model]
        measured.append(written[-1].tolist())
        return 4.0

    merger = SimpleNamespace(models=list(scores), write=write)
    context = SimpleNamespace(
        merger=merger, work=None, data=[SimpleNamespace(score=score, measure="accuracy", name="dev")]
    )
    rule, _ = GreedySoup().rule(context)
    assert measured == [[0.5, 0.5, 0.0], pytest.approx([1 / 3] * 3)]
    assert rule("weight", [lambda value=value: value for value in weights]).tolist() == pytest.approx([1 / 3] * 3)


def test_a_greedy_soup_is_selected_on_dev(classifiers, task, tmp_path):
    result = merge(classifiers, {"greedy-soup": {"metric": "accuracy"}}, tmp_path / "out", data=task, **QUIET)
    (note,) = (note for note in result.notes if "The soup has" in note)
    options = build(MergeOptions, classifiers, "greedy-soup", tmp_path, data=task)
    measured = MeasuredTask(load_task(task), options, "accuracy")
    scores = [measured.score(folder) for folder in classifiers]
    soup = measured.score(tmp_path / "out")
    assert soup >= max(scores) and f"soup {soup:.4f}" in note and "by accuracy on the dev split of 'reviews'" in note
    assert all(f"'{folder}' ({score:.4f}" in note for folder, score in zip(classifiers, scores, strict=True))
    assert "private" not in (tmp_path / "out" / "README.md").read_text()
    kept = [
        folder
        for folder in classifiers
        if f"'{folder}' (" in note and f"{folder}' ({scores[classifiers.index(folder)]:.4f}, left" not in note
    ]
    mean = sum(state(folder)["classifier.weight"] for folder in kept) / len(kept)
    torch.testing.assert_close(state(tmp_path / "out")["classifier.weight"], mean)


def test_the_splits_of_a_task_are_drawn_as_for_the_fine_tuning_of_the_models(classifiers, tmp_path):
    """Else a soup is selected on rows that the models have learned."""
    rows = [{"text": f"text {n}", "label": "ab"[n % 2], "patient": n // 5, "site": n % 30} for n in range(150)]
    path = tmp_path / "task.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for columns in ({}, {"group_column": "site"}, {"group_column": "patient", "split_seed": 3}):
        options = build(MergeOptions, ["a", "b"], "greedy-soup", tmp_path / "out", data=str(path), **columns)
        read = open_data(str(path), str(classifiers[0]), options)
        assert read.fingerprint() == load_task(path, **columns).fingerprint()


@pytest.mark.slow
def test_a_greedy_soup_of_language_models_lowers_the_loss(text, tmp_path):
    models = [save_tiny("llama", tmp_path / f"m{seed}", seed) for seed in range(3)]
    result = merge(models, "greedy-soup", tmp_path / "out", data=text, **QUIET)
    losses = [language_model_loss(model, TEXTS)["bits_per_byte"] for model in (tmp_path / "out", *models)]
    assert losses[0] <= min(losses[1:]) + 1e-6
    assert any("by negative bits per byte on the text" in note for note in result.notes)


def test_the_experts_of_a_domain_are_merged(text, tmp_path):
    models = [save_tiny("llama", tmp_path / f"m{seed}", seed) for seed in range(3)]
    losses = [language_model_loss(model, TEXTS)["bits_per_byte"] for model in models]
    best = sorted(models, key=lambda model: losses[models.index(model)])[:2]
    result = merge(models, "soup", tmp_path / "out", target=text, **QUIET)
    assert any("the best 2 of 3 models, by negative bits per byte" in note for note in result.notes)
    merge(best, "soup", tmp_path / "same", **QUIET)
    assert all(torch.equal(value, state(tmp_path / "same")[name]) for name, value in state(tmp_path / "out").items())
    manifest = json.loads((tmp_path / "out" / "acclimate.json").read_text())
    assert manifest["merged"] == [str(model) for model in best] and len(manifest["sources"]) == 3
    corpora = [["models of data and loss"] * 3, TEXTS, ["wine and cold soup"] * 3]
    merge(models, "soup", tmp_path / "alike", target=text, rank="similarity", corpora=corpora, top=1, **QUIET)
    assert all(torch.equal(value, state(models[1])[name]) for name, value in state(tmp_path / "alike").items())


@each("kind", ["bert", "xlm-roberta", "distilbert", "modernbert", "albert", "gpt2", "gemma3", "lfm2"])
def test_first_layers_and_the_rest_divide_a_model(tmp_path, kind):
    checkpoint = Checkpoint(save_tiny(kind, tmp_path / "model"), "model")
    if kind == "albert":
        with pytest.raises(UserError, match="share their weights"):
            checkpoint.first_layers(1)
        return
    parts = [checkpoint.first_layers(count) for count in range(3)]
    assert parts[0] < parts[1] < parts[2] <= set(checkpoint.stored)
    assert any("embed" in name or "wte" in name for name in parts[0])
    assert not any(".0." in name or ".1." in name for name in parts[0])
    assert all(".0." in name for name in parts[1] - parts[0]) and all(".1." in name for name in parts[2] - parts[1])
    assert not any("final" in name or "lm_head" in name or name == "model.norm.weight" for name in parts[2])
    with pytest.raises(UserError, match="has 2 layers"):
        checkpoint.first_layers(3)


def test_the_first_layers_of_another_domain_run_below_those_of_the_task(classifiers, tmp_path):
    domain = save_tiny("bert", tmp_path / "domain", 7)
    result = merge([classifiers[0], domain], "layers layers=1", tmp_path / "out", **QUIET)
    assert any("Left out" in note for note in result.notes)
    model, lower = (
        transformers.AutoModelForSequenceClassification.from_pretrained(classifiers[0]).eval(),
        transformers.AutoModel.from_pretrained(domain),
    )
    model.bert.embeddings, model.bert.encoder.layer[0] = lower.embeddings, lower.encoder.layer[0]
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(5, 90, (2, 9))
    torch.testing.assert_close(found(ids).logits, model.eval()(ids).logits)
    assert "layers" in (tmp_path / "out" / "README.md").read_text()


@each(
    ("given", "message"),
    [
        ({"method": "fisher", "models": ["a", "b"]}, "fisher needs labelled tasks or text to measure the models on"),
        ({"method": "fisher", "models": ["a", "b", "c"], "data": ["x", "y"]}, "one for each of the 3"),
        ({"method": "greedy-soup", "models": ["a", "b"], "data": ["x", "y"]}, "There are 2 --data; give one"),
        ({"method": "greedy-soup", "models": ["a"], "data": "x"}, "needs several models"),
        ({"method": "greedy-soup weights=1", "models": ["a", "b"], "data": "x"}, "Unknown parameter .* 'weights'"),
        ({"method": "layers"}, "layers needs two models, the second .*, not 1"),
        ({"method": "layers layers=-1"}, "parameter 'layers': .*greater than or equal to 0"),
        ({"method": "soup", "models": ["a", "b"], "top": 1}, "'top' is only read with 'target'"),
        ({"method": "soup", "models": ["a", "b"], "target": "t", "top": 3}, "there are 2 models to choose from"),
        ({"method": "soup weights=1,1", "models": ["a", "b"], "target": "t"}, "which selects the models"),
        (
            {"method": "soup", "models": ["a", "b"], "target": "t", "rank": "similarity"},
            "text of each of the 2 models",
        ),
        ({"method": "soup", "models": ["a", "b"], "target": "t", "corpora": "t"}, "only read with --rank similarity"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        read_method(build(MergeOptions, **{"models": "a", "out": "out", **given}))


def test_models_and_data_that_do_not_fit_are_refused(classifiers, task, text, tmp_path):
    other = save_classifier(tmp_path / "other", 5, ["no", "yes"])
    with pytest.raises(UserError, match="not a model of the task 'reviews'"):
        merge([classifiers[0], other], "fisher", tmp_path / "out", data=task, **QUIET)
    bare = save_tiny("bert", tmp_path / "bare")
    transformers.AutoModelForMaskedLM.from_pretrained(bare).bert.save_pretrained(bare)
    masked = save_tiny("bert", tmp_path / "masked")
    with pytest.raises(UserError, match="no language-model head"):
        merge([masked, bare], "greedy-soup", tmp_path / "out", data=text, **QUIET)
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text((task / f"{split}.csv").read_text())
    (tmp_path / "task").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").rename(tmp_path / "task" / f"{split}.csv")
    with pytest.raises(UserError, match="no dev split"):
        merge(classifiers, "greedy-soup", tmp_path / "out", data=tmp_path / "task", **QUIET)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_upper_part_is_fine_tuned_and_merged_by_the_commands(task, tmp_path):
    """The recipe of Vast et al. (2024): the lower layers stay as they are, and are then those of the domain."""
    start, domain = (save_tiny("bert", tmp_path / name, seed) for seed, name in enumerate(("start", "domain")))

    def call(*words):
        result = CliRunner().invoke(cli.app, [*map(str, words), "--quiet"])
        assert result.exit_code == 0, result.output
        return result.output

    call("finetune", "--model", start, "--task", task, "--freeze", "embeddings", "--freeze", "layer.0", "--epochs", 3,
         "--seeds", 1, "--max-length", 24, "--out", tmp_path / "tuned")  # fmt: skip
    tuned = tmp_path / "tuned" / "seed-0"
    before, after, other = map(state, (start, tuned, domain))
    frozen = {name for name in after if ".embeddings." in name or ".layer.0." in name}
    assert frozen and all(torch.equal(before[name], after[name]) for name in frozen)
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.equal(before[name], after[name])
    call("merge", "--method", "layers layers=1", "--model", tuned, "--model", domain, "--out", tmp_path / "m")
    merged = state(tmp_path / "m")
    assert all(torch.equal(merged[one], (other if one in frozen else after)[one]) for one in merged)
    out = call("merge", "--method", "greedy-soup", "--model", tuned, "--model", tmp_path / "m", "--data", task,
               "--out", tmp_path / "soup")  # fmt: skip
    assert "of 2 models, by macro_f1 on the dev split of 'reviews'" in out
    out = call("merge", "--method", "fisher weights=1,2", "--model", tuned, "--model", tmp_path / "m", "--data", task,
               "--data", task, "--documents", 2, "--out", tmp_path / "fisher")  # fmt: skip
    assert "fisher: fisher" in out and "acclimate finetune" in out


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_models_of_every_kind_of_task_are_measured(kind, tmp_path):
    pytest.importorskip(SAMPLES[kind].needs)
    task = load_task(splits_of(kind), name="tiny")
    models = [tmp_path / f"m{seed}" for seed in range(2)]
    for seed, out in enumerate(models):
        start = save_tiny(SAMPLES[kind].model, tmp_path / "start")
        finetune(start, task, out=out, seed=seed, **{**options_of(kind), "epochs": 1})
    result = merge(models, "greedy-soup", tmp_path / "soup", data=task, **QUIET)
    assert any("on the dev split of 'tiny'" in note for note in result.notes)
    if kind in ("retrieval", "generation"):
        with pytest.raises(UserError, match="no answers with probabilities"):
            merge(models, "fisher", tmp_path / "out", data=task, **QUIET)
        return
    merge(models, "fisher", tmp_path / "out", data=task, documents=4, **QUIET)
    one, first, second = map(state, (tmp_path / "out", *models))
    moved = [name for name in one if not torch.allclose(one[name], (first[name] + second[name]) / 2, atol=1e-6)]
    assert any("embeddings.word" in name for name in moved) and any("layer.1" in name for name in moved)
