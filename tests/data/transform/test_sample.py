"""Self-generation: samples come from the model, the best are kept, and the account has the trade-off curve."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.base.ranking import content_ranks
from acclimate.data.operations import find_accounts
from acclimate.data.transform.sample import SHARES, Sampler
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.models import generating
from tests.cases import each
from tests.data.transform.test_pseudo_labels import save_classifier
from tests.tiny import TEXTS


@pytest.fixture(scope="module")
def settings(tiny_llama, tmp_path_factory):
    """Settings of 40 short samples that a function scores by their share of letters."""
    file = tmp_path_factory.mktemp("rater") / "rate_samples.py"
    file.write_text("def rate(text):\n    return sum(c.isalpha() for c in text) / len(text)\n")
    return {"model": str(tiny_llama), "samples": 40, "length": 6, "rater": f"{file}:rate"}


def share_of_letters(text: str) -> float:
    return sum(character.isalpha() for character in text) / len(text)


@each("keep", ["lowest", "highest"])
def test_the_best_are_kept_and_the_curve_is_that_of_the_samples(settings, keep):
    every = transform(TEXTS, {"sample": {**settings, "share": 1}})
    texts = list(every)
    scores = np.array([share_of_letters(text) for text in texts])
    made = transform(TEXTS, {"sample": {**settings, "share": 0.3, "keep": keep, "threshold": 0.4}})
    count = round(0.3 * len(texts))
    ranked = np.lexsort((content_ranks(texts), scores if keep == "lowest" else -scores))
    assert list(made) == [texts[place] for place in sorted(ranked[:count])]
    rows = [json.loads(line) for line in made.sources[0].path.read_text().splitlines()]
    assert [row["score"] for row in rows] == [round(share_of_letters(row["text"]), 6) for row in rows]
    (account,) = find_accounts(made)
    curve = account.notes["curve"]
    assert [point["share"] for point in curve] == sorted({*SHARES, 0.3}, reverse=True)
    found = language_model_loss(
        AutoModelForCausalLM.from_pretrained(settings["model"]).eval(),
        texts,
        tokenizer=AutoTokenizer.from_pretrained(settings["model"]),
    )
    losses = np.array(found["per_text"]) / np.array(found["per_text_masked"])
    for point in curve:
        best = ranked[: max(1, round(point["share"] * len(texts)))]
        assert point["attribute_rate"] == pytest.approx((scores[best] >= 0.4).mean())
        assert point["perplexity"] == pytest.approx(math.exp(losses[best].mean()), rel=1e-3)
    notes = account.notes
    assert notes["samples"] == 40 == len(texts) + notes["empty"] + notes["repeated"]
    assert scores[texts.index(account.dropped[0])] == (scores.max() if keep == "lowest" else scores.min())


def test_samples_have_the_probabilities_of_the_model(tiny_llama):
    """The first tokens of many samples are as frequent as the model says, within the nucleus of top_p."""
    sampler = Sampler(str(tiny_llama))
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_llama), AutoModelForCausalLM.from_pretrained(tiny_llama)
    prompt = sampler.prompt("the food was good", 4)
    assert prompt == tokenizer("the food was good").input_ids[:5]  # with the start token
    with torch.no_grad():
        p = (model(torch.tensor([prompt])).logits[0, -1] / 0.2).softmax(-1)
    ordered = p.sort(descending=True)
    nucleus = ordered.indices[: int((ordered.values.cumsum(0) < 0.5).sum()) + 1]
    expected = {tokenizer.decode([*prompt, token], skip_special_tokens=True): 0.0 for token in nucleus.tolist()}
    for token in nucleus.tolist():
        text = tokenizer.decode([*prompt, token], skip_special_tokens=True)
        expected[text] += float(p[token] / p[nucleus].sum())
    found = sampler.sample([prompt] * 2000, 1, temperature=0.2, top_p=0.5, seed=1)
    assert set(found) <= set(expected)
    for text, probability in expected.items():
        assert abs(found.count(text) / 2000 - probability) < 4 * math.sqrt(probability / 2000) + 1e-3


def test_prompts_and_seeds(settings, tmp_path, monkeypatch):
    prompted = {**settings, "prompt_tokens": 3, "share": 1, "samples": 12}
    one = list(transform(TEXTS, {"sample": prompted}))
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    starts = [tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids[:3]) for text in TEXTS]
    assert all(any(text.startswith(start) for start in starts) for text in one)
    assert len({next(start for start in starts if text.startswith(start)) for text in one}) > 4
    state = torch.get_rng_state()
    other = list(transform(TEXTS, {"sample": {**prompted, "seed": 1}}))
    assert torch.equal(state, torch.get_rng_state()) and other != one
    sampler = Sampler(settings["model"])
    assert sampler.prompt(TEXTS[3], 3) is None  # one word
    prompts = [ids for ids in (sampler.prompt(text, 3) for text in TEXTS) if ids is not None]
    drawn = [sampler.sample(prompts, 6, 1.0, 0.9, seed) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path))
    monkeypatch.setattr(generating, "micro_batch_tokens", lambda model, times: 20)  # two texts at once
    assert list(transform(TEXTS, {"sample": prompted})) == one


def test_samples_are_cached_for_other_shares_and_a_classifier_scores_them(settings, tmp_path, monkeypatch):
    transform(TEXTS, {"sample": settings})
    monkeypatch.setattr(Sampler, "sample", None)
    given = {name: value for name, value in settings.items() if name != "rater"}
    folder = save_classifier(tmp_path / "classifier")
    made = transform(TEXTS, {"sample": {**given, "classifier": str(folder), "label": "bad", "share": 0.25}})
    (account,) = find_accounts(made)
    rates = [point["mean_score"] for point in account.notes["curve"]]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]
    with pytest.raises(UserError, match="lacks the label 'worse'; it has bad, fine, good"):
        transform(TEXTS, {"sample": {**given, "classifier": str(folder), "label": "worse"}})


def test_without_a_rater_all_samples_are_kept_and_those_without_score_are_left_out(settings):
    plain = transform(TEXTS, {"sample": {**settings, "rater": None}})
    (account,) = find_accounts(plain)
    assert len(list(plain)) == 40 - account.notes["empty"] - account.notes["repeated"]
    rated = transform(
        TEXTS, {"sample": {**settings, "rater": lambda text: len(text) if len(text) % 2 else None, "share": 1}}
    )
    assert list(rated) == [text for text in plain if len(text) % 2]
    assert find_accounts(rated)[0].notes["without_score"] == sum(len(text) % 2 == 0 for text in plain)


@each(
    ("changes", "message"),
    [
        ({"model": ""}, "needs model"),
        ({"rater": None, "share": 0.2}, "share needs what scores the samples"),
        ({"classifier": "x", "label": "y"}, "a classifier or a rater, not both"),
        ({"label": "x"}, "go together"),
        ({"rater": "x"}, "names no function"),
        ({"rater": lambda text: float("nan")}, "a score is a finite number"),
        ({"samples": 0}, "at least 1"),
        ({"top_p": 0}, "above 0"),
        ({"length": 500}, "do not fit into the 128 positions .* give a smaller length"),
        ({"prompt_tokens": 100}, "no document has 100 tokens"),
    ],
)
def test_mistakes_are_explained(settings, changes, message):
    with pytest.raises(UserError, match=message):
        transform(TEXTS, {"sample": {**settings, **changes}})


def test_masked_models_do_not_generate(settings, tiny_bert):
    with pytest.raises(UserError, match="is a masked model"):
        transform(TEXTS, {"sample": {**settings, "model": str(tiny_bert)}})
