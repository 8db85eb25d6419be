"""Retrieval tasks: folders in the layout of BEIR, and tables of pairs or triplets."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from acclimate.base.errors import DamagedFileError, UserError, warn_once
from acclimate.data.editing import TextEdits
from acclimate.data.opening import decode_line, read_numbered_lines
from acclimate.data.reading import DEFAULT_READING, ReadingOptions
from acclimate.data.rows import (
    LeftOut,
    Row,
    RowError,
    check_characters,
    check_text,
    column_names,
    edit_rows,
    is_missing,
    read_rows,
)
from acclimate.evaluation.retrieval import RetrievalScoring
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.examples import Example, Examples
from acclimate.tasks.groups import Grouping, find_grouping
from acclimate.tasks.readers import SPLITS, fold_text, report_unused
from acclimate.tasks.sources import LABEL_NAMES, SCORE_NAMES, Table, start_left_out

QUERY_NAMES = ("anchor", "query", "question", "text", "sentence1", "text1", "sentence_a", "text_a")
POSITIVE = "pos"
"""Short for positive next to a column such as ``anchor`` or ``neg``; elsewhere it is the part of speech."""
PASSAGE_NAMES = (
    *(
        "positive",
        POSITIVE,
        "passage",
        "document",
        "answer",
        "text_pair",
        "sentence2",
        "text2",
        "sentence_b",
        "text_b",
    ),
)
NEGATIVE_NAMES = ("negative", "neg", "hard_negative")
"""Usual names of the columns of pairs and triplets, in lower case."""
MARGIN = "margin"
"""Column of triplets: how much more relevant the passage is than the negative, in any unit."""
CLEAR_NAMES = ("positive", POSITIVE, "passage", "document")
MIN_PASSAGES = 1 / 3
"""Least distinct passages per query, where other names of columns leave open whether they are labels."""
NOT_OF_PAIRS = (*LABEL_NAMES, *SCORE_NAMES, "context", "answers", "choices", "options", "tokens", "spans", "entities")
"""Columns that show that rows are of another kind."""
CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
JUDGEMENT_COLUMNS = ("query-id", "corpus-id")
MAX_GRADE = 1_000_000
FORMS = (".tsv", ".txt", ".qrels")
"""Endings of files of judgements."""
ENDINGS = ("", ".gz", ".zst", ".bz2", ".xz")


Judgement = tuple[str, str, float]
"""The ids of a query and of a document, and the document's grade."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A relevant document, with its grade."""

    id: str
    text: str
    grade: float = 1.0


@dataclass(frozen=True, slots=True)
class Query(Example):
    """A query, its relevant documents, and texts that are not relevant, to learn from.

    ``margins`` has by how much a passage is more relevant than a negative: (passage, negative, difference of scores).
    """

    id: str
    text: str
    relevant: tuple[Passage, ...]
    negatives: tuple[str, ...] = ()
    margins: tuple[tuple[str, str, float], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The query and its relevant documents."""
        return self.text, *(passage.text for passage in self.relevant)

    @property
    def item_text(self) -> str:
        """The query."""
        return self.text

    @property
    def item(self) -> str:
        """The query, without differences of case and blanks."""
        return fold_text(self.text)

    @staticmethod
    def strata(examples: Sequence[Query]) -> list[list[int]]:
        """Return one class for all."""
        return [[0]] * len(examples)


@dataclass(frozen=True, repr=False)
class RetrievalTask(Examples[Query]):
    """A retrieval task: documents, and three splits of queries."""

    task_kind: ClassVar[str] = "retrieval"
    least_examples: ClassVar[int] = 2  # queries learn from the documents of others
    default_length: ClassVar[int] = 256
    """Default maximum tokens per query or document."""
    items: ClassVar[str] = "queries"
    scored_by: ClassVar[type[Scoring]] = RetrievalScoring

    _: KW_ONLY
    documents: Mapping[str, str]
    """The texts to search, by id."""

    def own_documents(self, queries: Sequence[Query]) -> list[str | None]:
        """Return for each query the document with the same id, which is the query itself; None if there is none.

        It is no answer to the query, as in BEIR, unless a judgement says that it is.
        """
        return [
            query.id if query.id in self.documents and query.id not in {one.id for one in query.relevant} else None
            for query in queries
        ]

    def report_own(self) -> None:
        """Say how many queries are documents."""
        own = self.own_documents([*self.train, *self.dev, *self.test])
        if found := sum(key is not None for key in own):
            warn_once(
                f"{found:,} of the {len(own):,} queries of the task '{self.name}' are documents (by id in a folder, "
                "by text in a table); each is left out of its own ranking and negatives."
            )


def _find(folder: Path, name: str) -> Path | None:
    return next((folder / f"{name}{end}" for end in ENDINGS if (folder / f"{name}{end}").is_file()), None)


def is_beir_folder(folder: Path) -> bool:
    """Return whether a folder has the layout of BEIR."""
    return all(_find(folder, name) for name in (CORPUS, QUERIES)) and (folder / "qrels").is_dir()


def read_beir(folder: Path, name: str, options: ReadingOptions = DEFAULT_READING) -> RetrievalTask:
    """Read a folder of ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/train.tsv``, ``dev.tsv`` and ``test.tsv``.

    Documents with grade 0 are not relevant. Train and dev may be missing; a model is then evaluated as it is. Rows
    that cannot be used, such as judgements on unknown ids, are left out and counted.

    The group of a query is in a column of its row or of the row of its relevant document. By default it is one with a
    certain name; else the title, if documents are passages of articles; else the document itself.

    Args:
        folder: The folder.
        name: Name of the task.
        options: The column of the group, if the user named one, and edits of the texts.

    Raises:
        UserError: If a file is missing, or too many rows cannot be used.
    """
    left = LeftOut(name, options.strict)
    documents, sources = _read_texts(folder, CORPUS, left, options.edits)
    queries, asked = _read_texts(folder, QUERIES, left, options.edits)
    judgements: dict[str, list[Judgement]] = {}
    for listed, texts in ((CORPUS, documents), (QUERIES, queries)):
        if not any(texts.values()):
            left.report({listed: texts})
            raise UserError(f"'{folder / listed}': no row has a text in 'text' or 'title'; add the texts.")
    for kind, texts in (("documents", documents), ("queries", queries)):
        if empty := sum(not text for text in texts.values()):
            warn_once(f"'{folder}': {kind} without text, which are not used, nor judgements on them: {empty:,}.")
    splits: dict[str, list[Query]] = {}
    for split, names in SPLITS.items():
        files = [file for one in names for form in FORMS if (file := _find(folder / "qrels", f"{one}{form}"))]
        if len(files) > 1:
            raise UserError(f"'{folder / 'qrels'}' has several {split} files; keep one.")
        judgements[split] = _read_judgements(files[0], split, queries, documents, left) if files else []
        splits[split] = _join_judgements(folder, split, judgements[split], queries, documents)
    left.report({CORPUS: documents, QUERIES: queries, **judgements})
    if not splits["test"]:
        raise UserError(f"'{folder / 'qrels'}' has no test.tsv with a relevant document; add the test split.")
    documents = {key: text for key, text in documents.items() if text}
    titles = [row["title"] for _, row in sources.values() if row.get("title")]
    article = (
        {"title": "article"} if 2 * len(set(titles)) <= len(titles) else {}
    )  # else each is the title of its document
    columns = {
        split: [(asked[query.id][0], {**sources[_source(query).id][1], **asked[query.id][1]}) for query in own]
        for split, own in splits.items()
    }
    known = ("_id", "id", "text", "metadata")
    grouping = find_grouping(name, columns, options.group_column, known, article)
    report_unused(name, [*sources.values(), *asked.values()], (*known, "title", grouping.column))
    if not grouping.column:
        grouping = Grouping(name="passage")
    splits = {
        split: [
            replace(query, group=grouping.of(row) or _source(query).id)
            for query, (_, row) in zip(own, columns[split], strict=True)
        ]
        for split, own in splits.items()
    }
    own = {"path": folder, "documents": documents}
    task = RetrievalTask.divided(name, splits, None, group_name=grouping.name, **own)
    task.report_own()
    return task


def _source(query: Query) -> Passage:
    """Return the most relevant document of a query; of equally relevant ones the first by text."""
    return min(query.relevant, key=lambda passage: (-passage.grade, passage.text))


def _read_texts(folder: Path, listed: str, left: LeftOut, edits: TextEdits) -> tuple[dict[str, str], dict[str, Row]]:
    """Return texts by id, each after its title if it has one and empty where there is neither, and their rows."""
    texts: dict[str, str] = {}
    rows: dict[str, Row] = {}
    file = _find(folder, listed)
    assert file is not None

    def read(row: Row) -> None:
        where, cells = row
        found, text, title = cells.get("_id", cells.get("id")), cells.get("text"), cells.get("title") or ""
        needed = "a row needs '_id' and 'text' (and perhaps 'title'), as in BEIR"
        if found in (None, "") or not isinstance(text, str) or not isinstance(title, str):
            raise RowError(where, "without an id" if found in (None, "") else "without a text", needed)
        if str(found) in texts:
            raise RowError(where, "with the id of another row", f"the id '{found}' is duplicated")
        check_characters(where, title, text)
        texts[str(found)] = edits(f"{title}\n{text}".strip())
        metadata = cells["metadata"] if isinstance(cells.get("metadata"), Mapping) else {}
        known = {name: value for name, value in cells.items() if value not in (None, "")}
        rows[str(found)] = (where, {**metadata, **known})

    left.read(listed, read_rows(file, broken=left.errors.setdefault(listed, [])), read)
    return texts, rows


def _judgement_rows(file: Path, broken: list[RowError]) -> Iterator[Row]:
    """Yield the rows of judgements in the form of BEIR, or of TREC: query, iteration, document and grade, no header.

    Raises:
        UserError: If the first line is neither.
    """
    first = True
    try:
        for number, line in read_numbered_lines(file):
            text, problem = decode_line(line)
            if first and all(name in text for name in JUDGEMENT_COLUMNS):
                yield from read_rows(file, (*JUDGEMENT_COLUMNS, "score"), broken=broken)
                return
            fields = [field for field in re.split("[ \t]+", text) if field]
            if not fields and not problem:
                continue
            if problem or len(fields) != 4:
                if not first:
                    what = problem or f"{len(fields)} columns instead of 4"
                    broken.append(RowError(f"{file}:{number}", "that cannot be parsed", what))
                    continue
                raise UserError(
                    f"{file}:{number}: {problem or f'{len(fields)} columns'}; judgements have a header (query-id, "
                    "corpus-id and score, separated by tabs, as in BEIR), or four columns without one (query, "
                    "iteration, document and grade, as in TREC)."
                )
            if first:
                warn_once(f"'{file}' has four columns and no header: these are judgements in the form of TREC.")
            first = False
            names = (JUDGEMENT_COLUMNS[0], "iteration", JUDGEMENT_COLUMNS[1], "score")
            yield f"{file}:{number}", dict(zip(names, fields, strict=True))
    except DamagedFileError as damage:
        raise UserError(f"'{file}' cannot be read: line {damage.line}: {damage.reason}.") from damage


def _read_judgements(
    file: Path, split: str, queries: Mapping[str, str], documents: Mapping[str, str], left: LeftOut
) -> list[Judgement]:
    """Return the judgements of a split, in the order of the file."""
    grades: dict[tuple[str, str], float] = {}

    def read(row: Row) -> Judgement:
        where, cells = row
        try:
            query, document, grade = str(cells["query-id"]), str(cells["corpus-id"]), float(cells.get("score") or 1)
        except (KeyError, ValueError, TypeError) as error:
            what = "a row needs 'query-id', 'corpus-id' and a number 'score', as in BEIR"
            raise RowError(where, "that are no judgements", what) from error
        if not abs(grade) <= MAX_GRADE:  # NaN, too
            what = f"the score {grade:g} must be a number of at most {MAX_GRADE:,}"
            raise RowError(where, "that are no judgements", what)
        for kind, key, known in (("query", query, queries), ("document", document, documents)):
            if key not in known:
                raise RowError(where, f"with an unknown {kind}", f"there is no {kind} with the id '{key}'")
        if grades.setdefault((query, document), grade) != grade:
            what = f"the document '{document}' has another score for '{query}' above"
            raise RowError(where, "with a second score of the same document", what)
        return query, document, grade

    return left.read(split, _judgement_rows(file, left.errors.setdefault(split, [])), read)


def _join_judgements(
    folder: Path, split: str, judgements: Sequence[Judgement], queries: Mapping[str, str], documents: Mapping[str, str]
) -> list[Query]:
    """Return the queries of a split with their relevant documents, in the order of the judgements."""
    found: dict[str, dict[str, float]] = {}
    for query, document, grade in judgements:
        found.setdefault(query, {})[document] = grade
    made = []
    for query, grades in found.items():
        read = [(Passage(key, documents[key], grade), grade > 0) for key, grade in grades.items() if documents[key]]
        relevant = tuple(passage for passage, is_relevant in read if is_relevant)
        if relevant and queries[query]:
            negatives = tuple(one.text for one, is_relevant in read if not is_relevant and one.id != query)
            made.append(Query(query, queries[query], relevant, negatives))
    if len(made) < len(found):
        warn_once(
            f"'{folder}': {len(found) - len(made):,} {split} queries without text or a relevant document are left out."
        )
    return made


def usual_query(names: Collection[str]) -> str | None:
    """Return the column of the query by its usual names; None if there is none."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in QUERY_NAMES if name in lower), None)


def read_passages(rows: Iterable[Row]) -> dict[str, str]:
    """Return passages by id: the column ``_id`` or ``id``, or one that ends in ``id``; else the number of the row.

    Args:
        rows: Rows with a column ``text``, ``passage`` or ``document``, and perhaps a ``title``, which precedes it.

    Raises:
        UserError: If a row has no text, or an id is duplicated.
    """
    found: dict[str, str] = {}
    for number, (where, row) in enumerate(rows, 1):
        lower = {str(name).lower(): value for name, value in row.items()}
        text = next((lower[name] for name in ("text", "passage", "document", "content") if lower.get(name)), None)
        key = next((value for name, value in lower.items() if name in ("_id", "id") or name.endswith("_id")), number)
        if not isinstance(text, str):
            raise UserError(f"{where}: a passage needs a column 'text'; the columns are: {', '.join(row)}.")
        if str(key) in found:
            raise UserError(f"{where}: the id '{key}' is duplicated; give each passage its own.")
        found[str(key)] = ". ".join(filter(None, (lower.get("title"), text)))
    return found


def pair_columns(names: Collection[str], options: ReadingOptions) -> dict[str, str] | None:
    """Return the columns of query, passage and perhaps negative; None if they are not clear.

    Args:
        names: The columns.
        options: The columns that the user named: those of text and pair.
    """
    usual = {"query": QUERY_NAMES, "passage": PASSAGE_NAMES, "negative": NEGATIVE_NAMES}
    given = {"query": options.text_column, "passage": options.pair_column, "negative": None}
    with_pos = {"anchor", "query", *NEGATIVE_NAMES} & {name.lower() for name in names}
    found = {}
    for part, known in usual.items():
        columns = [name for name in names if name.lower() in known and name not in given.values()]
        if not with_pos:
            columns = [name for name in columns if name.lower() != POSITIVE]
        if given[part] is not None:
            columns = [str(given[part])]
        elif len(columns) == 2:  # the name of a document next to a passage
            columns = [name for name in columns if name.lower() != "document"]
        if len(columns) == 1:
            found[part] = columns[0]
        elif part != "negative":
            return None
    return found if {found["query"], found["passage"]} <= set(names) else None


def holds_pairs(rows: Sequence[Row], options: ReadingOptions) -> bool:
    """Return whether rows are pairs or triplets: a query, a passage and perhaps a negative, and nothing to predict."""
    names = column_names(rows)
    other = options.label_column or any(name.lower() in NOT_OF_PAIRS for name in names)
    return not other and pair_columns(names, options) is not None


def read_pairs(
    tables: Mapping[str, Table], name: str, options: ReadingOptions, path: Path | None = None
) -> RetrievalTask:
    """Read pairs or triplets; the documents are all passages and negatives.

    Rows with the same query are one query with several relevant documents. A query whose text is a document has the id
    of that document.

    Raises:
        UserError: If the columns are not clear, or a text cannot be used.
    """
    first, *_ = tables["train"].rows
    names = column_names(tables["train"].rows)
    columns = pair_columns(names, options)
    if columns is None:
        raise UserError(
            f"{first[0]}: pairs need a column of queries ({', '.join(QUERY_NAMES[:4])} ...) and one of passages "
            f"({', '.join(PASSAGE_NAMES[:4])} ...); name them with --text-column and --pair-column."
        )
    if options.task_kind is None and options.pair_column is None:
        _check_passages(columns, tables["train"].rows)
    if set(columns.values()) != {"query", "passage"}:
        warn_once(
            f"The task '{name}' is retrieval: "
            + ", ".join(f"{part} in '{one}'" for part, one in columns.items())
            + "."
        )
    edited = {split: edit_rows(table.rows, columns.values(), options) for split, table in tables.items()}
    tables = {split: replace(table, rows=edited[split]) for split, table in tables.items()}
    read = {split: table.rows for split, table in tables.items()}
    grouping = find_grouping(name, read, options.group_column, columns.values())
    margin = MARGIN if "negative" in columns else None
    report_unused(name, chain(*read.values()), (*columns.values(), margin, grouping.column))
    texts: dict[str, str] = {}  # id by text
    left = start_left_out(tables, name, options)
    splits, rows = {}, {}
    for split in SPLITS:
        found: dict[str, tuple[dict[str, Passage], list[str], list[tuple[str, str, float]]]] = {}
        groups: dict[str, str | None] = {}
        rows[split] = left.read(split, tables[split].rows if split in tables else (), partial(_read_pair, columns))
        for row, parts, margin_of in rows[split]:
            for part in ("passage", "negative"):
                if part in parts:
                    texts.setdefault(parts[part], f"d{len(texts)}")
            relevant, negatives, margins = found.setdefault(parts["query"], ({}, [], []))
            groups.setdefault(parts["query"], grouping.of(row))
            key = texts[parts["passage"]]
            relevant[key] = Passage(key, parts["passage"])
            negatives += [parts["negative"]] if "negative" in parts else []
            if margin_of is not None:
                margins.append((parts["passage"], parts["negative"], margin_of))
        splits[split] = [
            Query(
                f"{split}-{number}",
                query,
                tuple(relevant.values()),
                tuple(dict.fromkeys(negatives)),
                tuple(margins),
                group=groups[query] or min(passage.text for passage in relevant.values()),
            )
            for number, (query, (relevant, negatives, margins)) in enumerate(found.items())
        ]
    left.report(rows)
    what = grouping.name if grouping.column else "passage"
    own = {"path": path, "documents": {key: text for text, key in texts.items()}}
    task = RetrievalTask.divided(name, splits, options.split_seed, group_name=what, **own)
    named: dict[str, Any] = {
        split: [replace(query, id=texts.get(query.text, query.id)) for query in getattr(task, split)]
        for split in SPLITS
    }
    task = replace(task, **named)
    task.report_own()
    return task


def _check_passages(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Check that a column that is taken for passages by its name alone does not hold labels."""
    query, passage = columns["query"], columns["passage"]
    queries, passages = ({str(row.get(column)) for _, row in rows} for column in (query, passage))
    if passage.lower() not in CLEAR_NAMES and len(passages) < MIN_PASSAGES * len(queries):
        raise UserError(
            f"{rows[0][0]}: '{passage}' has {len(passages):,} values for {len(queries):,} of '{query}'. If it is a "
            f"label, give --label-column {passage}; if it holds passages to find, give --task-kind retrieval."
        )


def _read_pair(columns: Mapping[str, str], row: Row) -> tuple[Mapping[str, Any], dict[str, str], float | None]:
    """Return a row with its texts by part, and its margin.

    Raises:
        RowError: If one of them cannot be used.
    """
    where, cells = row
    parts = {part: check_text(where, cells.get(column), part) for part, column in columns.items()}
    has_margin = "negative" in parts and not is_missing(cells.get(MARGIN))
    return cells, parts, _read_margin(where, cells[MARGIN]) if has_margin else None


def _read_margin(where: str, value: Any) -> float:
    with suppress(TypeError, ValueError):
        if math.isfinite(margin := float(value)):
            return margin
    what = f"'{MARGIN}' must be a number, the difference of two scores, not {value!r:.40}"
    raise RowError(where, f"whose {MARGIN} is no number", what)


def training_rows(queries: Sequence[Query], every_negative: bool) -> list[dict[str, Any]]:
    """Return the rows that a bi-encoder learns: ``anchor``, ``positive`` and perhaps ``negative`` and ``label``.

    Args:
        queries: Queries with relevant documents. If all have margins, these are the labels.
        every_negative: Whether each row has a negative.
    """
    if queries and all(query.margins for query in queries):
        return [
            {"anchor": query.text, "positive": passage, "negative": negative, "label": margin}
            for query in queries
            for passage, negative, margin in query.margins
        ]
    rows: list[dict[str, Any]] = []
    for query in queries:
        for place, passage in enumerate(query.relevant):
            row = {"anchor": query.text, "positive": passage.text}
            if every_negative:
                row["negative"] = query.negatives[place % len(query.negatives)]
            rows.append(row)
    return rows
