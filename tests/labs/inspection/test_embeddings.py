"""`inspect embeddings` on tiny models whose rows moved by known amounts, and its computations by hand."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console
from sklearn.decomposition import PCA

from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.labs.inspection.embeddings import embedding_tables, inspect_embeddings, log_odds, principal_plane
from acclimate.parts.modules import add_virtual_tokens
from tests.test_cli import call
from tests.tiny import VOCABULARY, add_token, save_tiny, tiny_tokenizer

FOOD = Corpus.of([f"pizza pasta soup wine {'menu' if number % 2 else 'table'} the of {number}" for number in range(9)])
PAPERS = Corpus.of([f"model gradient loss layer the of table {number}" for number in range(9)])


@pytest.fixture(scope="module")
def moved(tiny_bert, tmp_path_factory):
    """A model whose rows of ``pizza`` and ``soup`` moved by 3 and by 1."""
    folder = tmp_path_factory.mktemp("moved") / "moved"
    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_bert)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table[VOCABULARY["pizza"], 0] += 3.0
        table[VOCABULARY["soup"], 5] -= 1.0
        table[VOCABULARY["[SEP]"], 5] -= 100.0  # special tokens are not counted
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_distances_are_those_of_the_changes(tiny_bert, moved, tmp_path):
    result = inspect_embeddings(tiny_bert, [moved, tiny_bert], tmp_path / "out", text=FOOD, progress=False)
    report = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    assert report.pop("checksums") and report == json.loads(json.dumps(result.report))
    found = report["movement"]["moved"]
    assert found["all"]["distance"] == pytest.approx(4 / (len(VOCABULARY) - 5), rel=1e-5)
    assert found["all"]["moved"] == pytest.approx(2 / (len(VOCABULARY) - 5))
    # pizza, pasta, soup, wine, menu, table, the, of and the digits 0 to 8
    assert found["seen"]["tokens"] == 17
    assert found["seen"]["distance"] == pytest.approx(4 / 17, rel=1e-5)
    assert found["read"]["distance"] == pytest.approx((9 * 3 + 9 * 1) / (9 * 8), rel=1e-5)
    assert report["movement"]["bert"]["all"]["distance"] == 0
    assert (tmp_path / "out" / "embeddings.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "embeddings.svg").read_text()
    assert set(result.planes) == {"before", "moved", "bert"} and len(result.shown) == 17
    console = Console(width=80, record=True, file=io.StringIO())
    for part in embedding_tables(report):
        console.print(part, highlight=False, markup=False)
    text = console.export_text()
    assert "tokens of the text" in text and f"{4 / 17:.4f}" in text and "0.172" in text
    assert max(map(len, text.splitlines())) <= 80


def labelled(*arguments, **options):
    report = inspect_embeddings(*arguments, progress=False, **options).report
    return list(report["words"]), report["rule"]


def test_words_are_selected_by_the_reported_rule(tiny_bert, moved):
    words, rule = labelled(tiny_bert, [moved], text=FOOD, against=PAPERS, count=4)
    assert set(words) == {"pizza", "pasta", "soup", "wine"} and "log-odds" in rule
    words, rule = labelled(tiny_bert, [moved], text=FOOD, count=4)
    assert set(words) == {"pizza", "pasta", "soup", "wine"} and "frequent" in rule
    words, rule = labelled(tiny_bert, [moved], count=2)
    assert words == ["pizza", "soup"] and "moved" in rule
    words, rule = labelled(tiny_bert, [moved], words=["loss", "menu"])
    assert words == ["loss", "menu"] and rule == "given"


def test_virtual_tokens_are_not_counted(tiny_bert, moved, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_pretrained(moved)
    tokenizer = add_virtual_tokens(model, tiny_tokenizer(), 3)
    model.save_pretrained(tmp_path / "prompt")
    tokenizer.save_pretrained(tmp_path / "prompt")
    for before in (tiny_bert, tmp_path / "prompt"):
        found = inspect_embeddings(before, [tmp_path / "prompt"], text=FOOD, progress=False).report
        assert found["movement"]["prompt"]["seen"]["tokens"] == 17


def test_added_tokens_keep_their_names(tmp_path):
    folder = save_tiny("bert", tmp_path / "added")
    add_token(folder, "erlotinib")
    text = Corpus.of([f"erlotinib erlotinib the {number}" for number in range(3)])
    assert labelled(folder, [folder], text=text, count=1)[0] == ["erlotinib"]
    assert labelled(folder, [folder], words=["erlotinib"])[0] == ["erlotinib"]


def test_invalid_comparisons_are_errors(tiny_bert, moved, tmp_path):
    with pytest.raises(UserError, match="'gradients' is 2 tokens"):
        inspect_embeddings(tiny_bert, [moved], words=["gradients"], progress=False)
    with pytest.raises(UserError, match="at least one"):
        inspect_embeddings(tiny_bert, [], progress=False)
    with pytest.raises(UserError, match="two models with the name 'moved'"):
        inspect_embeddings(tiny_bert, [moved, moved], progress=False)
    other = save_tiny("bert", tmp_path / "other")
    add_token(other, "brandnew")
    with pytest.raises(UserError, match="different vocabularies"):
        inspect_embeddings(tiny_bert, [other], progress=False)


def test_the_command_line(tiny_bert, moved, tmp_path, monkeypatch, capsys):
    (tmp_path / "food.txt").write_text("\n".join(FOOD))
    code, out, error = call(
        monkeypatch, capsys, "inspect", "embeddings", "--before", tiny_bert, "--after", f"shifted={moved}",
        "--corpus", tmp_path / "food.txt", "--word", "pizza", "--out", tmp_path / "out", "--quiet",
    )  # fmt: skip
    assert code == 0, error
    assert "shifted" in out and "3.0000" in out


def test_the_principal_plane_of_a_noisy_line():
    """Points along (1, 1, 0), with a tenth of their spread along (0, 0, 1)."""
    line = np.array([[-2.0, -2.0, 0.2], [-1.0, -1.0, -0.2], [1.0, 1.0, -0.2], [2.0, 2.0, 0.2]])
    (plane,), shares = principal_plane([line])
    assert plane[:, 0] == pytest.approx([-2 * math.sqrt(2), -math.sqrt(2), math.sqrt(2), 2 * math.sqrt(2)])
    assert plane[:, 1] == pytest.approx([0.2, -0.2, -0.2, 0.2])
    assert shares == pytest.approx((20 / 20.16, 0.16 / 20.16))


def test_the_principal_plane_is_common_to_all_matrices():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(30, 6)), rng.normal(1, 2, size=(20, 6))
    planes, shares = principal_plane([one, other])
    expected = PCA(2).fit(np.concatenate([one, other]))
    for plane, matrix in zip(planes, (one, other), strict=True):
        assert np.abs(plane) == pytest.approx(np.abs(expected.transform(matrix)), abs=1e-8)
    assert shares == pytest.approx(tuple(expected.explained_variance_ratio_))
    assert principal_plane([one, other])[0][0] == pytest.approx(planes[0])


def test_log_odds_by_hand():
    domain, other = np.array([9, 1, 0]), np.array([1, 9, 0])
    found = log_odds(domain, other)
    up = (math.log(9.5 / 2.0) - math.log(1.5 / 10.0)) / math.sqrt(1 / 9.5 + 1 / 1.5)
    assert found == pytest.approx([up, -up, 0.0])
    rare = log_odds(np.array([100, 1, 899]), np.array([50, 0, 950]))
    assert rare[0] > rare[1] > 0  # a single occurrence is weaker evidence than a doubled frequency
