"""DER++ over two domains of a tiny model, and the loss of what it keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.carried import CARRIED_TENSORS, Carried
from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.der.method import DrawKept, Example, LogitReplay, ReplayedLanguageModelling, pack, unpack
from acclimate.parts.objectives import LanguageModelling
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.papers.domains import FIRST, SECOND, SHORT
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer


def example(ids, top, rng):
    """A text whose places 1 and 3 are predicted."""
    entries = torch.stack([torch.randperm(90, generator=rng)[:top] for _ in range(2)]).int()
    targets, logits = torch.randint(5, 90, (2,), generator=rng).int(), torch.randn(2, top or 100, generator=rng).half()
    return Example(torch.tensor(ids).int(), torch.tensor([1, 3]), targets, entries, logits)


@each("top", [7, 0])
def test_both_terms_equal_a_loop_over_drawn_texts_and_predicted_tokens(top):
    rng, model, plain = torch.Generator().manual_seed(0), tiny_model("bert"), tiny_model("bert")
    vocabulary = plain.config.vocab_size
    texts = [tiny_tokenizer()(text)["input_ids"][:length] for text, length in zip(TEXTS[:3], (6, 9, 7), strict=True)]
    examples = [example(ids, top, rng) for ids in texts]
    if not top:  # more tokens were added to the vocabulary after the texts were kept
        examples = [one._replace(logits=one.logits[:, : vocabulary - 5]) for one in examples]
    attach(model)
    kept = DrawKept(examples)
    terms = [LanguageModelling(0.0), LogitReplay(kept, 0.5), ReplayedLanguageModelling(kept, 2.0)]
    engine = Engine(model.eval(), terms)
    (batch,) = micro_batches(10_000)
    collated = replace(batch, rewritten=_rewrite(batch, kept))
    found = engine.step([collated], backward=False)
    squared, losses = [], []
    for (index,) in collated.rewritten[kept].known.tolist():
        one = examples[index]
        logits = plain(one.ids[None].long()).logits[0].detach()
        for number, place in enumerate(one.places.tolist()):
            row = logits[place]
            mine = row[one.entries[number].long()] if top else row[: one.logits.shape[1]]
            squared.append((mine - one.logits[number].float()).square().mean())
            losses.append(-row.log_softmax(-1)[int(one.targets[number])])
    torch.testing.assert_close(found["logits"], torch.stack(squared).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["replay"], torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["loss"], 0.5 * found["logits"] + 2 * found["replay"])
    rounded = Engine(model, terms, "bf16").step([collated], backward=False)
    torch.testing.assert_close(rounded["logits"], found["logits"], rtol=0.05, atol=0)


def _rewrite(batch, kept):
    from acclimate.parts.objectives.base import ViewInput

    made = kept(batch.original.numpy(), batch.text.numpy(), None, None, range(batch.texts))
    return {kept: ViewInput(*(torch.as_tensor(part) for part in made))}


def test_kept_texts_have_the_logits_of_their_model_and_are_replayed(tiny_bert, tmp_path):
    given = {"memory": 6, "top": 5}
    first = adapt(tiny_bert, FIRST, {"der++": given}, tmp_path / "1", **SHORT).out
    examples = unpack(_carried(first))
    # A short text may have no masked token.
    assert 4 <= len(examples) <= 6 and Carried.read(first).records["der++"] == {"texts": [len(examples)], "top": 5}
    model = transformers.AutoModelForMaskedLM.from_pretrained(first).eval()
    for one in examples:
        logits = model(one.ids[None].long()).logits[0, one.places.long()].detach()
        torch.testing.assert_close(logits.topk(5).values, one.logits.float(), atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(logits.gather(1, one.entries.long()), one.logits.float(), atol=2e-3, rtol=2e-3)
    second = adapt(first, SECOND, {"der++": given}, tmp_path / "2", **SHORT, dropout=0.0)
    assert Carried.read(second.out).records["der++"]["texts"][0] == 3
    both = unpack(_carried(second.out))
    assert [one.ids.tolist() for one in both[:3]] == [one.ids.tolist() for one in examples[:3]]
    line = json.loads((second.out / "log.jsonl").read_text().splitlines()[0])
    assert line["terms"]["logits"] < 1e-5, "before the first step the logits are those that were kept"
    assert line["terms"]["replay"] > 0
    with pytest.raises(UserError, match="have 5 logits per token; use top=5"):
        adapt(first, SECOND, "der++", tmp_path / "3", **SHORT)


def _carried(folder):
    tensors = load_file(folder / CARRIED_TENSORS)
    return {name.removeprefix("der++/"): value for name, value in tensors.items() if name.startswith("der++/")}


@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), max_size=5), top=st.integers(0, 3))
def test_packed_examples_are_unpacked_as_they_were(sizes, top):
    made = [
        Example(
            torch.arange(tokens).int(),
            torch.arange(places).int(),
            torch.arange(places).int() + 7,
            torch.arange(places * top).view(places, top).int(),
            torch.rand(places, top or 9).half(),
        )
        for tokens, places in sizes
    ]
    for one, other in zip(made, unpack(pack(made)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@each(
    ("given", "words"),
    [
        ({"alpha": 0, "beta": 0}, "use the method lm"),
        ({"memory": 0}, "memory"),
    ],
)
def test_parameters_that_do_not_fit_are_explained(given, words, tiny_bert, tmp_path):
    with pytest.raises(UserError, match=words):
        adapt(tiny_bert, FIRST, {"der++": given}, tmp_path / "out", **SHORT)
