"""Entities are read from every usual format, with the same result, and nothing is dropped silently."""

from __future__ import annotations

import contextlib
import json
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import find_task_kind, load_task, task_texts
from acclimate.tasks.interfaces import item_texts
from acclimate.tasks.kinds.entities.formats import read_columns
from acclimate.tasks.kinds.entities.schemes import find_scheme, read_entities, split_tag
from tests.cases import each
from tests.fixtures import SHARED

WORDS = ["the", "waiter", "of", "pasta", "house", "was", "rude"]
IOB2 = ["O", "B-ROLE", "O", "B-PLACE", "I-PLACE", "O", "O"]
ROW = {"tokens": WORDS, "tags": IOB2}
TEXT = " ".join(WORDS)
SPANS = [(4, 10, "ROLE"), (14, 25, "PLACE")]
NAMES = ["O", "B-PLACE", "I-PLACE", "B-ROLE"]


def tagged(tags, count=30):
    return [{"tokens": [*WORDS[:-1], f"rude{number}"], "tags": tags} for number in range(count)]


def entities_of(task, split="train"):
    return [[(e.start, e.end, e.type) for e in sentence.entities] for sentence in getattr(task, split)]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def span_rows(column="spans", names=("start", "end", "label"), text="text"):
    return [{text: TEXT, column: [dict(zip(names, span, strict=True)) for span in SPANS]}]


EXPORT = {
    "data": {"text": TEXT},
    "annotations": [
        {"was_cancelled": True, "result": []},
        {"result": [{"value": {"start": s, "end": e, "text": TEXT[s:e], "labels": [name]}, "type": "labels"}
                    for s, e, name in SPANS]},
    ],
}  # fmt: skip
FORMS = {
    "tokens and tags": [ROW],
    "names of datasets": [{"words": WORDS, "ner_tags": IOB2, "pos_tags": WORDS}],
    "lists as text, as in CSV": [{"tokens": json.dumps(WORDS), "tags": str(IOB2)}],
    "prodigy": [{**row, "tokens": [{"text": word, "id": n} for n, word in enumerate(WORDS)], "answer": "accept"}
                for row in span_rows()],
    "doccano": [{"id": 1, "text": TEXT, "label": [list(span) for span in SPANS]}],
    "doccano, new": span_rows("entities", ("start_offset", "end_offset", "label")),
    "label studio": [EXPORT],
    "spacy": [[TEXT, {"entities": [list(span) for span in SPANS]}]],
    "kaggle": [{"Sentence #": "" if n else "Sentence: 1", "Word": word, "POS": "NN", "Tag": tag}
               for n, (word, tag) in enumerate(zip(WORDS, IOB2, strict=True))],
    "label studio, short": [{"text": TEXT, "label": [{"start": start, "end": end, "labels": [name]}
                                                     for start, end, name in SPANS]}],
}  # fmt: skip


def test_every_form_gives_the_same_entities(tmp_path):
    for name, rows in FORMS.items():
        folder = tmp_path / name
        folder.mkdir()
        for split in ("train", "test"):
            write_lines(folder / f"{split}.jsonl", rows)
        for task in (load_task(folder), load_task({"train": rows, "test": rows})):
            assert (task.task_kind, task.labels) == ("entities", ["PLACE", "ROLE"]), name
            assert entities_of(task) == entities_of(task, "test") == [SPANS], name
            assert task_texts(task) == [TEXT] and item_texts(task)["test"] == [TEXT]
            assert task.scheme == (
                "IOB2"
                if ("tokens" in rows[0] and name != "prodigy") or "words" in rows[0] or "Tag" in rows[0]
                else "spans"
            )
    assert find_task_kind(task).answer(task.train[0], task) == "ROLE: waiter; PLACE: pasta house"
    annotator = {
        "classes": ["ROLE", "PLACE"],
        "annotations": [*([f"{TEXT} {n}", FORMS["spacy"][0][1]] for n in range(30)), None],
    }
    (tmp_path / "annotator.json").write_text(json.dumps(annotator))
    assert entities_of(load_task(tmp_path / "annotator.json"))[0] == SPANS
    (tmp_path / "export.json").write_text(json.dumps([EXPORT] * 3))
    with pytest.raises(UserError, match=r"its 3 train sentences form 1 group \(equal texts"):
        load_task(tmp_path / "export.json")


def test_class_labels_of_datasets_have_names(tmp_path):
    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=NAMES))})
    rows = {"tokens": [WORDS] * 2, "ner_tags": [[NAMES.index(tag) for tag in IOB2]] * 2}
    data = Dataset.from_dict(rows, features=features)
    data.to_parquet(tmp_path / "train.parquet")
    data.to_parquet(tmp_path / "test.parquet")
    both = DatasetDict(train=data, test=data)
    both.save_to_disk(tmp_path / "saved")
    for source in (both, tmp_path, tmp_path / "saved", {"train": data.to_pandas(), "test": data}):
        if isinstance(source, dict) and not isinstance(source, DatasetDict):
            with pytest.raises(UserError, match="give the tags names"):
                load_task(source)  # pandas has only numbers
        else:
            assert entities_of(load_task(source)) == [SPANS, SPANS]


@each(("name", "lines", "scheme"), [
    ("train.conll", "# id 1\n-DOCSTART- -X- O O\n\n{}\n", "IOB2"),
    ("train.txt", "{}\n\n", "IOB2"),
    ("data.train.tsv", "{}\n\n\n", "IOB2"),
    ("train.iob2.gz", "{}", "IOB2"),
])  # fmt: skip
def test_files_of_columns(name, lines, scheme, tmp_path):
    import gzip

    separator = "\t" if "tsv" in name else " NN "
    body = lines.format("\n".join(f"{word}{separator}{tag}" for word, tag in zip(WORDS, IOB2, strict=True)))
    for split in ("train", "test"):
        data = (body * 2).encode()
        file = tmp_path / name.replace("train", split)
        file.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    task = load_task(tmp_path)
    expected = 1 if "gz" in name else 2  # without a blank line at its end, the two copies are one sentence
    assert (task.scheme, len(task.train), len(task.test)) == (scheme, expected, expected)
    assert entities_of(task)[0][:2] == SPANS
    documents = ["test 1", "test 2"] if "DOCSTART" in lines else [None] * expected
    assert [sentence.group for sentence in task.test] == documents
    assert (task.scoring().groups is not None) == ("DOCSTART" in lines)
    with pytest.raises(UserError, match="too few"):
        load_task(tmp_path / name)  # a file by itself is recognized, too


def test_words_that_are_numbered_and_tabs_at_the_end_of_lines(tmp_path, caplog):
    lines = [f"{number}\t{word}\tNN\t{tag}\t" for number, (word, tag) in enumerate(zip(WORDS, IOB2, strict=True), 1)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.conll").write_text("\n".join([*lines, "", *lines]))
    assert entities_of(load_task(tmp_path)) == [SPANS, SPANS] and "numbers words in its first column" in caplog.text


@settings(max_examples=30, deadline=None)
@given(
    sentences=st.lists(
        st.lists(st.sampled_from(["in", "5", "dem", "3.5", "Rom"]), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    first=st.integers(0, 3),
    goes_on=st.booleans(),
    extra=st.sampled_from(["", "{0}-{1}\tim\t_\tO\n", "{0}.1\tgone\t_\tO\n"]),
)
def test_numbers_of_words_are_no_words(tmp_path_factory, sentences, first, goes_on, extra):
    lines, number = "", first
    for words in sentences:
        number = number if goes_on else first
        for word in words:
            lines += extra.format(number, number + 1) + f"{number}\t{word}\t_\tO\n"
            number += 1
        lines += "\n"
    path = tmp_path_factory.mktemp("numbered") / "train.conll"
    path.write_text(lines)
    assert [list(one.words) for one in read_columns(path)] == sentences


@each(("lines", "column"), [
    ("Paul\tB-PER\tNNP\nsings\tO\tVB\n\n", "2 of 3"),
    ("1\tPaul\tB-PER\t_\t_\n2\tsings\tO\t_\t_\n\n", "3 of 5"),
    ("B-PER Paul\nO sings\n\n", "1 of 2"),
])  # fmt: skip
def test_tags_that_are_not_last_are_refused(lines, column, tmp_path):
    (tmp_path / "a.conll").write_text(lines * 10)
    with pytest.raises(UserError, match=f"tags in column {column}.*the tag the last"):
        load_task(tmp_path / "a.conll")


def test_a_numbered_word_without_a_tag_is_not_its_own_tag(tmp_path):
    (tmp_path / "a.conll").write_text("1\tPaul\t_\tO\n2\tsings\n3\tnow\t_\tO\n\n")
    with pytest.raises(UserError, match="'sings' has no tag"):
        read_columns(tmp_path / "a.conll")


def test_one_mark_at_the_start_of_a_file_is_no_document(tmp_path):
    body = "\n\n".join("\n".join(f"{word}{n} {tag}" for word, tag in zip(WORDS, IOB2, strict=True)) for n in range(60))
    for start in ("", "-DOCSTART- -X- O O\n\n"):
        (tmp_path / "all.conll").write_text(start + body)
        task = load_task(tmp_path / "all.conll")
        assert (len(task.train), len(task.dev), len(task.test)) == (42, 6, 12)
        assert {sentence.group for sentence in task.train} == {None}


def test_files_of_spacy_are_named_with_what_to_do(tmp_path):
    """The message has the line that converts them; here only its result can be read."""
    (tmp_path / "train.spacy").write_bytes(b"x")
    for source in (tmp_path, tmp_path / "train.spacy"):
        with pytest.raises(UserError, match=r"A .spacy file is not read; .*python -c .*DocBin.* > train.jsonl"):
            load_task(source)
    write_lines(
        tmp_path / "train.jsonl", [{**row, "text": f"{row['text']} {n}"} for n in range(30) for row in span_rows()]
    )
    assert load_task(tmp_path / "train.jsonl").labels == ["PLACE", "ROLE"]


def test_folders_of_brat(tmp_path, caplog):
    """Parts of an entity are joined, relations are not read; documents that cannot be used are left out."""
    for split, count in (("train", 12), ("test", 4)):
        (tmp_path / split).mkdir()
        for number in range(count):
            text = f"🍝 Ada Lovelace of {number}\r\nwas in\nLondon."
            at = text.index("in\nLondon")
            lines = [
                "T1\tPER 2 14\tAda Lovelace",
                f"T2\tLOC {at} {at + 2};{at + 3} {at + 9}\tin London",
                "R1\tborn Arg1:T1 Arg2:T2",
                "#1\tAnnotatorNotes T1\tsure",
            ]
            (tmp_path / split / f"d{number}.txt").write_bytes(text.encode())
            (tmp_path / split / f"d{number}.ann").write_text("\n".join(lines))
    (tmp_path / "train" / "d0.txt").unlink()
    (tmp_path / "train" / "d1.ann").write_text("T1\tPER two 14\tAda")
    (tmp_path / "train" / "empty.txt").write_text("Nobody is here.")
    (tmp_path / "train" / "empty.ann").write_text("")
    task = load_task(tmp_path, name="t")
    assert (len(task.train), len(task.dev), len(task.test), task.labels) == (11, 0, 4, ["LOC", "PER"])
    found = [[row.text[start:end] for start, end, _ in row.entities] for row in task.test]
    assert found == [["Ada Lovelace", "in\nLondon"]] * 4
    assert "1 without a text (first: d0.ann" in caplog.text and "1 with an entity that cannot be used" in caplog.text
    assert load_task(tmp_path / "train", name="t").drawn
    with pytest.raises(UserError, match="'strict' is given"):
        load_task(tmp_path, strict=True)


@each("form", ["corpus/{}/{}", "{}_set/{}", "data/{}ing/en/{}", "{}/.cache/{}"])
def test_folders_of_brat_belong_to_the_split_that_a_parent_names(form, tmp_path, caplog):
    for split, count in (("train", 12), ("test", 4)):
        for number in range(count):
            path = tmp_path / form.format(split, f"{split}{number}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"Aspirin helps {split} {number} well.")
            path.with_suffix(".ann").write_text("T1\tDRUG 0 7\tAspirin")
    if ".cache" in form:
        with pytest.raises(UserError):
            load_task(tmp_path)
        return
    task = load_task(tmp_path)
    assert len(task.train) == 12 and [row.row for row in task.test] == [f"test{number}.ann" for number in range(4)]
    path.with_name("alone.txt").write_text("Nothing is marked here.")
    (tmp_path / "more").mkdir()
    assert load_task(tmp_path) == task and "1 texts of" in caplog.text and "alone.txt" in caplog.text
    (tmp_path / "more" / "a.ann").write_text("T1\tDRUG 0 7\tAspirin")
    with pytest.raises(UserError, match=r"a\.ann' is in no folder of a split"):
        load_task(tmp_path)


def test_the_text_of_an_export_is_the_one_that_its_spans_are_in():
    mark = {"type": "labels", "value": {"start": 0, "end": 7, "text": "Aspirin", "labels": ["DRUG"]}}
    data = [{"meta": "a note on it", "ner": f"Aspirin helps {n}."} for n in range(9)]
    task = load_task([{"data": one, "annotations": [{"result": [mark]}]} for one in data])
    assert {sentence.text for sentence in (*task.train, *task.test)} <= {one["ner"] for one in data}


def test_spans_after_many_rows_without_any_are_found():
    rows = [{"text": f"dish {n} was good", "entities": [] if n < 150 else [{"start": 0, "end": 4, "label": "X"}]}
            for n in range(200)]  # fmt: skip
    assert load_task(rows).labels == ["X"]


def test_sentences_of_a_table_with_a_word_per_row(tmp_path):
    lines = ["Sentence #,Word,POS,Tag"]
    for number in range(40):
        first = [f"Sentence: {number}", *[""] * (len(WORDS) - 1)]
        lines += [f"{one},{word}{number},NN,{tag}" for one, word, tag in zip(first, WORDS, IOB2, strict=True)]
    (tmp_path / "bio.csv").write_text("\n".join(lines))
    rows = [
        {"sent_id": n, "token": f"{word}{n}", "label": tag}
        for n in range(40)
        for word, tag in zip(WORDS, IOB2, strict=True)
    ]
    for task in (load_task(tmp_path / "bio.csv"), load_task(rows)):
        assert (task.task_kind, len(task.train), len(task.dev), len(task.test)) == ("entities", 28, 4, 8)
        assert all(len(sentence.words) == 7 and len(sentence.entities) == 2 for sentence in task.train)
    with pytest.raises(UserError, match=r"row 8: the tag of '.*' is None, which is no tag"):
        made = [*rows[:7], {**rows[7], "label": None}, *rows[8:]]
        load_task(made, text_column="token", task_kind="entities", strict=True)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.sampled_from(["PER", "a_b"])), min_size=2, max_size=6
    ),
    mark=st.sampled_from("_.:/|+~=–"),
    scheme=st.sampled_from(["IOB2", "BIOES"]),
    at_end=st.booleans(),
    lower=st.booleans(),
)
def test_tags_with_another_separator_are_the_usual_ones(parts, mark, scheme, at_end, lower):
    """Tags that are not certain to have a separator are refused, and names that look like it stay names."""
    spans, place = [(0, 2, "PER")], 2
    for width, gap, name in parts:
        spans.append((place + gap, place + gap + width, name))
        place += gap + width
    tags = to_scheme(spans, place + 1, scheme)
    split = [(prefix.lower() if lower else prefix, name) for prefix, _, name in (tag.partition("-") for tag in tags)]
    other = [mark.join(reversed(pair) if at_end else pair) if pair[1] else "O" for pair in split]
    words = [f"w{number}" for number in range(len(tags))]
    tasks = [
        load_task({split: [{"tokens": words, "tags": form}] for split in ("train", "test")}) for form in (tags, other)
    ]
    assert tasks[0].train == tasks[1].train and tasks[0].labels == tasks[1].labels


def test_names_that_look_like_prefixes(caplog):
    def load(*tags):
        return load_task({split: [{"tokens": ["w"] * len(tags), "tags": tags}] for split in ("train", "test")})

    with pytest.raises(UserError, match=r"the tag 'LOC' has no prefix, but others have one, such as 'B_PER'; write"):
        load("B_PER", "I_PER", "O", "LOC")
    with pytest.raises(UserError, match="'B_cell' has no '-' after its prefix, or no prefix"):
        load("B_cell", "O", "I_band")
    assert load("B_cell", "O", "T_cell").labels == ["B_cell", "T_cell"]
    assert load("E_coli", "O", "S_aureus", "DNA").labels == ["DNA", "E_coli", "S_aureus"]
    assert load("B_PER", "I_PER", "O").labels == ["PER"] and "'B-PER' where the file has 'B_PER'" in caplog.text


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from(["😀", "Ünal", "a", "fire", "𝒳", "men", "."]), min_size=1, max_size=8),
                   min_size=3, max_size=6),
    unit=st.sampled_from(["utf-32-le", "utf-16-le", "utf-8", "inclusive", "line ends"]),
    shows=st.booleans(),
)  # fmt: skip
def test_offsets_count_characters_utf16_units_or_bytes_and_ends_may_be_inclusive(texts, unit, shows):
    last, blank = int(unit == "inclusive"), "\r\n" if unit == "line ends" else " "
    unit = unit if unit.startswith("utf") else "utf-32-le"
    size = {"utf-32-le": 4, "utf-16-le": 2, "utf-8": 1}[unit]
    rows, expected = [], []
    for words in [*texts, ["😀Ü", "driver", "x", "firemen"]]:
        text, spans = blank.join(words), []
        for place, word in enumerate(words):
            if word.isalpha() and len(word) > 2:
                start = len(blank.join([*words[:place], ""]))
                spans.append((start, start + len(word), "X"))
        expected.append(
            [(start - text[:start].count("\r"), end - text[:end].count("\r"), x) for start, end, x in spans]
        )
        marks = [
            {
                "start": len(text[:start].encode(unit)) // size,
                "end": len(text[:end].encode(unit)) // size - last,
                "label": name,
            }
            | ({"text": text[start:end]} if shows else {})
            for start, end, name in spans
        ]
        rows.append({"text": text.replace("\r", ""), "spans": marks})
    assert entities_of(load_task({"train": rows, "test": rows})) == expected


@each("shift", [1, 2, -2])
def test_entities_that_are_not_at_words_are_said(shift, caplog):
    def rows(by):
        ends = [10 + len(str(n)) + by for n in range(40)]
        spans = [[{"start": 7 + by, "end": end, "label": "X"}] for end in ends]
        return [{"text": f"We saw Ada{n} here", "spans": own} for n, own in enumerate(spans)]

    caplog.clear()
    load_task(rows(0), name=f"right {shift}")
    assert "at words" not in caplog.text
    load_task(rows(shift), name=f"wrong {shift}")
    assert "40 of 40 entities" in caplog.text and "Offsets count characters" in caplog.text


def test_parts_of_annotations_that_are_not_read_are_named(caplog):
    texts = [f"Ada{n} was here" for n in range(40)]
    spans = [{"start": 0, "end": text.index(" "), "labels": ["PER"]} for text in texts]
    pairs = zip(texts, spans, strict=True)
    marked = [{"text": text, "spans": [{**span, "negated": True, "id": 1}]} for text, span in pairs]
    load_task(marked, name="spans")
    assert "Columns of the task 'spans' that are not used: 'spans: negated' (40)." in caplog.text
    choice = {"value": {"choices": ["x"]}, "type": "choices"}
    results = [[{"value": span, "type": "labels", "from_name": "a"}, choice] for span in spans]
    pairs = zip(texts, results, strict=True)
    load_task([{"data": {"text": text}, "annotations": [{"result": own}]} for text, own in pairs], name="export")
    assert "Columns of the task 'export' that are not used: 'annotations: choices' (40)." in caplog.text


def test_other_text_files_are_no_entities(tmp_path):
    (tmp_path / "train.txt").write_text("I like this O\nnot a tag\n")
    (tmp_path / "train.csv").write_text("text,label\na,B-1\nb,O\nc,O\n")
    (tmp_path / "test.csv").write_text("text,label\na,B-1\nb,O\n")
    assert load_task(tmp_path).task_kind == "classification"


@each(("tags", "scheme", "broken", "words"), [
    (["O", "B-A", "I-A", "O", "B-A", "B-A"], "IOB2", 0, [(1, 3), (4, 5), (5, 6)]),
    (["I-A", "I-A", "B-A", "O", "I-A", "I-B"], "IOB1", 0, [(0, 2), (2, 3), (4, 5), (5, 6)]),
    (["B-A", "E-A", "S-A", "O", "B-A", "I-A", "E-A"], "BIOES", 0, [(0, 2), (2, 3), (4, 7)]),
    (["B-A", "L-A", "U-A", "O"], "BIOES", 0, [(0, 2), (2, 3)]),
    (["B-A", "M-A", "E-A", "S-B"], "BIOES", 0, [(0, 3), (3, 4)]),
    (["B-A", "I-A", "S-A", "E-A"], "BIOES", 2, [(0, 2), (2, 3), (3, 4)]),
    (["I-A", "I-A", "O", "I-A"], "IO", 0, [(0, 2), (3, 4)]),
    (["A", "A", "O", "B"], "IO", 0, [(0, 2), (3, 4)]),
    (["B-A", "I-A", "O", "B-A", "O", "I-A"], "IOB2", 1, [(0, 2), (3, 4), (5, 6)]),
    (["B", "I", "o", "B"], "IOB2", 0, [(0, 2), (3, 4)]),
    (["B-a-b", "I-a-b"], "IOB2", 0, [(0, 2)]),
])  # fmt: skip
def test_schemes(tags, scheme, broken, words):
    task = load_task(tagged(tags + ["O"] * (7 - len(tags)), 60))
    assert task.scheme == scheme
    prefixed = any("-" in tag for tag in tags) or "I" in tags
    parsed = [split_tag(tag, prefixed) for tag in tags]
    assert find_scheme([parsed]).broken == broken
    assert [(first, stop) for first, stop, _ in read_entities(parsed)] == words
    starts = [start for start, _ in task.train[0].words]
    assert [starts.index(start) for start, _, _ in task.train[0].entities] == [first for first, _ in words]


def to_scheme(spans, length, scheme):
    """Write entities as tags, the slow and obvious way."""
    tags = ["O"] * length
    for first, stop, name in spans:
        after_same = any(other[1] == first and other[2] == name for other in spans)
        for place in range(first, stop):
            single, start, end = stop - first == 1, place == first, place == stop - 1
            tags[place] = {
                "IOB2": "B" if start else "I",
                "IOB1": "B" if start and after_same else "I",
                "BIOES": "S" if single else "B" if start else "E" if end else "I",
            }[scheme] + f"-{name}"
    return tags


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.sampled_from("AB")), min_size=1, max_size=6))
def test_tags_of_every_scheme_give_the_entities_back(parts):
    spans, place = [], 0
    for width, gap, name in parts:
        spans.append((place + gap, place + gap + width, name))
        place += gap + width
    for scheme in ("IOB1", "IOB2", "BIOES"):
        parsed = [split_tag(tag) for tag in to_scheme(spans, place + 1, scheme)]
        assert [tuple(found) for found in read_entities(parsed)] == spans
        found = find_scheme([parsed])
        assert found.broken == 0 or found.scheme != scheme


def test_what_is_unusual_is_reported(caplog):
    load_task([*tagged(["B-A", "O", "I-A"] + ["O"] * 4), *tagged(["B-A"] + ["O"] * 6, 40)], name="odd")
    assert "which 30 entities break, such as 'waiter/O of/I-A'" in caplog.text
    caplog.clear()
    spans = [{"start": start, "end": end, "label": name} for start, end, name in [*SPANS, (14, 19, "FOOD")]]
    rows = [{"text": f"{TEXT} {n}", "spans": spans} for n in range(30)]
    rows += [{"text": "no", "spans": [], "answer": "reject"}, {"text": " ", "spans": []}]
    task = load_task(rows, name="nested")
    assert "Overlapping entities of the task 'nested'" in caplog.text and ": 30." in caplog.text
    assert "their answer is 'reject': 1" in caplog.text and "1 without a text (first: nested: row 32)" in caplog.text
    assert task.labels == ["PLACE", "ROLE"]
    caplog.clear()
    test = [{"tokens": ["x", "y"], "tags": ["O", "B-NEW"]}]
    task = load_task({"train": tagged(IOB2), "test": test}, name="late")
    assert "train does not have cannot be learned: NEW" in caplog.text and task.labels == ["PLACE", "ROLE", "NEW"]
    caplog.clear()
    load_task({"train": tagged(["A", "A"] + ["O"] * 5), "test": tagged(["A"] + ["O"] * 6)}, name="flat")
    assert "in the scheme IO" in caplog.text


cells = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=6), st.sampled_from([TEXT, "[1"]),
    st.lists(st.one_of(st.text(max_size=4), st.integers(-2, 9), st.none(), st.sampled_from(IOB2)), max_size=3),
    st.lists(st.dictionaries(st.sampled_from(["start", "end", "label", "text", "value"]), st.one_of(
        st.integers(-2, 9), st.text(max_size=3), st.none(), st.lists(st.text(max_size=2), max_size=2))), max_size=2),
)  # fmt: skip
names = st.sampled_from(["tokens", "tags", "text", "spans", "entities", "label", "data", "annotations", "answer"])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.dictionaries(names, cells, min_size=1, max_size=4), min_size=1, max_size=3), st.booleans())
def test_odd_rows_are_read_or_refused(rows, good_first):
    first = [{"text": TEXT, "spans": span_rows()[0]["spans"], "tokens": WORDS, "tags": IOB2}] if good_first else []
    with contextlib.suppress(UserError):
        task = load_task({"train": [*first, *rows], "test": rows}, task_kind="entities")
        for sentence in [*task.train, *task.test]:
            assert all(0 <= start < end <= len(sentence.text) for start, end, _ in sentence.entities)
            assert all(one.end <= two.start for one, two in pairwise(sentence.entities))


any_character = st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\n ")
word = st.text(any_character, min_size=1, max_size=4) | st.sampled_from(["#", "O", "B-A"])
tagged_words = st.lists(st.tuples(word, st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"])), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(tagged_words, min_size=1, max_size=4),
    st.sampled_from(["\t", " ", "\tNN\tx\t"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_columns_give_what_tokens_and_tags_give(sentences, separator, end):
    sentences = [[("a", "B-A")], *sentences]
    lines = [[f"{word}{separator}{tag}{end}" for word, tag in sentence] for sentence in sentences]
    text = end.join("".join(sentence) for sentence in lines)
    rows = [{"tokens": [w for w, _ in sentence], "tags": [t for _, t in sentence]} for sentence in sentences]
    with tempfile.TemporaryDirectory() as folder:
        for split in ("train", "test"):
            (Path(folder) / f"{split}.conll").write_text(text, encoding="utf-8", newline="")
        results = []
        for source in (folder, {"train": rows, "test": rows}):
            try:
                results.append(load_task(source).train)
            except UserError as error:  # an entity of blanks alone
                results.append(str(error).rpartition(":")[2])
        assert results[0] == results[1]


@each(("rows", "words"), [
    ([{"tokens": WORDS, "tags": IOB2}, {"tokens": WORDS, "tags": IOB2[1:]}], "7 words have 6 tags"),
    ([{"tokens": WORDS, "tags": [0, 1, 2, 0, 0, 0, 0]}], "give the tags names"),
    ([ROW, {"tokens": WORDS, "tags": ["PER"] * 7}], "the tag 'PER' has no prefix"),
    ([{"tokens": WORDS, "tags": ["O"] * 7}], "No train sentence .* has an entity"),
    ([{"text": "ab", "spans": [{"start": 0, "end": 3, "label": "A"}]}], "not in the text of 2 characters"),
    ([{"text": "a b", "spans": [{"start": 1, "end": 2, "label": "A"}]}], "holds only blanks"),
    ([{"text": "a b", "spans": [{"start": 0, "end": 1}]}], "needs a start, an end and one label"),
    ([{"text": "a b", "spans": [{"start": 0, "end": 1, "label": "A", "text": "b"}]}], "is not at 0 to 1"),
    ([{"tokens": ["a", ""], "tags": ["O", "B-A"]}], "words of an entity \\('A'\\) are empty"),
    ([{"tokens": ["\ud83d", "a"], "tags": ["O", "B-A"]}], "half of a surrogate pair"),
])  # fmt: skip
def test_rows_that_cannot_be_used(rows, words):
    with pytest.raises(UserError, match=words):
        load_task({"train": rows, "test": rows})


def test_columns_can_be_named_and_the_kind_given(tmp_path):
    rows = [{"form": WORDS, "gold": IOB2, "tokens": WORDS} for _ in range(2)]
    task = load_task({"train": rows, "test": rows}, text_column="form", label_column="gold")
    assert entities_of(task) == [SPANS, SPANS]
    with pytest.raises(UserError, match="hold no entities"):
        load_task([{"text": "a", "label": "b"}] * 30, task_kind="entities")
    with pytest.raises(UserError, match="'pair_column' does not apply"):
        load_task({"train": rows, "test": rows}, text_column="form", label_column="gold", pair_column="tokens")
    (tmp_path / "train.conll").write_text("alone\n")
    with pytest.raises(UserError, match="'alone' has no tag"):
        load_task(tmp_path)
    with pytest.raises(UserError, match="whose columns cannot be named"):
        load_task(tmp_path, text_column="a")


def test_splits_are_drawn_and_few_shots_hold_every_type():
    rows = [{"tokens": [f"w{n}", "x", "y"], "tags": ["O", "B-A", "B-B" if n % 10 == 0 else "O"]} for n in range(100)]
    task = load_task(rows)
    assert (len(task.train), len(task.dev), len(task.test)) == (70, 10, 20)
    assert "were drawn from its 100 train sentences" in task.drawn
    assert all({e.type for row in getattr(task, s) for e in row.entities} == {"A", "B"} for s in ("train", "test"))
    few = task.few_shot(3, seed=1)
    counts = [sum(e.type == name for row in few for e in row.entities) for name in "AB"]
    assert counts[1] == 3 and counts[0] >= 3 and len(few) <= 6
    assert few != task.few_shot(3, seed=2) and few == task.few_shot(3, seed=1)
    with pytest.raises(UserError, match="leaves nothing"):
        task.few_shot(0, seed=1)
    with pytest.raises(UserError, match="'negative' does not apply"):
        task.scoring(negative=["O"])
    assert task.fingerprint() == load_task(rows).fingerprint() != load_task(rows[:-1]).fingerprint()


@pytest.mark.skipif(not (SHARED / "data" / "crossner_ai").is_dir(), reason="needs the shared data")
def test_real_data():
    task = load_task(SHARED / "data" / "crossner_ai")
    assert (task.scheme, len(task.train), len(task.dev), len(task.test)) == ("IOB2", 100, 350, 431)
    assert len(task.labels) == 14
