"""Retrieval tasks: folders in the layout of BEIR, and tables of pairs or triplets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
from acclimate.tasks.groups import Grouping, find_grouping, group_text
from acclimate.tasks.kinds.classification.labels import plain_or_given
from acclimate.tasks.readers import SPLITS, fold_text, report_kind, report_unused
from acclimate.tasks.sources import LABEL_NAMES, PAIR_NAMES, SCORE_NAMES, Table, read_tables, start_left_out
from acclimate.tasks.values import (
    MIN_DISTINCT,
    MIN_ROWS,
    MIN_WORDS,
    are_texts,
    cells,
    label_like,
    mean_words,
    read_number,
)

ID_NAMES = ("_id", "id", "passage_id", "document_id", "doc_id", "docid", "pid")
"""Names of the column of the id of a passage, in lower case; the first that exists is it."""
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
CLICK_NAMES = ("clicks", "click", "clicked", "click_count", "num_clicks", "n_clicks", "purchases", "orders")
GRADE_NAMES = (*CLICK_NAMES, "relevance", "relevance_score", "relevance_grade", "relevant", "grade", "judgement")
"""Usual names of the column of grades of passages, in lower case; clicks on the same passage are added up."""
CLEAR_NAMES = ("positive", POSITIVE, "passage", "document")
NOT_OF_PAIRS = ("context", "answers", "choices", "options", "tokens", "spans", "entities")
"""Columns that show that rows are of another kind."""
MIN_QUERIES = 10
"""Fewer queries with several rows each can be labels."""
METADATA_NAMES = ("meta", "metadata")
ID = re.compile(r"(.*[ _])?(passage|doc|document|product|item|article|page|corpus|url|result)[ _]?(id|url|key)?")
"""Usual names of columns of ids of passages, in lower case."""
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
    contrasts_in_batch: ClassVar[bool] = True
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


def is_beir_folder(folder: Path, of: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Return whether a folder has the layout of BEIR: all of its parts, or with ``of=any`` one of them."""
    return of([*(_find(folder, name) is not None for name in (CORPUS, QUERIES)), (folder / "qrels").is_dir()])


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
    report_unused(name, [*sources.values(), *asked.values()], (*known, "title", *grouping.columns))
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


def read_passages(rows: Iterable[Row], left: LeftOut) -> dict[str, str]:
    """Return passages by id: the first of :data:`ID_NAMES`, a single column that ends in ``_id``, or the row number.

    Args:
        rows: Rows with a column ``text``, ``passage``, ``document`` or ``content``, and perhaps a ``title``, which
            precedes it or is the whole text.
        left: Takes rows without a text, or with the id of another row.
    """
    found: dict[str, str] = {}

    def read(numbered: tuple[int, Row]) -> None:
        number, (where, row) = numbered
        lower = {str(name).lower(): value for name, value in row.items() if not is_missing(value)}
        names = [name for name in ("text", "passage", "document", "content", "body", "description") if name in lower]
        texts = [lower[name] for name in ("title", *names[:1]) if name in lower]
        ids = [name for name in ID_NAMES if name in lower] or [name for name in lower if name.endswith("_id")]
        key = lower[ids[0]] if ids and (ids[0] in ID_NAMES or len(ids) == 1) else number
        if not texts or not all(isinstance(text, str) for text in texts):
            what = f"a passage needs a column 'text'; the columns are: {', '.join(row)}"
            raise RowError(where, "without a text", what)
        if str(key) in found:
            raise RowError(where, "with the id of another row", f"the id is '{key}'")
        check_characters(where, *texts)
        found[str(key)] = ". ".join(texts)

    left.read("passages", enumerate(rows, 1), read)
    left.report({"passages": found})
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
    """Return whether rows are pairs or triplets: a query, a passage and perhaps a negative, and nothing to predict.

    Raises:
        UserError: If they are that or texts with a label, or clicks on passages without texts.
    """
    names = column_names(rows)
    lower = {name.lower(): name for name in names}
    if options.label_column or set(NOT_OF_PAIRS) & set(lower):
        return False
    columns = pair_columns(names, options)
    if columns is None:
        _refuse_ids(rows, lower, options)
        return False
    query, passage = columns["query"], columns["passage"]
    rest = [name for name in names if name not in columns.values()]
    if any(_hold_parts(cells(rows, name)) for name in rest if name.lower() not in METADATA_NAMES):
        return False
    if any(name.lower() in GRADE_NAMES for name in rest) or (MARGIN in lower and "negative" in columns):
        return True
    labels = [name for name in rest if name.lower() in (*LABEL_NAMES, *SCORE_NAMES)]
    is_pair = (query.lower(), passage.lower()) in PAIR_NAMES
    has_passages = passage.lower() in CLEAR_NAMES or are_texts(cells(rows, passage))
    if labels and (is_pair or {"text", "label"} <= set(names) or not has_passages):
        return False
    if labels := labels or ([] if options.pair_column else label_like(rows, rest)):
        second = f" --pair-column {passage}" if is_pair else ""
        raise UserError(
            f"{rows[0][0]}: '{query}' and '{passage}' can be queries and passages to find, or texts with a label in "
            f"'{labels[0]}'. Give --task-kind retrieval, or --text-column {query}{second} --label-column {labels[0]}."
        )
    return True


def _hold_parts(values: Sequence[Any]) -> bool:
    """Return whether most values are lists or dictionaries, which another kind of task has."""
    return 2 * sum(isinstance(value, list | Mapping) for value in values) > len(values)


def _refuse_ids(rows: Sequence[Row], lower: Mapping[str, str], options: ReadingOptions) -> None:
    """Raise a UserError if rows have a query, the id of a passage and its clicks or grade, without other texts."""
    ids = [name for name in lower if ID.fullmatch(name) and not are_texts(cells(rows, lower[name]))]
    grades = [name for name in lower if name in GRADE_NAMES]
    is_log = grades or (len(lower) == 2 and usual_query([name for name in lower if name not in ids]))
    if ids and is_log and not options.text_column:
        raise UserError(
            f"{rows[0][0]}: '{lower[ids[0]]}' looks like ids of passages, whose texts are missing. Give "
            "these with --passages FILE, a table with the columns id and text; or name the column of a text to "
            "classify with --text-column."
        )


class PairColumns(NamedTuple):
    """The columns of pairs: by part, of the grade, and of the margin; and passages by id, if a column has ids."""

    parts: Mapping[str, str]
    grade: str | None
    margin: str | None
    passages: Mapping[str, str] | None


class Pair(NamedTuple):
    """A row of pairs: its cells, the query, passages with a grade, negatives, and perhaps a margin."""

    cells: Mapping[str, Any]
    query: str
    passages: Sequence[str]
    negatives: Sequence[str]
    grade: float
    margin: float | None


def _choose_pairs(rows: Sequence[Row], options: ReadingOptions, passages: Mapping[str, str] | None) -> PairColumns:
    """Return the columns of pairs.

    Raises:
        UserError: If they are not clear, or the values of a column are no passages.
    """
    names = column_names(rows)
    if passages is None:
        columns = pair_columns(names, options)
    else:
        shares = {name: _share_known(cells(rows, name), passages) for name in names}
        key = options.pair_column or max(shares, key=shares.__getitem__)
        if not shares.get(key):
            raise UserError(
                f"{rows[0][0]}: no column has ids of the passages; the columns are: {', '.join(names)}. Name it with "
                "--pair-column."
            )
        usual = [name for name in names if name.lower() in (*QUERY_NAMES, "search_term", "search_query", "keyword")]
        fitting = usual or [name for name in names if name != key and mean_words(cells(rows, name)) > 1]
        query = options.text_column or (fitting[0] if len(fitting) == 1 else None)
        columns = {"query": query, "passage": key} if query in names else None
    if columns is None:
        raise UserError(
            f"{rows[0][0]}: pairs need a column of queries ({', '.join(QUERY_NAMES[:4])} ...) and one of passages "
            f"({', '.join(PASSAGE_NAMES[:4])} ...); name them with --text-column and --pair-column."
        )
    if options.task_kind is None and options.pair_column is None and passages is None:
        _check_passages(columns, rows)
    rest = [name for name in names if name not in columns.values()]
    usual = [name for name in rest if name.lower() in GRADE_NAMES] or [
        name
        for name in rest
        if name.lower() in ("label", "score", "rating")
        and all(isinstance(read_number(value), float) for value in cells(rows, name))
    ]
    grade = None if "negative" in columns else options.label_column or next(iter(usual), None)
    return PairColumns(columns, grade, MARGIN if "negative" in columns else None, passages)


def _share_known(values: Sequence[Any], passages: Mapping[str, str]) -> float:
    return sum(group_text(value) in passages for value in values if not isinstance(value, list | Mapping))


def read_pairs(
    tables: Mapping[str, Table], name: str, options: ReadingOptions, path: Path | None = None
) -> RetrievalTask:
    """Read pairs or triplets, or clicks on passages, which are then named by ids.

    The documents are all passages and negatives, or those of the file of passages. Rows with the same query are one
    query with several relevant documents. A query whose text is a document has the id of that document. Passages with
    a grade of zero are not relevant.

    Raises:
        UserError: If the columns are not clear, or too many rows cannot be used.
    """
    known = None
    if options.passages is not None:
        left = LeftOut(Path(options.passages).name, options.strict, what="file of passages")
        tables_of = read_tables(options.passages, "passages", DEFAULT_READING)
        left.errors["passages"] = [error for table in tables_of.values() for error in table.broken]
        found = read_passages([row for table in tables_of.values() for row in table.rows], left)
        known = {key: options.edits(text) for key, text in found.items()}
    columns = _choose_pairs(tables["train"].rows, options, known)
    graded = {"grade": columns.grade} if columns.grade else {}
    is_answer = options.task_kind is None and columns.parts["passage"].lower() == "answer"
    hint = " If the answers are to be written, give --task-kind generation." if is_answer else ""
    report_kind(name, "retrieval", {**columns.parts, **graded}, hint)
    texts_in = [column for part, column in columns.parts.items() if part != "passage" or known is None]
    edited = {split: edit_rows(table.rows, texts_in, options) for split, table in tables.items()}
    tables = {split: replace(table, rows=edited[split]) for split, table in tables.items()}
    read = {split: table.rows for split, table in tables.items()}
    taken = (*columns.parts.values(), columns.grade, columns.margin)
    grouping = find_grouping(name, read, options.group_column, [one for one in taken if one])
    report_unused(name, chain(*read.values()), (*taken, *grouping.columns))
    texts: dict[str, str] = {}  # id by text
    for key, text in (known or {}).items():
        texts.setdefault(text, key)
    if known and len(texts) < len(known):
        warn_once(
            f"{len(known) - len(texts):,} passages of '{options.passages}' have the text of another one, and count as "
            "that one."
        )
    left = start_left_out(tables, name, options)
    splits, rows = {}, {}
    for split in SPLITS:
        rows[split] = left.read(split, tables[split].rows if split in tables else (), partial(_read_pair, columns))
        splits[split] = _join_pairs(split, rows[split], grouping, texts, columns)
    left.report(rows)
    what = grouping.name if grouping.column else "passage"
    own = {"path": path, "documents": {key: text for text, key in texts.items() if not known or key in known}}
    task = RetrievalTask.divided(name, splits, options.split_seed, group_name=what, **own)
    named: dict[str, Any] = {
        split: [replace(query, id=texts.get(query.text, query.id)) for query in getattr(task, split)]
        for split in SPLITS
    }
    task = replace(task, **named)
    task.report_own()
    return task


def _join_pairs(
    split: str, rows: Sequence[Pair], grouping: Grouping, texts: dict[str, str], columns: PairColumns
) -> list[Query]:
    """Return the queries of a split; texts that are new get an id."""
    found: dict[str, list[Pair]] = {}
    for pair in rows:
        found.setdefault(pair.query, []).append(pair)
        for text in (*pair.passages, *pair.negatives):
            texts.setdefault(text, f"d{len(texts)}")
    queries = []
    adds_up = (columns.grade or "").lower() in CLICK_NAMES
    for number, (query, pairs) in enumerate(found.items()):
        grades: dict[str, float] = {}
        for pair in pairs:
            for text in pair.passages:
                before = grades.get(text, 0.0)
                grades[text] = before + pair.grade if adds_up else max(before, pair.grade)
        relevant = tuple(Passage(texts[text], text, grade) for text, grade in grades.items() if grade > 0)
        negatives = [text for pair in pairs for text in pair.negatives] + [t for t, g in grades.items() if g <= 0]
        margins = [(pair.passages[0], pair.negatives[0], pair.margin) for pair in pairs if pair.margin is not None]
        group = grouping.of(pairs[0].cells) or min((passage.text for passage in relevant), default=None)
        if relevant:
            made = relevant, tuple(dict.fromkeys(negatives)), tuple(margins)
            queries.append(Query(f"{split}-{number}", query, *made, group=group))
    if none := len(found) - len(queries):
        warn_once(f"{none:,} {split} queries without a relevant passage are left out.")
    return queries


def _check_passages(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Check that a column that is taken for passages by its name does not hold labels or ids."""
    query, passage = columns["query"], columns["passage"]
    if query.lower() == "anchor":  # of the names that libraries give to pairs
        return
    values = cells(rows, passage)
    queries, passages = (len({str(value) for value in cells(rows, column)}) for column in (query, passage))
    words, is_clear = mean_words(values), passage.lower() in CLEAR_NAMES
    is_positive = passage.lower() in (POSITIVE, "positive") and query.lower() == "query"
    if queries < MIN_QUERIES and MIN_ROWS * queries <= len(rows):
        raise UserError(
            f"{rows[0][0]}: '{query}' has {queries:,} values in {len(rows):,} rows. If it is a label, give "
            f"--text-column {passage} --label-column {query}; if it holds queries, give --task-kind retrieval."
        )
    if words <= (MIN_WORDS if not is_clear else 1.5) or (passages < MIN_DISTINCT * queries and not is_positive):
        ids = " if it has ids, give --passages FILE, a table with id and text;" if is_clear and words <= 1.5 else ""
        raise UserError(
            f"{rows[0][0]}: '{passage}' has {passages:,} values of {words:.1f} words for {queries:,} of '{query}'. If "
            f"it is a label, give --label-column {passage};{ids} if it holds passages to find, give --task-kind "
            "retrieval; if it is an answer to write, --task-kind generation."
        )


def _read_pair(columns: PairColumns, row: Row) -> Pair:
    """Return the texts of a row, its grade and its margin.

    Raises:
        RowError: If one of them cannot be used.
    """
    where, values = row
    parts: dict[str, list[str]] = {"negative": []}
    for part, column in columns.parts.items():
        value = values.get(column)
        if part == "passage" and columns.passages is not None:
            key = "" if isinstance(value, list | Mapping) else group_text(value) or ""
            if key not in columns.passages:
                raise RowError(where, "with an unknown passage", f"there is no passage with the id '{key}'")
            value = columns.passages[key]
        value = value if part == "query" else plain_or_given(value)
        several = value if isinstance(value, list) and value and part != "query" else [value]
        parts[part] = [check_text(where, text, part) for text in several]
    grade = 1.0
    if columns.grade is not None:
        grade = _read_finite(where, columns.grade, values.get(columns.grade))
        if abs(grade) > MAX_GRADE:
            raise RowError(where, f"whose {columns.grade} is no number", f"it is more than {MAX_GRADE:,}")
    has_margin = columns.margin is not None and not is_missing(values.get(MARGIN))
    margin = _read_finite(where, MARGIN, values[MARGIN]) if has_margin else None
    return Pair(values, parts["query"][0], parts["passage"], parts["negative"], grade, margin)


def _read_finite(where: str, column: str, value: Any) -> float:
    with suppress(TypeError, ValueError):
        if math.isfinite(number := float(value)):
            return number
    raise RowError(where, f"whose {column} is no number", f"'{column}' must be a number, not {value!r:.40}")


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
