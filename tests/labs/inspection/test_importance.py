"""`inspect importance` on a tiny model: its output, the cache shared with `adapt`, and invalid arguments."""

from __future__ import annotations

import io
import itertools
import json

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import acclimate.adaptation.importance_measures as measuring
from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.labs.inspection.importance import inspect_importance
from acclimate.labs.inspection.importance_plots import importance_tables
from acclimate.parts.updates import normalize_importance
from tests.cases import each
from tests.test_cli import call
from tests.tiny import TEXTS, save_tiny

SHORT = {"tokens": 120, "max_length": 24, "precision": "fp32", "progress": False}


def texts(name: str) -> list[str]:
    return [f"{text} {name} {number}" for text in TEXTS for number in range(3)]


def domains(*names: str) -> dict[str, Corpus]:
    return {name: Corpus.of(texts(name)) for name in names}


def shown(report) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    for part in importance_tables(report):
        console.print(part, highlight=False, markup=False)
    return console.export_text()


@pytest.mark.slow
def test_report_tensors_and_figures_agree(tiny_bert, tmp_path):
    result = inspect_importance(
        tiny_bert, domains("food", "papers", "wine"), tmp_path / "out", parts="H,I", seeds=[0, 4], **SHORT
    )
    report = json.loads((tmp_path / "out" / "importance.json").read_text())
    tensors = load_file(tmp_path / "out" / "importance.safetensors")
    assert report.pop("checksums") and report == json.loads(json.dumps(result.report))
    assert set(tensors) == {
        f"{name}/{seed}/{part}/{kind}"
        for name, seed, part, kind in itertools.product(
            ("food", "papers", "wine"), (0, 4), "HI", ("raw", "normalized")
        )
    }
    assert tensors["food/4/I/raw"].shape == (2, 48)
    torch.testing.assert_close(tensors["food/0/H/normalized"], normalize_importance(tensors["food/0/H/raw"]))
    vectors = {key: tensors[f"{key[0]}/{key[1]}/H/normalized"].flatten() for key in
               itertools.product(("food", "papers", "wine"), (0, 4))}  # fmt: skip

    def cosine(a, b):
        return float(torch.dot(vectors[a], vectors[b]) / vectors[a].norm() / vectors[b].norm())

    found = report["parts"]["H"]["cosine"]
    pairs = [cosine(("food", one), ("wine", two)) for one in (0, 4) for two in (0, 4)]
    assert found["between"]["food"]["wine"] == pytest.approx(sum(pairs) / 4, abs=1e-5)
    assert found["between_seeds"]["papers"] == pytest.approx(cosine(("papers", 0), ("papers", 4)), abs=1e-5)
    others = found["between"]["food"]
    assert found["to_others"]["food"] == pytest.approx((others["papers"] + others["wine"]) / 2)
    assert report["parts"]["H"]["random"]["normal"]["draws"] == 10_000
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {f"importance-{part}-{name}.png" for part in "HI" for name in ("food", "papers", "wine")}
    assert names == {
        "importance.json",
        "importance.safetensors",
        "distribution-H.png",
        "distribution-I.png",
        *figures,
    }
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in names if name.endswith("png"))
    text = shown(report)
    assert "H, 2 x 4 attention heads" in text and "Cosine of each pair" in text
    assert f"{found['to_others']['wine']:.2f}" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_one_domain_and_one_seed_have_shares_but_no_similarity(tiny_bert, tmp_path):
    report = inspect_importance(tiny_bert, domains("alone"), tmp_path / "out", **SHORT).report
    found = report["parts"]["H"]
    assert found["cosine"] == {
        "between": {"alone": {}}, "to_others": {"alone": None}, "between_seeds": {"alone": None}
    }  # fmt: skip
    assert sum(found["shares"]["alone"]) == pytest.approx(1.0)
    text = shown(report)
    assert "share by normalized importance" in text and "similarity" not in text


@pytest.mark.needs("dga")
def test_adapt_with_dga_and_the_inspection_share_a_cache(tiny_bert, tmp_path, monkeypatch):
    calls = []
    measure = measuring.summed_importance

    def counted(*args, **kwargs):
        calls.append(1)
        return measure(*args, **kwargs)

    monkeypatch.setattr(measuring, "summed_importance", counted)
    corpus = domains("shared with adapt")
    (text,) = corpus.values()
    common = {"max_length": 24, "precision": "fp32", "progress": False}
    adapt(
        tiny_bert, text, "dga importance_tokens=120 parts=H,I", tmp_path / "a", steps=1, batch_size=4, seed=7,
        **common,
    )  # fmt: skip
    assert len(calls) == 1
    inspect_importance(tiny_bert, corpus, parts=["H", "I"], tokens=120, seeds=[7], **common)
    assert len(calls) == 1
    inspect_importance(tiny_bert, corpus, parts=["H", "I"], tokens=120, seeds=[8], **common)
    assert len(calls) == 2


@each(
    ("changes", "message"),
    [
        ({"parts": "H,X"}, "Unknown part 'X'"),
        ({"parts": "H,H"}, "The part 'H' is given twice"),
        ({"seeds": [1, 1]}, "'seeds' has 1 twice"),
        ({"seeds": []}, "'seeds' must not be empty"),
        ({"seeds": [-1]}, "'seeds' must be at least 0"),
        ({"tokens": 0}, "'tokens' must be at least 1"),
        ({"max_length": 4}, "at least 8"),
        ({"reads": "words"}, "'reads' must be 'hidden' or 'logits'"),
        ({"protect": "all"}, "'protect' must be"),
        ({"corpora": {}}, "'corpora' must not be empty"),
        ({"corpora": {"a/b": ["x"]}}, "The domain name 'a/b'"),
    ],
)
def test_invalid_arguments(tiny_bert, changes, message):
    given = {"corpora": domains("food"), **SHORT, **changes}
    with pytest.raises(UserError, match=message):
        inspect_importance(tiny_bert, **given)


def test_a_model_without_dropout_is_an_error(tmp_path):
    still = save_tiny("bert", tmp_path / "still", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with pytest.raises(UserError, match="dropout of this model is zero"):
        inspect_importance(still, domains("food"), tmp_path / "out", **SHORT)
    assert not (tmp_path / "out").exists()


def test_an_unrelated_folder_is_not_overwritten(tiny_bert, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="something other"):
        inspect_importance(tiny_bert, domains("food"), tmp_path / "out", **SHORT)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_on_the_command_line(tiny_bert, tmp_path, monkeypatch, capsys):
    for name in ("food", "papers"):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts(name)))
    start = ["inspect", "importance", "--model", tiny_bert, "--out", tmp_path / "out", "--quiet"]
    small = ["--tokens", 120, "--max-length", 24, "--precision", "fp32", "--seed", 1, "--seed", 2]
    food, papers = f"food={tmp_path / 'food.txt'}", f"papers={tmp_path / 'papers.txt'}"
    code, out, err = call(monkeypatch, capsys, *start, "--corpus", food, "--corpus", papers, *small)
    assert (code, err) == (0, "")
    assert "other seeds" in out and "random, uniform" in out
    assert (tmp_path / "out" / "importance-H-papers.png").is_file()
    for given, message in (([food, food], "sets 'food' twice"), ([str(tmp_path / "food.txt")], "expects name=value")):
        corpora = [word for value in given for word in ("--corpus", value)]
        code, _, err = call(monkeypatch, capsys, *start, *corpora, *small)
        assert code == 2 and message in err and len(err.strip().splitlines()) == 1
