"""Skipping unread tokens leaves outputs and gradients of end-task models the same, and ends with its context."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers

from acclimate.adaptation.adapt import adapt
from acclimate.data.documents import Corpus
from acclimate.models.encoding import skip_unread_tokens
from acclimate.tasks.loading import load_with_head
from tests.cases import each
from tests.kernels.helpers import count_tokens, count_tokens_by_layer, gradients
from tests.kernels.test_unpadding import BERT_LIKE
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tiny import ENCODERS, save_tiny

CPU = torch.device("cpu")
LENGTHS = (30, 17, 9, 2)
REAL = torch.arange(30)[None, :] < torch.tensor(LENGTHS)[:, None]
IDS = torch.randint(5, 60, REAL.shape, generator=torch.Generator().manual_seed(0)) * REAL
INPUTS = {"input_ids": IDS, "attention_mask": REAL.long()}
HEADS = {
    transformers.AutoModelForSequenceClassification: {"labels": torch.tensor([0, 1, 1, 0])},
    transformers.AutoModelForTokenClassification: {"labels": (IDS % 2).masked_fill(~REAL, -100)},
    transformers.AutoModelForQuestionAnswering: {
        "start_positions": torch.tensor([3, 2, 1, 0]),
        "end_positions": torch.tensor([9, 2, 5, 1]),
    },
}


def with_head(auto, path):
    torch.manual_seed(0)
    return load_with_head(auto, path, {"num_labels": 2}, 32, CPU, "a model")[0].eval()


def outputs(model, wanted):
    model.zero_grad()
    places = {name: value for name, value in wanted.items() if name != "labels"}
    output = model(**INPUTS, **({} if places else wanted))
    loss = output.loss
    if places:  # the model's own loss of question answering depends on padding
        logits = [values.masked_fill(~REAL, -torch.inf) for values in (output.start_logits, output.end_logits)]
        loss = sum(map(torch.nn.functional.cross_entropy, logits, places.values()))
    loss.backward()
    found = [value for name, value in output.items() if name.endswith("logits")]
    return [value if value.shape[:2] != REAL.shape else value[REAL] for value in found], gradients(model)


@pytest.fixture(scope="module")
def ensembles(encoders, tmp_path_factory):
    """The folders of tiny ensembles by kind, each made when it is first asked for."""
    folder = tmp_path_factory.mktemp("ensembles")

    @cache
    def make(kind):
        adapt(encoders[kind], Corpus.of(DOCUMENTS), "ensemble", folder / kind, **SHORT)
        return folder / kind

    return make


@pytest.mark.parametrize(
    ("kind", "ensemble"),
    [
        *((kind, False) for kind in sorted(ENCODERS)),
        *(pytest.param(kind, True, marks=pytest.mark.needs("ensemble")) for kind in ("bert", "modernbert")),
    ],
)
@each("auto", HEADS)
def test_the_same_logits_and_gradients(kind, auto, ensemble, encoders, ensembles):
    model = with_head(auto, ensembles(kind) if ensemble else encoders[kind])
    expected = outputs(model, HEADS[auto])
    with skip_unread_tokens(model), skip_unread_tokens(model):  # nested: evaluated during training
        found = outputs(model, HEADS[auto])
    assert found[1].keys() == expected[1].keys()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    again = outputs(model, HEADS[auto])
    assert all(torch.equal(value, expected[1][name]) for name, value in again[1].items())


def tokens_read(model, seen, **changes):
    seen.clear()
    with skip_unread_tokens(model):
        output = model(**{**INPUTS, **changes})
    return [seen[number] for number in sorted(seen)], output


@pytest.mark.parametrize("kind", BERT_LIKE)
@pytest.mark.parametrize("auto", HEADS, ids=lambda auto: auto.__name__)
def test_tokens_read_by_bert_like_models(kind, auto, tmp_path):
    model = with_head(auto, save_tiny(kind, tmp_path))
    seen = count_tokens_by_layer(model)
    read = tokens_read(model, seen)[0]
    first = auto is transformers.AutoModelForSequenceClassification
    assert read == [64, len(LENGTHS) if first else 64]  # 58, rounded up


@pytest.mark.parametrize(
    ("kind", "auto", "tokens"),
    [
        ("distilbert", transformers.AutoModelForSequenceClassification, 64),
        ("distilbert", transformers.AutoModelForTokenClassification, 64),
        ("albert", transformers.AutoModelForTokenClassification, 64),
        ("albert", transformers.AutoModelForSequenceClassification, 64),
        ("modernbert", transformers.AutoModelForSequenceClassification, 64),
        ("modernbert", transformers.AutoModelForTokenClassification, 64),
    ],
)
def test_tokens_read_by_other_models(kind, auto, tokens, tmp_path):
    model = with_head(auto, save_tiny(kind, tmp_path))
    seen = count_tokens(model)
    with skip_unread_tokens(model):
        model(**INPUTS)
    assert seen == [tokens, tokens]


def test_calls_that_are_not_changed(tmp_path):
    model = with_head(transformers.AutoModelForTokenClassification, save_tiny("bert", tmp_path))
    seen = count_tokens_by_layer(model)
    whole = [REAL.numel()] * 2
    read, output = tokens_read(model, seen, output_hidden_states=True)
    assert read == whole and {states.shape[:2] for states in output.hidden_states} == {REAL.shape}
    left = {name: values.flip(1) for name, values in INPUTS.items()}
    read, output = tokens_read(model, seen, **left)
    assert read == whole and torch.equal(output.logits, model(**left).logits)
    assert tokens_read(model, seen, attention_mask=torch.ones_like(IDS))[0] == whole
    assert tokens_read(model, seen, attention_mask=None)[0] == whole
    assert tokens_read(model, seen, position_ids=torch.arange(30)[None])[0] == whole
    segments = (torch.arange(30) > 5).long().expand(4, -1)
    read, output = tokens_read(model, seen, token_type_ids=segments)
    assert read == [64, 64]
    torch.testing.assert_close(output.logits[REAL], model(**INPUTS, token_type_ids=segments).logits[REAL])
    model.set_attn_implementation("eager")  # an attention function without unpadding
    assert tokens_read(model, seen)[0] == whole
