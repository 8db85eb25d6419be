"""`inspect embeddings` on tiny models whose rows were moved by known amounts."""

from __future__ import annotations

import io
import json

import pytest
import torch
import transformers
from rich.console import Console

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from acclimate.inspect import inspect_embeddings
from acclimate.inspect.embeddings import embedding_tables
from acclimate.modules import add_virtual_tokens
from tests.test_cli import call
from tests.tiny import VOCABULARY, add_token, save_tiny, tiny_tokenizer

FOOD = Corpus.of([f"pizza pasta soup wine {'menu' if number % 2 else 'table'} the of {number}" for number in range(9)])
PAPERS = Corpus.of([f"model gradient loss layer the of table {number}" for number in range(9)])


@pytest.fixture(scope="module")
def moved(tiny_bert, tmp_path_factory):
    """A model whose rows of ``pizza`` and ``soup`` lie 3 and 1 away from where they were."""
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


def test_how_far_is_what_was_moved(tiny_bert, moved, tmp_path):
    result = inspect_embeddings(tiny_bert, [moved, tiny_bert], tmp_path / "out", text=FOOD, progress=False)
    report = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    assert report == json.loads(json.dumps(result.report))
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


def test_words_are_chosen_by_the_rule_that_is_told(tiny_bert, moved):
    words, rule = labelled(tiny_bert, [moved], text=FOOD, against=PAPERS, count=4)
    assert set(words) == {"pizza", "pasta", "soup", "wine"} and "log-odds" in rule
    words, rule = labelled(tiny_bert, [moved], text=FOOD, count=4)
    assert set(words) == {"pizza", "pasta", "soup", "wine"} and "frequent" in rule
    words, rule = labelled(tiny_bert, [moved], count=2)
    assert words == ["pizza", "soup"] and "moved" in rule
    words, rule = labelled(tiny_bert, [moved], words=["loss", "menu"])
    assert words == ["loss", "menu"] and rule == "given"


def test_virtual_tokens_are_no_part_of_the_text(tiny_bert, moved, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_pretrained(moved)
    tokenizer = add_virtual_tokens(model, tiny_tokenizer(), 3)
    model.save_pretrained(tmp_path / "prompt")
    tokenizer.save_pretrained(tmp_path / "prompt")
    for before in (tiny_bert, tmp_path / "prompt"):
        found = inspect_embeddings(before, [tmp_path / "prompt"], text=FOOD, progress=False).report
        assert found["movement"]["prompt"]["seen"]["tokens"] == 17


def test_words_that_a_user_added_have_their_names(tmp_path):
    folder = save_tiny("bert", tmp_path / "added")
    add_token(folder, "erlotinib")
    text = Corpus.of([f"erlotinib erlotinib the {number}" for number in range(3)])
    assert labelled(folder, [folder], text=text, count=1)[0] == ["erlotinib"]
    assert labelled(folder, [folder], words=["erlotinib"])[0] == ["erlotinib"]


def test_what_cannot_be_compared_is_said(tiny_bert, moved, tmp_path):
    with pytest.raises(UserError, match="'gradients' is 2 tokens"):
        inspect_embeddings(tiny_bert, [moved], words=["gradients"], progress=False)
    with pytest.raises(UserError, match="at least one"):
        inspect_embeddings(tiny_bert, [], progress=False)
    with pytest.raises(UserError, match="same name"):
        inspect_embeddings(tiny_bert, [moved, moved], progress=False)
    other = save_tiny("bert", tmp_path / "other")
    add_token(other, "brandnew")
    with pytest.raises(UserError, match="another vocabulary"):
        inspect_embeddings(tiny_bert, [other], progress=False)


def test_the_command_line(tiny_bert, moved, tmp_path, monkeypatch, capsys):
    (tmp_path / "food.txt").write_text("\n".join(FOOD))
    code, out, error = call(
        monkeypatch, capsys, "inspect", "embeddings", "--before", tiny_bert, "--after", f"shifted={moved}",
        "--corpus", tmp_path / "food.txt", "--word", "pizza", "--out", tmp_path / "out", "--quiet",
    )  # fmt: skip
    assert code == 0, error
    assert "shifted" in out and "3.0000" in out
