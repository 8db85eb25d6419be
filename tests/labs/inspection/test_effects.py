"""Specificity, words of a task, and sensitivity: planted models and oracles."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.data.tokenizing import read_as_text
from acclimate.evaluation.lm_loss import language_model_loss, open_language_model, summed_losses
from acclimate.labs.inspection.sensitivity import added_noise, area_under, inspect_sensitivity, weight_matrices
from acclimate.labs.inspection.specificity import inspect_specificity, specificity
from acclimate.labs.inspection.task_words import choose_words, inspect_task_words, word_row
from acclimate.models.probe import attach
from tests.cases import each
from tests.tiny import TEXTS, save_tiny

GOOD, BAD = ["fresh", "quick", "kind"], ["cold", "slow", "rude"]
OTHERS = ["menu", "price", "soup", "wine", "table", "pasta", "pizza", "service"]


def rows_of(count: int, start: int) -> list[tuple[str, str]]:
    """Texts whose label depends on one word, among words that are as frequent and do not matter."""
    rng = np.random.default_rng(start)
    rows = []
    for number in range(count):
        label, words = (("good", GOOD), ("bad", BAD))[number % 2]
        chosen = [words[number // 2 % 3], *rng.choice(OTHERS, 3, replace=False)]
        rows.append((f"the {' and the '.join(rng.permutation(chosen))}", label))
    return rows


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks") / "places"
    folder.mkdir()
    for start, (split, count) in enumerate({"train": 48, "dev": 12, "test": 24}.items()):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows_of(count, start)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def save_fond(base, folder, words: list[str]):
    """Save a copy of the base model that likes to predict some words."""
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForMaskedLM.from_pretrained(base)
    with torch.no_grad():
        model.get_output_embeddings().bias[tokenizer(" ".join(words), add_special_tokens=False).input_ids] += 3
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapted(tiny_bert, tmp_path_factory):
    """A model that likes the words that matter to the task."""
    return save_fond(tiny_bert, tmp_path_factory.mktemp("models") / "adapted", GOOD + BAD)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


def test_specificity_is_the_interval_of_welch():
    rng = np.random.default_rng(0)
    task, general = rng.normal(0.5, 1.0, 40), rng.normal(0.2, 0.3, 25)
    found = specificity((task, np.full(40, 7.0)), (general, np.full(25, 2.0)))
    oracle = stats.ttest_ind(task, general, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    assert (found.difference, found.p) == (pytest.approx(task.mean() - general.mean()), pytest.approx(oracle.pvalue))


def test_a_weighted_specificity_agrees_with_the_bootstrap():
    rng = np.random.default_rng(1)
    sides = [(rng.normal(1, 1, n), rng.integers(1, 9, n).astype(float)) for n in (80, 120)]
    found = specificity(*sides)
    drawn = []
    for _ in range(3000):
        picks = [rng.integers(len(values), size=len(values)) for values, _ in sides]
        means = [
            np.average(values[pick], weights=weights[pick])
            for (values, weights), pick in zip(sides, picks, strict=True)
        ]
        drawn.append(means[0] - means[1])
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert (found.low, found.high) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))


def test_an_adaptation_to_the_words_of_a_task_is_specific(tiny_bert, adapted, task, tmp_path):
    fluent = save_fond(tiny_bert, tmp_path / "fluent", ["the", "and", *GOOD, *BAD, *OTHERS])
    words = "model data train test loss layer token word text gradient method result paper figure score".split()
    general = [" ".join(words[(start + 4 * step) % len(words)] for step in range(9)) for start in range(12)]
    found = inspect_specificity(tiny_bert, task, general, after=fluent, max_length=40, progress=False)
    only = inspect_specificity(tiny_bert, task, general, after=adapted, max_length=40, progress=False)
    assert only["specificity"]["low"] > 0 and "on which no gain is shown" in repr(only)
    same = inspect_specificity(tiny_bert, task, general, after=tiny_bert, max_length=40, progress=False)
    assert found["specificity"]["low"] > 0 and "helps with the text of the task more" in repr(found)
    assert same["specificity"]["difference"] == 0 and found["unit"] == "nats per predicted token"
    texts = [text for text, _ in rows_of(48, 0)]
    first = found["rows"][0]
    assert first["before"] == pytest.approx(
        language_model_loss(tiny_bert, [*dict.fromkeys(texts)], max_length=40)["nats"]
    )
    assert first["gain"] == pytest.approx(first["before"] - first["after"])


def test_a_pilot_takes_the_place_of_an_adapted_model(tiny_bert, task):
    options = {"corpus": [text for text, _ in rows_of(40, 7)], "pilot_steps": 2, "batch_size": 8, "max_length": 24}
    found = inspect_specificity(tiny_bert, task, TEXTS, progress=False, learning_rate=3e-3, **options)
    assert found["pilot_steps"] == 2 and found["rows"][0]["gain"] > 0


@each(
    ("options", "message"),
    [({}, "either the adapted model"), ({"after": "x", "corpus": ["a"]}, "either the adapted model"),
     ({"corpus": ["a b"], "method": "none"}, "cannot run a pilot")],
)  # fmt: skip
def test_mistakes_of_specificity(tiny_bert, task, options, message):
    with pytest.raises(UserError, match=message):
        inspect_specificity(tiny_bert, task, TEXTS, progress=False, **options)


def test_the_words_that_labels_depend_on_are_found():
    texts, labels = zip(*rows_of(48, 0), strict=True)
    indicators = np.array([[label == "bad", label == "good"] for label in labels], dtype=float)
    pairs = choose_words(texts, indicators, 6, 3, frozenset({"the", "and"}))
    assert {pair.words[0] for pair in pairs} == {*GOOD, *BAD}
    for pair in pairs:
        assert pair.words[1] in OTHERS and pair.weights[0] > pair.weights[1]
        assert pair.documents == tuple(sum(word in text.split() for text in texts) for word in pair.words)


def test_an_adaptation_that_learns_them_is_recognized(tiny_bert, adapted, task):
    options = {"words": 6, "fewest": 3, "max_length": 40, "progress": False}
    found = inspect_task_words(tiny_bert, adapted, task, **options)
    ours, theirs, difference = found["rows"]
    assert difference["high"] < 0 and "taught them more" in found["verdict"]
    assert difference["change"] == pytest.approx(ours["change"] - theirs["change"])
    assert len(found["pairs"]) == 6 and max(pair["task"]["occurrences"] for pair in found["pairs"]) <= 10
    same = inspect_task_words(tiny_bert, tiny_bert, task, **options)
    assert same["rows"][2]["change"] == 0 and "no difference" in same["verdict"]


@each("kind", ["bert", "llama"])
def test_the_loss_of_a_word_equals_a_plain_forward_pass(tiny_bert, decoder, kind):
    loaded = open_language_model(tiny_bert if kind == "bert" else decoder)
    text = "the food was zebra and cold"
    for word in ("the", "zebra", "cold"):
        span = (text.index(word), text.index(word) + len(word))
        row = word_row(loaded, read_as_text(loaded.tokenizer), text, span, 40)
        ids = torch.tensor(row.ids)[None]
        model = (AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM).from_pretrained(
            tiny_bert if kind == "bert" else decoder
        )
        logs = model.eval()(input_ids=ids).logits[0].log_softmax(-1)
        places = np.flatnonzero(row.labels >= 0)
        expected = -sum(float(logs[place, row.labels[place]].detach()) for place in places)
        assert loaded.tokenizer.decode(row.labels[places]).replace(" ", "").replace("##", "").strip() == word
        attach(loaded.model)
        assert summed_losses(loaded.model, loaded.tokenizer, [row])[0] == (
            pytest.approx(expected, abs=1e-4),
            len(places),
        )


def test_a_long_text_is_cut_around_the_word(decoder, tiny_bert):
    text = "the food was good and " * 20 + "cold"
    loaded = open_language_model(decoder)
    row = word_row(loaded, read_as_text(loaded.tokenizer), text, (len(text) - 4, len(text)), 12)
    assert len(row.ids) == 12 and loaded.tokenizer.decode(row.labels[row.labels >= 0]).strip() == "cold"
    masked = open_language_model(tiny_bert)
    row = word_row(masked, read_as_text(masked.tokenizer), text, (4, 8), 12)
    assert len(row.ids) == 12 and row.ids[-1] == masked.tokenizer.sep_token_id and (row.labels >= 0).sum() == 1


def test_sensitivity_equals_a_plain_computation(tiny_bert, adapted, tmp_path):
    """The adapted model has larger weights; its noise has the size of the base model's weights all the same."""
    model = AutoModelForMaskedLM.from_pretrained(adapted)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5 if parameter.dim() > 1 else 1)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(adapted).save_pretrained(tmp_path)
    adapted = tmp_path
    options = {"scales": [0.3, 0.1], "draws": 2, "max_length": 40, "seed": 5, "progress": False}
    found = inspect_sensitivity(tiny_bert, adapted, TEXTS, **options)
    sizes = {
        name: float(weight.detach().norm()) / weight.numel() ** 0.5
        for name, weight in weight_matrices(open_language_model(tiny_bert).model).items()
    }
    expected = []
    for path in (tiny_bert, adapted):
        plain = language_model_loss(path, TEXTS, max_length=40)["nats"]
        for scale in (0.1, 0.3):
            losses = []
            for draw in range(2):
                loaded = open_language_model(path)
                with torch.no_grad():
                    for place, (name, weight) in enumerate(weight_matrices(loaded.model).items()):
                        state = int(np.random.SeedSequence([5, draw, place]).generate_state(1)[0])
                        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(state))
                        weight += scale * sizes[name] * noise
                losses.append(
                    language_model_loss(loaded.model, TEXTS, tokenizer=loaded.tokenizer, max_length=40)["nats"]
                )
            expected.append(np.mean(losses) - plain)
    curve = found["curve"]
    assert [row["scale"] for row in curve] == [0.1, 0.3]
    assert [row[side] for side in ("before", "after") for row in curve] == pytest.approx(expected, abs=1e-4)
    assert found["area"]["before"] == pytest.approx(
        (0.05 * expected[0] + 0.2 * (expected[0] + expected[1]) / 2) / 0.3, abs=1e-4
    )


def test_the_same_model_is_not_more_sensitive_and_noise_is_removed(tiny_bert):
    found = inspect_sensitivity(tiny_bert, tiny_bert, TEXTS, scales=0.1, draws=2, max_length=40, progress=False)
    assert found["area"]["more"] == 0 and "not shown" in found["area"]["verdict"]
    model = open_language_model(tiny_bert).model
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    matrices = weight_matrices(model)
    with added_noise(matrices, {name: 1.0 for name in matrices}, 0.5, (0, 0)):
        assert not torch.equal(next(iter(matrices.values())), next(iter(kept.values())))
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_a_model_with_a_sharper_loss_is_more_sensitive(tiny_bert, tmp_path):
    """A larger output layer gets the noise of the base model and turns noise of the states into larger losses."""
    model = AutoModelForMaskedLM.from_pretrained(tiny_bert)
    with torch.no_grad():
        model.cls.predictions.transform.LayerNorm.weight *= 20
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    found = inspect_sensitivity(tiny_bert, tmp_path, TEXTS, scales=1.0, draws=8, max_length=40, progress=False)
    assert found["area"]["verdict"] == "more sensitive" and found["area"]["low"] > 0


def test_the_area_is_that_of_a_line():
    assert area_under([1.0, 2.0, 4.0], np.array([[3.0], [6.0], [12.0]])) == pytest.approx([6.0])


def test_models_of_other_shapes_are_refused(tiny_bert, tmp_path):
    other = save_tiny("roberta", tmp_path / "roberta")
    with pytest.raises(UserError, match="weight matrices"):
        inspect_sensitivity(tiny_bert, other, TEXTS, progress=False)


@each(
    ("words", "line"),
    [
        (
            ["sensitivity", "--after", "{adapted}", "--corpus", "{text}", "--scale", "0.1", "--draws", "1"],
            "to changes of",
        ),
        (["task-words", "--after", "{adapted}", "--task", "{task}", "--words", "6"], "taught them more"),
        (["specificity", "--after", "{adapted}", "--task", "{task}", "--general", "{text}"], "specificity: +"),
    ],
)
def test_the_command_line(tiny_bert, adapted, task, tmp_path, monkeypatch, capsys, words, line):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    places = {"adapted": adapted, "text": tmp_path / "text.txt", "task": task}
    given = [word.format(**places) for word in words]
    argv = [
        "acclimate",
        "inspect",
        given[0],
        "--before",
        tiny_bert,
        *given[1:],
        "--out",
        tmp_path / "found.json",
        "--quiet",
    ]
    monkeypatch.setattr(sys, "argv", [*map(str, argv), "--max-length", "40"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    assert line in out and json.loads((tmp_path / "found.json").read_text())
