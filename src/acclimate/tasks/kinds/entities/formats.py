"""Reading entities: tokens with tags, texts with spans, and files of columns as in CoNLL-2003.

Tokens with tags are lists in two columns of any table, such as ``tokens`` and ``ner_tags`` in ``datasets``. Texts with
spans are what Prodigy, doccano and Label Studio export. Files of columns have a word per line with its tag last, and a
blank line after each sentence.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice, product
from pathlib import Path
from typing import Any

from acclimate.base.errors import DamagedFileError, UserError, warn_once
from acclimate.base.files import read_lines
from acclimate.data.csv_reader import TEXT_NAMES
from acclimate.data.opening import COMPRESSIONS, decode_line, read_numbered_lines
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import (
    MAX_LEFT_OUT,
    LeftOut,
    Row,
    RowError,
    check_text,
    column_names,
    is_missing,
)
from acclimate.tasks.groups import Grouping, find_grouping
from acclimate.tasks.kinds.classification.labels import plain_value
from acclimate.tasks.kinds.entities.data import Entity, RawSentence
from acclimate.tasks.kinds.entities.offsets import convert_offsets
from acclimate.tasks.kinds.entities.schemes import OUTSIDE, is_tag
from acclimate.tasks.readers import SPLITS, report_kind, report_unused
from acclimate.tasks.sources import Table, match_splits, start_left_out
from acclimate.tasks.values import are_classes, are_tags, are_texts, cells

TOKEN_NAMES = ("tokens", "words", "token", "word", "sentence")
SENTENCE_NAMES = ("sentence #", "sentence_id", "sentence_idx", "sentence_number", "sent_id", "sentence")
"""Usual names of the column that numbers the sentences of a table with a word per row."""
TAG_NAMES = (
    "tags",
    "ner_tags",
    "ner",
    "labels",
    "label",
    "iob_tags",
    "bio_tags",
    "token_labels",
    "entities",
    "tag",
    "ner_tag",
)
SPAN_NAMES = ("spans", "entities", "label", "labels", "annotations", "ner")
"""Usual names of columns, in lower case; the first that holds such values is used."""
STARTS, ENDS = ("start", "start_offset", "begin"), ("end", "end_offset", "stop")
TYPES = ("label", "labels", "type", "tag", "entity_group", "entity")
PARTS = {*STARTS, *ENDS, *TYPES, "text", "value", "id", "score", "token_start", "token_end", "source", "origin"}
PARTS |= {"from_name", "to_name", "hidden", "input_hash"}
"""What a span has that is read, or says only how it was made."""
EXPORT = ("data", "annotations")
"""The columns of an export of Label Studio."""
COLUMN_ENDINGS = (".conll", ".conll03", ".conll2003", ".iob", ".iob1", ".iob2", ".bio", ".bioes", ".ner", ".col")
"""Endings of files of columns; files that end in .txt and .tsv are recognized by their content."""
OTHER_ENDINGS = (".txt", ".tsv")
BRAT_ENTITY = re.compile(r"T\S*\t(?P<type>\S+) (?P<start>\d+)(?P<parts>( \d+;\d+)*) (?P<end>\d+)(\t(?P<text>.*))?")
"""Line of an entity in the annotations of brat, perhaps of several parts."""
WORD_NUMBER = re.compile(r"\d+([-.]\d+)?")
"""Number of a word in CoNLL-U, also the range of a multiword token (``5-6``) and that of an empty node (``5.1``)."""
CHECKED = 100
"""Rows, or lines, that show the format."""
MIN_DISTINCT_WORDS = 10
"""A column with fewer different values is not taken for words."""
DOCUMENT_START = "-DOCSTART-"
NO_TAG = "without a tag for each word"

Block = tuple[str | None, list[tuple[int, list[str]]]]
"""The document of a sentence, and the number and the columns of each of its lines."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Columns:
    """Where a table has its entities.

    Attributes:
        form: ``"tags"``, ``"spans"``, ``"export"``, or ``"words"`` for a word per row.
        text: Column of the tokens, of the text, or of the words.
        marks: Column of the tags or of the spans.
        sentence: Column of the number of the sentence, where a row has a word.
    """

    form: str
    text: str
    marks: str
    sentence: str = ""


def find_columns(rows: Sequence[Row], options: ReadingOptions) -> Columns | None:
    """Return the columns that hold tokens and tags, or a text and spans; None if there are none.

    Columns with usual names are preferred; another column is used if it is the only one of which the values fit.

    Args:
        rows: Train rows.
        options: The columns that the user named.
    """
    marked = (row for row in rows[CHECKED:] if any(isinstance(value, list) and value for value in row[1].values()))
    head = [*rows[:CHECKED], *islice(marked, CHECKED)]
    names = column_names(head)
    if all(name in names for name in EXPORT) and any(isinstance(row.get("data"), Mapping) for _, row in head):
        return Columns("export", *EXPORT)

    words = _candidates(head, options.text_column, (*TOKEN_NAMES, *TEXT_NAMES), _hold_words)
    for text, marks in product(words, _candidates(head, options.label_column, TAG_NAMES, _hold_tags)):
        are_lists = all(any(map(_list, cells(head, column))) for column in (text, marks))
        if text == marks or _hold_tags(cells(head, text)) or not (are_lists or _hold_tags(cells(head, marks))):
            continue
        if any(_are_tags(row.get(text), row.get(marks)) for _, row in head):
            return Columns("tags", text, marks)
    texts = _candidates(head, options.text_column, TEXT_NAMES, are_texts)
    spans_in = _candidates(head, options.label_column, SPAN_NAMES, lambda values: any(map(_are_spans, values)))
    for text, spans in product(texts, spans_in):
        if text != spans and any(isinstance(row.get(text), str) and _are_spans(row.get(spans)) for _, row in head):
            return Columns("spans", text, spans)
    return _find_word_rows(rows[: 10 * CHECKED], options)


def _find_word_rows(rows: Sequence[Row], options: ReadingOptions) -> Columns | None:
    """Return the columns of a word per row, its tag and the number of its sentence; None if there are none."""
    names = column_names(rows)
    numbers = [name for name in names if name.lower() in SENTENCE_NAMES]
    if not numbers:
        numbers = [name for name in names if _number_sentences(cells(rows, name))]
        numbers = numbers if len(numbers) == 1 else []
    words = _candidates(rows, options.text_column, TOKEN_NAMES, _are_single_words)
    for sentence, word, marks in product(numbers, words, _candidates(rows, options.label_column, TAG_NAMES, are_tags)):
        if len({sentence, word, marks}) == 3 and _are_single_tags(cells(rows, marks)):
            return Columns("words", word, marks, sentence)
    return None


def _candidates(
    rows: Sequence[Row], given: str | None, usual: Sequence[str], fits: Callable[[list[Any]], bool]
) -> list[str]:
    """Return the named column; else those with usual names, and the only other one of which the values fit."""
    if given:
        return [given]
    names = column_names(rows)
    known = sorted((n for n in names if n.lower() in usual), key=lambda n: usual.index(n.lower()))
    others = [n for n in names if n not in known and fits(cells(rows, n))]
    if len(others) > 1:
        others = [n for n in others if not are_classes(cells(rows, n))]
    return known + (others if len(others) == 1 else [])


def _hold_tags(values: Sequence[Any]) -> bool:
    """Return whether values are several tags each, as a list or separated by blanks."""
    several = list(map(_words, values))
    return any(len(found) > 1 for found in several) and are_tags([tag for found in several for tag in found])


def _hold_words(values: Sequence[Any]) -> bool:
    """Return whether values are several words each, as a list or a text, and no tags."""
    several = [_words(value) for value in values]
    return any(len(found) > 1 for found in several) and not _hold_tags(values)


def _are_single_words(values: Sequence[Any]) -> bool:
    """Return whether values are single words, and neither numbers nor tags."""
    one = sum(isinstance(value, str) and len(value.split()) == 1 for value in values)
    letters = sum(any(map(str.isalpha, str(value))) for value in values)
    are_many = len(set(map(str, values))) > MIN_DISTINCT_WORDS and 2 * letters > len(values)
    return one > 0.9 * len(values) and are_many and not are_tags(values) and not _number_sentences(values)


def _number_sentences(values: Sequence[Any]) -> bool:
    """Return whether values mark consecutive rows, each value once, on all rows or the first."""
    found = [key for key, _ in groupby(map(str, values))]
    return len(set(found)) == len(found) and 1 < len(found) <= len(values) / 2


def _are_single_tags(values: Sequence[Any]) -> bool:
    found = sum(isinstance(value, str) and is_tag(value.strip()) for value in values)
    return found > 0 and found >= (1 - MAX_LEFT_OUT) * len(values)


def _words(value: Any) -> list[Any]:
    """Return a list, or the words of a text."""
    return _list(value) or (value.split() if isinstance(value, str) else [])


def _list(value: Any) -> list[Any]:
    """Return a cell that holds a list, also as text or as an array; else an empty list."""
    if isinstance(value, list):
        return value
    try:
        found = plain_value("", value)
    except UserError:
        return []
    return list(found) if isinstance(found, list | tuple) else []


def _are_tags(tokens: Any, tags: Any) -> bool:
    words, marks = _words(tokens), _words(tags)
    return len(words) == len(marks) > 0 and all(isinstance(w, str) for w in words) and _one_type(marks, (str, int))


def _one_type(values: Sequence[Any], types: tuple[type, ...]) -> bool:
    return any(all(isinstance(value, kind) and not isinstance(value, bool) for value in values) for kind in types)


def _are_spans(value: Any) -> bool:
    entries = _list(value)
    return bool(entries) and _span_of(entries[0]) is not None


def _span_of(entry: Any) -> tuple[Any, Any, Any, Any] | None:
    """Return start, end, type and perhaps the text of a span as they are; None if it is none."""
    if isinstance(entry, Mapping):
        value = {**entry, **entry["value"]} if isinstance(entry.get("value"), Mapping) else entry
        parts = [next((value[n] for n in names if n in value), None) for names in (STARTS, ENDS, TYPES, ("text",))]
        return None if parts[0] is None or parts[1] is None else (parts[0], parts[1], parts[2], parts[3])
    if isinstance(entry, list | tuple) and len(entry) == 3 and _one_type(entry[:2], (int,)):
        return (*entry, None)
    return None


def read_table(
    tables: Mapping[str, Table], name: str, options: ReadingOptions
) -> tuple[dict[str, list[RawSentence]], str, LeftOut]:
    """Read the sentences of tables; return them by split, what their groups are, and the rows that cannot be used.

    Args:
        tables: A table per split.
        name: Name of the task, for messages.
        options: The columns that the user named.

    Raises:
        UserError: If there are no such columns.
    """
    if options.pair_column:
        raise UserError(f"'{name}' marks entities in single texts, so 'pair_column' does not apply; remove it.")
    rows = tables["train"].rows
    if (columns := find_columns(rows, options)) is None:
        found = ", ".join(column_names(rows[:CHECKED]))
        raise UserError(
            f"{rows[0][0]}: the columns ({found}) hold no entities. A row has a list of tokens and one of tags, or a "
            "text and a list of spans with start, end and label; name the columns with --text-column and "
            "--label-column."
        )
    if columns.form == "export":
        parts = {"text": "data", "entities": "annotations"}
    elif columns.form == "spans":
        parts = {"text": columns.text, "entities": columns.marks}
    else:
        numbers = {"a word per row, sentences": columns.sentence} if columns.sentence else {}
        parts = {"words": columns.text, "tags": columns.marks, **numbers}
    report_kind(name, "entities", parts)
    is_export = columns.form == "export"  # whose columns are within the data
    fields = {
        split: [
            (where, {**row, **row["data"]} if is_export and isinstance(row.get("data"), Mapping) else row)
            for where, row in table.rows
        ]
        for split, table in tables.items()
    }
    taken = () if is_export else (columns.text, columns.marks)
    grouping = find_grouping(name, fields, options.group_column, taken)
    used = (columns.text, columns.marks, columns.sentence, *grouping.columns, "answer")
    every = [row for table in tables.values() for row in table.rows]
    marked = every if columns.form in ("spans", "export") else []
    unread = ((where, _unused_parts(row.get(columns.marks), columns.marks)) for where, row in marked)
    report_unused(name, chain(every, unread), used)
    skipped: Counter[str] = Counter()
    left = start_left_out(tables, name, options)
    read: dict[str, list[RawSentence]] = {}
    for split, table in tables.items():
        if columns.form == "words":
            read[split] = left.read(split, _join_words(table.rows, columns, grouping), _check_words)
            continue

        def read_row(rows: tuple[Row, Row]) -> RawSentence | None:
            sentence = _read_row(*rows[0], columns, skipped)
            return sentence and replace(sentence, group=grouping.of(rows[1][1]))

        read[split] = list(filter(None, left.read(split, zip(table.rows, fields[split], strict=True), read_row)))
    for why, count in skipped.items():
        log.warning("Rows of the task '%s' that are not used, since %s: %d.", name, why, count)
    return convert_offsets(name, read, left), grouping.name, left


def _unused_parts(value: Any, column: str) -> dict[str, Any]:
    """Return the parts of spans, or of the results of annotations, that are not read, by the column and their name."""
    found: dict[str, Any] = {}
    for entry in _list(value):
        if not isinstance(entry, Mapping):
            continue
        if isinstance(entry.get("result"), list):
            found |= _unused_parts(entry["result"], column)
        elif _span_of(entry) is None:
            found[f"{column}: {entry.get('type')}"] = entry
        else:
            inside = entry["value"] if isinstance(entry.get("value"), Mapping) else {}
            found |= {f"{column}: {key}": entry for key in {**entry, **inside} if key not in PARTS}
    return found


def _join_words(rows: Sequence[Row], columns: Columns, grouping: Grouping) -> list[RawSentence]:
    """Return the sentences of rows with a word each; a row without a number continues the sentence before it."""
    number, numbered = 0, []
    last = None
    for where, row in rows:
        found = row.get(columns.sentence)
        if found not in (None, "", last) and found == found:  # NaN is missing, too
            number, last = number + 1, found
        word, tag = row.get(columns.text), row.get(columns.marks)
        numbered.append((number, where, "" if is_missing(word) else str(word), tag, grouping.of(row)))
    sentences = []
    for _, group in groupby(numbered, key=lambda entry: entry[0]):
        _, wheres, words, tags, groups = zip(*group, strict=True)
        sentences.append(RawSentence(wheres[0], words, tags, group=groups[0]))
    return sentences


def _check_words(sentence: RawSentence) -> RawSentence:
    """Check that every word has a tag; where one is missing, its sentence cannot be used."""
    for word, tag in zip(sentence.words, sentence.tags, strict=True):
        if not isinstance(tag, str) or not is_tag(tag.strip()):
            what = f"the tag of '{word:.40}' is {tag!r:.40}, which is no tag such as B-PER"
            raise RowError(sentence.where, NO_TAG, what)
    return sentence


def _read_row(where: str, row: Mapping[str, Any], columns: Columns, skipped: Counter[str]) -> RawSentence | None:
    """Read a row; None if its annotator left it out, which is counted."""
    if row.get("answer") in ("reject", "ignore"):  # Prodigy
        skipped[f"their answer is '{row['answer']}'"] += 1
        return None
    if columns.form == "export":
        return _read_export(where, row, skipped)
    for column in (columns.text, columns.marks):
        if column not in row:
            raise RowError(where, f"without '{column}'")
    if columns.form == "spans":
        return _read_spans(where, row[columns.text], row[columns.marks])
    words, tags = _words(row[columns.text]), _words(row[columns.marks])
    if len(words) != len(tags):
        raise RowError(where, NO_TAG, f"{len(words)} words have {len(tags)} tags")
    for word, tag in zip(words, tags, strict=True):
        if not isinstance(word, str) or not isinstance(tag, str):
            hint = "; give the tags names" if isinstance(tag, int) else ""
            what = f"the word {word!r:.40} with the tag {tag!r:.40}: both must be strings{hint}"
            raise RowError(where, "whose words or tags are not strings", what)
    return RawSentence(where, words, tags)


def _read_spans(where: str, text: Any, value: Any) -> RawSentence:
    check_text(where, text)
    spans, texts = [], []
    for entry in _list(value):
        found = _span_of(entry)
        label = found[2] if found else None
        if isinstance(label, list | tuple) and len(label) == 1:
            label = label[0]
        if found is None or not _one_type(found[:2], (int,)) or not isinstance(label, str) or not label.strip():
            what = f"{entry!r:.80} is no entity; it needs a start, an end and one label"
            raise RowError(where, "with an entity that cannot be used", what)
        start, end, _, shown = found
        spans.append(Entity(start, end, label.strip()))
        texts.append(shown if isinstance(shown, str) else None)
    return RawSentence(where, text=text, spans=spans, shown=texts)


def _read_export(where: str, row: Mapping[str, Any], skipped: Counter[str]) -> RawSentence | None:
    """Read a row of an export of Label Studio: the text of its data, and its first annotation that was not cancelled.

    Raises:
        RowError: If it has no text.
    """
    data, annotations = row.get("data"), row.get("annotations")
    texts = (
        {name: value for name, value in data.items() if isinstance(value, str)} if isinstance(data, Mapping) else {}
    )
    usual = [texts[name] for name in texts if name.lower() in TEXT_NAMES]
    fitting = [text for text in texts.values() if _shows(text, annotations)]
    text = next(iter(usual or fitting or texts.values()), None)
    if text is None:
        raise RowError(where, "without a text", "'data' holds no text")
    entries = [entry for entry in _list(annotations) if isinstance(entry, Mapping)]
    given = [entry for entry in entries if not entry.get("was_cancelled")]
    if not given:
        skipped["they have no annotation"] += 1
        return None
    if len(given) > 1:
        skipped["only the first annotation of a text is used (further ones)"] += len(given) - 1
    results = [entry for entry in _list(given[0].get("result")) if _span_of(entry) is not None]
    return _read_spans(where, text, results)


def _shows(text: str, annotations: Any) -> bool:
    """Return whether a text has the words of all spans of Label Studio at their offsets; False without any span."""
    results = [one for entry in _list(annotations) if isinstance(entry, Mapping) for one in _list(entry.get("result"))]
    found = [span for span in map(_span_of, results) if span is not None and isinstance(span[3], str)]
    return bool(found) and all(_one_type(span[:2], (int,)) and text[span[0] : span[1]] == span[3] for span in found)


def find_brat_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of annotations of brat by split, if there are folders of splits; empty if there are none.

    Raises:
        UserError: If one folder belongs to a split and another to none.
    """
    found: dict[str | None, list[Path]] = {}
    for file in sorted(folder.rglob("*.ann")):
        *parents, name = file.relative_to(folder).parts
        if not any(part.startswith(".") for part in (*parents, name)):
            split = next(iter(match_splits([" ".join(parents)], str(folder))), None)
            found.setdefault(split, []).append(file)
    other = found.pop(None, [])
    if other and found:
        raise UserError(f"'{other[0]}' is in no folder of a split, as other files are; move it to train, dev or test.")
    splits = {split: files for split, files in found.items() if split} or ({"train": other} if other else {})
    bare = [file for file in folder.rglob("*.txt") if not file.with_suffix(".ann").exists()] if splits else []
    if bare:
        warn_once(f"{len(bare):,} texts of '{folder}' have no .ann file, as '{bare[0].name}', and are not read.")
    return splits


def read_brat(file: Path) -> RawSentence:
    """Read the text and the entities of a document of brat, with all between the parts of an entity; no relations.

    Raises:
        RowError: If there is no text next to the annotations, or a line is no entity.
    """
    try:
        text = file.with_suffix(".txt").read_bytes().decode("utf-8-sig")
        lines = read_lines(file, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"'{file.with_suffix('.txt').name}' and '{file.name}' must be files in UTF-8"
        raise RowError(str(file), "without a text", what) from error
    spans, shown = [], []
    for number, line in enumerate(lines, 1):
        if line.startswith("T"):
            if not (found := BRAT_ENTITY.fullmatch(line)):
                what = f"line {number}, '{line:.40}', is no entity of brat: T1, type and positions, and its text"
                raise RowError(str(file), "with an entity that cannot be used", what)
            start, end = int(found["start"]), int(found["end"])
            spans.append(Entity(start, end, found["type"]))
            is_whole = not found["parts"] and "\n" not in text[start:end]
            shown.append(found["text"] if is_whole else None)
    return RawSentence(str(file), text=text, spans=spans, shown=shown)


def find_column_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of columns of each split of a folder; empty if it has no such train file.

    Raises:
        UserError: If there are several for a split.
    """
    files = {
        file.name: file for file in sorted(folder.iterdir()) if file.is_file() and holds_columns(file, quick=True)
    }
    if not files:
        return {}
    found = match_splits(files, str(folder))
    if "train" not in found and len(files) == 1:
        found = {"train": next(iter(files))}
    if "train" not in found or not holds_columns(files[found["train"]]):
        return {}
    return {split: [files[found[split]]] for split in SPLITS if split in found}


def holds_columns(path: Path, *, quick: bool = False) -> bool:
    """Return whether a file has a word and a tag per line.

    Args:
        path: The file.
        quick: Consider only the name.
    """
    name = path.name.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    if name.endswith(COLUMN_ENDINGS) or not name.endswith(OTHER_ENDINGS) or quick:
        return name.endswith((*COLUMN_ENDINGS, *OTHER_ENDINGS))
    prefixed = outside = broken = 0
    try:
        for number, (_, fields) in enumerate(_lines(path, None)):
            if number >= 10 * CHECKED:
                break
            if not fields:
                continue
            if len(fields) < 2 or not is_tag(fields[-1]):
                broken += 1
                if not outside + prefixed:  # the first line, which can be a header
                    return False
                continue
            outside += fields[-1].upper() == OUTSIDE
            prefixed += fields[-1][:1].upper() in ("B", "I", "S", "U") and len(fields[-1]) != 1
    except (UserError, OSError):
        return False
    return prefixed > 0 and outside > 0 and broken <= MAX_LEFT_OUT * (outside + prefixed)


def read_columns(
    path: Path, encoding: str | None = None, split: str = "", left: LeftOut | None = None
) -> list[RawSentence]:
    """Read a file with a word per line: the first column is the word, the last its tag; others are not used.

    A blank line ends a sentence, and ``-DOCSTART-`` begins a document; a single one separates nothing. Columns are
    separated by tabs if a line has any, else by blanks. Lines that start with ``#`` and have no tag are comments.
    If the first column numbers the words, as in CoNLL-U and GermEval, the second is the word; multiword tokens
    (``5-6``), whose words follow, and empty nodes (``5.1``) are skipped.

    Args:
        path: The file.
        encoding: Its encoding; None for UTF-8.
        split: Name of the split, with which the names of its documents begin.
        left: Takes sentences in which a word has no tag; None makes the first of them an error.

    Raises:
        UserError: If the file cannot be read, or has its tags in another column than the last.
    """
    blocks: list[Block] = []
    documents, continues = 0, False
    for number, fields in _lines(path, encoding):
        if fields and not fields[0].startswith(DOCUMENT_START):
            if not continues:
                blocks.append((f"{split} {documents}" if documents else None, []))
            blocks[-1][1].append((number, fields))
            continues = True
        else:
            documents += bool(fields)
            continues = False
    if documents == 1:  # every exporter writes one mark, at the start
        warn_once(f"'{path}' has a single {DOCUMENT_START}, so it does not show which sentences are of one document.")
        blocks = [(None, lines) for _, lines in blocks]
    rows = [fields for _, lines in blocks for _, fields in lines]
    is_numbered = _has_numbers(rows)
    if is_numbered:
        kept = [(document, list(filter(_is_word, lines))) for document, lines in blocks]
        blocks = [block for block in kept if block[1]]
        without = len(rows) - sum(len(lines) for _, lines in blocks)
        skipped = f"; {without:,} lines of multiword tokens and empty nodes are skipped" if without else ""
        warn_once(f"'{path}' numbers words in its first column, so the second is read as the word{skipped}.")
    _check_tags(path, rows)
    read = partial(_read_block, path, int(is_numbered))
    return left.read(split, blocks, read) if left else list(map(read, blocks))


def _has_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first column of a file numbers words; lines without tags do not show it."""
    numbered = [fields for fields in rows if len(fields) > 2]
    return 2 * len(numbered) > len(rows) and all(WORD_NUMBER.fullmatch(fields[0]) for fields in numbered)


def _is_word(line: tuple[int, list[str]]) -> bool:
    return not WORD_NUMBER.fullmatch(line[1][0]) or line[1][0].isdigit()


def _check_tags(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Check that the last column, if it is never outside of entities, is not next to a column of tags."""
    width = min(map(len, rows), default=0)
    if any(fields[-1].upper() == OUTSIDE for fields in rows):
        return
    for column in range(width - 1):
        if are_tags([fields[column] for fields in rows]):
            raise UserError(
                f"'{path}' has its tags in column {column + 1} of {width}, and the last column is read as the tag; "
                "make the word the first column and the tag the last."
            )


def _read_block(path: Path, column: int, block: Block) -> RawSentence:
    """Return a sentence of a file of columns; raise a RowError if a word has no tag."""
    document, lines = block
    for number, fields in lines:
        if len(fields) < 2 + column:
            what = f"'{fields[-1]:.40}' has no tag; each line has a word and a tag, divided by a tab or blanks"
            raise RowError(f"{path}:{number}", NO_TAG, what)
    words, tags = zip(*((fields[column], fields[-1]) for _, fields in lines), strict=True)
    return RawSentence(f"{path}:{lines[0][0]}", words, tags, group=document)


def _lines(path: Path, encoding: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the columns of each line; a blank line has none, and comments are left out."""
    try:
        for number, line in read_numbered_lines(path, encoding):
            text, problem = decode_line(line)
            if problem:
                raise UserError(f"{path}:{number}: {problem}; fix the line, or give the encoding of the file.")
            # Other blanks, such as U+00A0 and U+3000, are characters of words.
            fields = [part.strip(" ") for part in text.rstrip("\t ").split("\t")]
            fields = fields if "\t" in text else [part for part in text.split(" ") if part]
            is_tagged = len(fields) > 1 and (is_tag(fields[-1]) or text[1:2].strip())
            is_comment = text.startswith("#") and not is_tagged
            if not is_comment:
                yield number, fields if text.strip(" \t") else []
    except DamagedFileError as damage:
        raise UserError(f"'{path}' cannot be read: line {damage.line}: {damage.reason}.") from damage
