"""Experts for a new domain: planted ones are found by similarity of the texts and by their losses."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.inspection.experts import inspect_experts
from tests.cases import each
from tests.tiny import TEXTS

WORDS = sorted({word for text in TEXTS for word in text.lower().strip(".").split()})
DOMAINS = {"first": WORDS[::3], "second": WORDS[1::3], "third": WORDS[2::3]}


def domain_texts(name: str, start: int) -> list[str]:
    words = DOMAINS[name]
    return [" ".join(words[(start + 3 * place + step) % len(words)] for step in range(6)) for place in range(8)]


@pytest.fixture(scope="module")
def experts(tiny_bert, tmp_path_factory):
    """Copies of a model that prefer the words of one domain."""
    folder = tmp_path_factory.mktemp("experts")
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    for name, words in DOMAINS.items():
        model = AutoModelForMaskedLM.from_pretrained(tiny_bert)
        with torch.no_grad():
            model.get_output_embeddings().bias[tokenizer(" ".join(words), add_special_tokens=False).input_ids] += 3
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@each("name", list(DOMAINS))
def test_planted_experts_are_found(experts, name):
    models = {one: experts / one for one in DOMAINS}
    texts = {one: domain_texts(one, 0) for one in DOMAINS}
    target = domain_texts(name, 1)
    found = inspect_experts(models, target, corpora=texts, top=1, progress=False)
    assert found["by_similarity"] == found["by_performance"] == [name]
    row = next(row for row in found["experts"] if row["expert"] == name)
    assert row["nats"] == pytest.approx(language_model_loss(experts / name, [*dict.fromkeys(target)])["nats"])
    assert row["similarity"] > max(other["similarity"] for other in found["experts"] if other is not row)


def test_the_command_line(experts, tmp_path, monkeypatch, capsys):
    (tmp_path / "target.txt").write_text("\n".join(domain_texts("second", 2)))
    words = [word for name in DOMAINS for word in ("--expert", f"{name}={experts / name}")]
    words += ["--target", tmp_path / "target.txt", "--out", tmp_path / "found.json", "--top", "1"]
    monkeypatch.setattr(sys, "argv", ["acclimate", "inspect", "experts", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr().out
    assert not ended.value.code and "by performance: second" in out and f"--model {experts / 'second'}" in out
    assert json.loads((tmp_path / "found.json").read_text())["by_similarity"] == []


@each(
    ("corpora", "message"),
    [({"frist": ["a b"]}, "Did you mean 'first'"), ({"first": ["a b"]}, "The text of 'second' is missing")],
)
def test_mistakes_are_explained(experts, corpora, message):
    with pytest.raises(UserError, match=message):
        inspect_experts({name: experts / name for name in DOMAINS}, ["a b"], corpora=corpora)
