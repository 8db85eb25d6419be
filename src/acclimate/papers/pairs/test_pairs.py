"""Contrast of texts with a common code: what is drawn, the loss against plain loops, and training."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task
from acclimate.engine.steps import Engine
from acclimate.models.encoding import encode
from acclimate.models.probe import attach
from acclimate.papers.pairs.method import DrawPartners, PairContrast
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.parts.objectives.layouts import cut, padded
from tests.tiny import tiny_model

CODES = [[0], [0, 1], [1, 2], [2], [3], [0, 3], [4]]
ROWS = [np.array([2, *range(10 + place, 12 + 2 * place), 3]) for place in range(len(CODES))]


def test_pairs_share_a_code_and_both_parts_are_of_the_same_pair():
    first, second = (DrawPartners(ROWS, CODES, part) for part in (0, 1))
    found = Counter()
    for seed in range(3000):
        (row, pair), (other, same) = (one.draw(np.random.default_rng(seed)) for one in (first, second))
        assert pair == same and row is ROWS[pair[0]] and other is ROWS[pair[1]]
        found[tuple(pair)] += 1
    partners = {(a, b) for a in range(7) for b in range(7) if a != b and set(CODES[a]) & set(CODES[b])}
    assert set(found) == partners
    # Text 1 chooses code 0 or 1, and then text 0 or 5, or text 2.
    total = sum(count for (a, _), count in found.items() if a == 1)
    assert [found[1, b] / total for b in (0, 5, 2)] == pytest.approx([0.25, 0.25, 0.5], abs=0.06)
    assert {a for a, _ in found} == {0, 1, 2, 3, 4, 5}


def test_the_loss_is_that_of_plain_loops_without_related_texts():
    model = tiny_model("bert").eval()
    attach(model)
    pairs = [DrawPartners(ROWS, CODES, part) for part in (0, 1)]
    term = PairContrast(pairs, CODES, 0.1)
    batch = padded(rewritings=pairs)
    known = batch.rewritten[pairs[0]].known.tolist()
    vectors = []
    for row in ROWS:
        ids = torch.as_tensor(row)[None]
        vectors.append(encode(model, ids, torch.zeros_like(ids))[0].mean(0))
    losses, left_out = [], 0
    for i, (one, own) in enumerate(known):
        sums = 0.0
        for j, (_, other) in enumerate(known):
            if i != j and set(CODES[one]) & set(CODES[other]):
                left_out += 1
                continue
            a, p = vectors[one], vectors[other]
            sums = sums + torch.exp((a * p).sum() / (a.norm() * p.norm()) / 0.1)
        a, p = vectors[one], vectors[own]
        losses.append(-torch.log(torch.exp((a * p).sum() / (a.norm() * p.norm()) / 0.1) / sums))
    assert left_out
    expected = sum(losses) / len(losses)
    whole = Engine(model, [term]).step([batch])
    assert float(whole["pairs"]) == pytest.approx(float(expected.detach()), rel=1e-4)
    gradient = model.get_input_embeddings().weight.grad.clone()
    model.zero_grad()
    expected.backward()
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-5, rtol=1e-3)
    split = Engine(model, [term], graph_tokens=1).step(cut(batch, 3))
    torch.testing.assert_close(whole["pairs"], split["pairs"], atol=1e-5, rtol=1e-4)


def write_table(path, rows):
    path.write_text("\n".join(json.dumps({"text": text, "code": code}) for text, code in rows))
    return str(path)


def test_a_table_makes_a_sentence_encoder(tiny_bert, tmp_path, capsys):
    words = ["food", "soup", "model", "data"]
    rows = [(f"the {word} is {mark}", word) for word in words for mark in ("good", "bad")]
    rows += [("the food is good", "model"), ("nothing like it", "alone"), ("a " * 40, "food")]
    table = write_table(tmp_path / "table.jsonl", rows)
    options = {**SHORT, "steps": 2, "progress": True}
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), {"pairs": {"table": table}}, tmp_path / "out", **options)
    assert set(result.losses) == {"pairs", "loss"} and math.isfinite(result.losses["pairs"])
    heard = " ".join(capsys.readouterr().err.split())
    assert "Pairs: 9 texts with a partner, 5 codes; cut to 24 tokens: 1; left out because no other text" in heard
    assert (tmp_path / "out" / "modules.json").is_file()
    assert get("pairs", table=table).file_contents().keys() == {"table"}
    both = {"table": table, "lm_weight": 0.5}
    adapter = {"adapter": "lora r=2"}
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), {"pairs": both}, tmp_path / "lm", **options, **adapter)
    assert set(result.losses) == {"mlm", "pairs", "loss"} and (tmp_path / "lm" / "modules.json").is_file()
    single = write_table(tmp_path / "single.jsonl", [("a", "x"), ("b", "y")])
    for given, message in (
        ({"table": single}, "nothing to contrast"),
        (None, "needs a table; give a table of text and code as 'pairs table=FILE'"),
    ):
        with pytest.raises(UserError, match=message):
            adapt(tiny_bert, Corpus.of(DOCUMENTS), {"pairs": given}, tmp_path / "x", **SHORT)
    for given in ({"temperature": 0}, {"lm_weight": -1}):
        with pytest.raises(UserError, match=next(iter(given)).replace("_", ".")):
            get("pairs", **given)


def test_with_a_code_per_pair_the_loss_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers").sentence_transformer.losses
    codes = [[number // 2] for number in range(12)]
    term = PairContrast([DrawPartners([np.array([number]) for number in range(12)], codes, part) for part in (0, 1)],
                        codes)  # fmt: skip
    vectors = torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(0))
    ours = term.loss(torch.cat([vectors, torch.arange(12.0).reshape(6, 2, 1)], -1))
    theirs = losses.MultipleNegativesRankingLoss(None).compute_loss_from_embeddings([*vectors.unbind(1)], None)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


def test_queries_and_their_passages_are_pairs_next_to_language_modelling(tiny_bert, tmp_path, capsys):
    """The result is a language model, and a sentence encoder, which a study compares with the contrast alone."""
    encoders = pytest.importorskip("sentence_transformers")
    words = ["food", "soup", "model", "data", "waiter", "table"]
    task = load_task([{"query": f"which {word} was {mark} ?", "passage": f"the {word} is {mark} today"}
                      for word in words for mark in ("good", "bad", "cold")])  # fmt: skip
    options = {**SHORT, "steps": 2, "progress": True, "task": task, "out": tmp_path / "out"}
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), {"pairs": {"lm_weight": 0.5}}, **options)
    assert set(result.losses) == {"mlm", "pairs", "loss"}
    assert encoders.SentenceTransformer(str(tmp_path / "out")).encode("a").shape == (32,)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    heard = " ".join(capsys.readouterr().err.split())
    assert f"Pairs: {2 * len(task.train)} texts with a partner, {len(task.train)} codes" in heard
    assert get("pairs").learns_task and not get("pairs", table="x.csv").learns_task
    test_only = replace(task, train=[])
    with pytest.raises(UserError, match="the task has no train split"):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "pairs", **{**options, "task": test_only, "out": tmp_path / "x"})
