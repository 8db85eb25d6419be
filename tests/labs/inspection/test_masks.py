"""`inspect masks`: statistics against a slow implementation, rendering of samples, page, terminal and errors."""

from __future__ import annotations

import io
import json
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.labs.inspection.mask_summary import count_masks, mask_tables
from acclimate.labs.inspection.masks import inspect_masks
from acclimate.parts.masking import IGNORE_INDEX, get
from acclimate.parts.masking.preview import preview_tokens
from acclimate.report.masked_text import as_html, as_rich
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.parts.masking.kinds import batches, tokenizer, vocabulary, word_tokens
from tests.test_cli import call
from tests.tiny import TEXTS, save_tiny

CORPUS = [f"{text} <b>unseen & {number}</b>" for text in TEXTS for number in range(24)]


def inspect(model, out=None, documents=CORPUS, **options):
    return inspect_masks(model, Corpus.of(documents), out, progress=False, **{"max_length": 40, "texts": 3, **options})


class Reader(HTMLParser):
    """Parses a page into its text, the classes of its marks, and its tags."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words, self.marks = Counter(), "", []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag == "mark":
            self.marks.append(dict(attributes)["class"])

    def handle_data(self, data):
        self.words += data


@each("kind", ["bert", "roberta"])
def test_statistics_against_a_slow_implementation(kind):
    special = np.array(tokenizer(kind).all_special_ids)
    made = batches(get("random", 0.3), kind, copies=4)
    stops = {"the", "a", "was", "and", "unseen"}
    counts = count_masks(made, vocabulary(kind), special, stops)
    tokens = masked = first = first_masked = several = whole = runs = 0
    seen, hit = Counter(), Counter()
    for batch in made:
        for number in range(batch.texts):
            here = batch.text == number
            ids, chosen = batch.original[here].tolist(), (batch.labels[here] >= 0).tolist()
            runs += sum(one and not before for before, one in zip([False, *chosen], chosen, strict=False))
            text = tokenizer(kind).decode(ids, skip_special_tokens=True)
            if kind == "bert":  # decoding is lossy, so words are joined by their ## prefixes
                names = tokenizer(kind).convert_ids_to_tokens(ids)
                pieces = []
                for name, one, id_ in zip(names, chosen, ids, strict=True):
                    if id_ in special:
                        continue
                    if name.startswith("##"):
                        pieces[-1].append((name[2:], one))
                    else:
                        pieces.append([(name, one)])
            else:
                flags = iter(one for one, id_ in zip(chosen, ids, strict=True) if id_ not in special)
                pieces = [[(name, next(flags)) for name in word] for word in word_tokens(kind, text)]
            for word in pieces:
                flags_here = [one for _, one in word]
                tokens += len(word)
                masked += sum(flags_here)
                first += 1
                first_masked += flags_here[0]
                names = [name for name, _ in word]
                spelled = "".join(names) if kind == "bert" else tokenizer(kind).convert_tokens_to_string(names)
                spelled = spelled.strip().lower()
                seen[spelled] += 1
                hit[spelled] += any(flags_here)
                several += len(word) > 1 and any(flags_here)
                whole += len(word) > 1 and all(flags_here)
    assert (counts["tokens"], counts["masked"]) == (tokens, masked)
    assert counts["rate"] == masked / tokens
    assert counts["first_rate"] == first_masked / first
    assert counts["later_rate"] == (masked - first_masked) / (tokens - first)
    assert counts["whole"] == whole / several
    assert counts["run"] == masked / runs
    assert counts["stop_words"] == sum(hit[word] for word in stops) / hit.total()
    assert counts["all_stop_words"] == sum(seen[word] for word in stops) / seen.total()
    assert all((hit[word], seen[word]) == (a, b) for word, a, b in counts["often"] + counts["mostly"])
    assert counts["often"][0][1] == max(count for word, count in hit.items() if word.isalnum())
    assert sum(counts["replacements"].values()) == pytest.approx(1)
    assert 0.7 < counts["replacements"]["mask"] < 0.9


def test_a_sample_in_a_terminal_and_on_a_page():
    tokens = tokenizer("bert").convert_tokens_to_ids
    original = np.array([2, *tokens(["the", "food", "was", "b", "##a", "##d", "."]), 1, *tokens(["wine"]), 3])
    labels = np.full_like(original, IGNORE_INDEX)
    masked = original.copy()
    for place, now in ((1, 4), (2, 4), (4, tokens("soup")), (5, tokens("##z")), (9, original[9])):
        labels[place], masked[place] = original[place], now
    pieces = preview_tokens(original, masked, labels, tokenizer("bert").all_special_ids, vocabulary("bert"))
    assert [piece["text"] for piece in pieces] == ["the", "food", "was", "b", "a", "d", ".", "[UNK]", "wine"]
    assert as_rich(pieces).plain == "[the food] was [b→soup][a→z]d. [UNK] [wine=]"
    read = Reader(as_html(pieces))
    assert read.words == "the food was b → soupa → zd. [UNK] wine"
    assert read.marks == ["mask", "random", "random", "unchanged"]
    assert preview_tokens(np.array([2, 3]), np.array([2, 3]), np.array([-100, -100]), [2, 3], vocabulary("bert")) == []


def test_incomplete_characters_are_replaced():
    ids = np.array(tokenizer("roberta")("soup 🍮")["input_ids"])
    pieces = preview_tokens(ids, ids, np.full_like(ids, -100), [0, 2], vocabulary("roberta"))
    assert "".join(piece["text"] for piece in pieces).startswith("soup")
    assert "\N{REPLACEMENT CHARACTER}" in "".join(piece["text"] for piece in pieces)
    assert "\0" not in str(pieces)


def test_report_page_and_terminal_agree(tmp_path):
    model = save_tiny("bert", tmp_path / "<model>")
    (tmp_path / "words.txt").write_text("soup\nslow service\n")
    lexicon = f"lexicon-first lexicon={tmp_path / 'words.txt'}"
    report = inspect(model, tmp_path / "out", maskings=["random", "whole-word", lexicon], mask_rate=0.25)
    written = json.loads((tmp_path / "out" / "masks.json").read_text())
    assert [*written.pop("checksums")] == ["masks.html"] and report == written
    assert [masking["label"] for masking in report["maskings"]] == ["random", "whole-word", "lexicon-first"]
    random, whole, listed = (masking["counts"] for masking in report["maskings"])
    assert whole["whole"] == 1 > random["whole"]
    assert listed["mostly"][0][0] in ("soup", "slow", "service")
    assert all(abs(counts["rate"] - 0.25) < 0.03 for counts in (random, whole, listed))
    assert len(report["samples"]) == 3
    page = (tmp_path / "out" / "masks.html").read_text()
    read = Reader(page)
    assert read.tags["b"] == read.tags["model"] == read.tags["script"] == read.tags["link"] == read.tags["img"] == 0
    assert f"tokenizer of {model}" in read.words and "&lt;model&gt;" in page
    assert "url(" not in page and "http" not in page.replace("http-equiv", "")
    for sample in report["samples"]:
        for pieces in sample["maskings"].values():
            assert Reader(as_html(pieces)).words in read.words
    console = Console(width=80, record=True, file=io.StringIO())
    for part in mask_tables(report):
        console.print(part, highlight=False)
    text = console.export_text()
    assert "lexicon-first, highest masking rate: " in text
    assert f"{100 * random['rate']:.1f} %" in text and f"{100 * random['rate']:.1f} %" in read.words
    assert max(map(len, text.splitlines())) <= 80


def test_two_maskings_of_one_name_have_their_parameters_as_label(tiny_bert):
    report = inspect(tiny_bert, maskings=["span", "span p=0.5 longest=3"])
    assert [masking["label"] for masking in report["maskings"]] == ["span", "span p=0.5 longest=3"]
    long, short = (masking["counts"]["run"] for masking in report["maskings"])
    assert long > short


def test_custom_maskings(tiny_bert):
    def first(ids, text, allowed, vocabulary, rng):
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, 1] = ids[:, 1]
        return ids, labels

    (masking,) = inspect(tiny_bert, documents=TEXTS, maskings={"first": first})["maskings"]
    assert masking["counts"]["masked"] == len(TEXTS)
    assert masking["counts"]["replacements"] == {"mask": 0, "random": 0, "unchanged": 1}
    assert masking["counts"]["later_rate"] == 0


@each(
    ("options", "message"),
    [
        ({"maskings": ["whole-words"]}, "Did you mean 'whole-word'"),
        ({"maskings": ["span p"]}, "NAME parameter=value"),
        ({"maskings": ["span 'p"]}, "NAME parameter=value"),
        ({"maskings": []}, "at least one"),
        ({"texts": 0}, "'texts' must be at least 1"),
        ({"mask_rate": 0}, "'mask_rate' must be more than 0"),
        ({"stop_words": "absent"}, "stop_words"),
    ],
)
def test_invalid_arguments(tiny_bert, options, message):
    with pytest.raises(UserError, match=message):
        inspect(tiny_bert, **options)


def test_on_the_command_line(tiny_bert, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("\n".join(CORPUS))
    arguments = ["--model", tiny_bert, "--corpus", tmp_path / "text.txt", "--out", tmp_path / "out", "--quiet"]
    code, out, _ = call(monkeypatch, capsys, "inspect", "masks", *arguments, "--texts", 1)
    assert code == 0
    assert "span-merge" in out and "[" in out and "masks.html" in out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    code, _, err = call(monkeypatch, capsys, "inspect", "masks", *arguments[:4], "--out", tmp_path / "mine", "--quiet")
    assert code == 2 and "previews of masks" in err


def opinions():
    """A task in which a single word decides the label."""
    chance = np.random.default_rng(0)
    words = "the food menu table wine was and with pizza soup".split()

    def rows(count):
        made = []
        for number in range(count):
            text = chance.choice(words, 5).tolist()
            text.insert(int(chance.integers(5)), ("bad", "good")[number % 2])
            made.append({"text": " ".join(text), "label": number % 2})
        return made

    return Task.of("opinions", rows(96), rows(20), rows(20))


@pytest.mark.slow
def test_a_task_adds_selective_masking_and_marks_important_tokens(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    quick = {
        "finetune_epochs": 6, "finetune_learning_rate": 3e-3, "finetune_batch_size": 16, "token_epochs": 6,
        "token_learning_rate": 5e-3, "token_batch_size": 8, "delta": 0.1,
    }  # fmt: skip
    documents = ["the food was good and the wine was with pizza and soup", "the bad soup was the menu and the table"]
    report = inspect(
        tiny_bert, tmp_path / "out", documents=documents * 2, maskings=["random"], texts=2, task=opinions(),
        method={"selective": quick}, precision="fp32",
    )  # fmt: skip
    assert [masking["label"] for masking in report["maskings"]] == ["random", "selective"]
    selective = report["maskings"][1]
    assert selective["counts"]["masked"] == report["selective"]["mark"]["important"] > 0
    assert report["selective"]["train"]["f1"] > 0
    assert "Gu et al." in selective["paper"]
    for sample in report["samples"]:
        random, found = sample["maskings"]["random"], sample["maskings"]["selective"]
        assert [bool(piece["replacement"]) for piece in found] == [piece.get("important", False) for piece in found]
        assert [piece.get("important") for piece in random] == [piece.get("important") for piece in found]
    assert "important" in " ".join(Reader((tmp_path / "out" / "masks.html").read_text()).marks)
    console = Console(width=80, record=True, file=io.StringIO())
    for part in mask_tables(report):
        console.print(part, highlight=False)
    assert "*important to the end task" in console.export_text()
    with pytest.raises(UserError, match="needs a labelled task"):
        inspect(tiny_bert, method={"selective": quick})


def test_importance_is_visible_without_colours():
    plain = {"text": "food", "space": True, "replacement": "", "replaced_by": ""}
    pieces = [{**plain, "important": True}, plain, {**plain, "replacement": "mask", "important": True}]
    assert as_rich(pieces).plain.split() == ["*food*", "food", "[*food*]"]
