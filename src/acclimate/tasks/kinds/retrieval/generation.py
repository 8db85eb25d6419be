"""``generate-queries``: a retrieval task from unlabelled passages, with queries that a function generates.

This is the recipe of GPL (Wang et al., NAACL 2022): generated queries, hard negatives, and optionally the scores of a
cross-encoder, whose differences a bi-encoder learns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.base.errors import USER_CODE_ERRORS, UserError, check_stop, first_line
from acclimate.base.files import (
    atomic_folder,
    check_output_folder,
    check_replaceable,
    follow_link,
    record_files,
    write_json,
)
from acclimate.base.locks import with_output_lock
from acclimate.base.options import recorded, verb
from acclimate.base.progress import Progress
from acclimate.base.registry import load_function
from acclimate.base.verbs import Next
from acclimate.base.version import __version__
from acclimate.data.answer_parsing import parse_list
from acclimate.data.answers import CallPlan, plan_calls
from acclimate.data.documents import Corpus, as_corpus, subsample_documents
from acclimate.data.transform.generate import CachedFunction, read_number, read_rating
from acclimate.data.writers import is_model
from acclimate.evaluation.retrieval import rank_with_bm25
from acclimate.tasks.embedding_options import GenerateQueriesOptions
from acclimate.tasks.kinds.retrieval.data import MARGIN, Passage, Query, RetrievalTask
from acclimate.tasks.kinds.retrieval.encoder import load_bi_encoder
from acclimate.tasks.kinds.retrieval.model import mine_negatives

ROWS_FILE, SUMMARY_FILE = "train.jsonl", "queries.json"
QUERY_PROMPT = (
    "{text}\n\nWrite {number} search queries that this text answers, in the language of the text, as people would "
    "type them. Reply with one query per line and nothing else."
)
SCORE_PROMPT = (
    "Query:\n{query}\n\nPassage:\n{passage}\n\nHow well does the passage answer the query? Reply with one number "
    "from 0 (not at all) to 10 (completely)."
)
"""What a model reads that writes queries, or scores passages, unless the user gives another prompt."""
NO_NEGATIVES = "none"
"""Value of the option ``negatives`` with which none are mined."""


@dataclass(frozen=True)
class GeneratedQueries:
    """The result of :func:`acclimate.generate_queries`.

    Attributes:
        out: The folder, a retrieval task.
        passages: Number of passages.
        queries: Number of queries.
        without: Number of passages without a query.
        dropped: Number of queries that were not used, by reason.
        rows: Number of rows, one per query and negative.
    """

    out: Path
    passages: int
    queries: int
    without: int
    dropped: dict[str, int]
    rows: int

    def describe(self) -> str:
        """Return the numbers in one sentence."""
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items() if count)
        return (
            f"{self.queries:,} queries for {self.passages - self.without:,} of {self.passages:,} passages, "
            f"{self.rows:,} rows" + (f"; not used: {dropped}" if dropped else "")
        )


@verb(GenerateQueriesOptions)
@with_output_lock
def generate_queries(options: GenerateQueriesOptions) -> GeneratedQueries:
    """Make a retrieval task out of unlabelled passages: a function writes queries, and hard negatives are mined.

    The result is a folder with a table of ``query``, ``passage``, ``negative`` and, with a scorer, ``margin``, which
    ``finetune`` reads as any retrieval task: it draws dev and test splits, and searches all of its passages. Its
    test queries are generated, too, so measure a model on real queries if you have some.

    A query that is empty, that equals its passage or that was generated before is not used; with ``consistent``, nor
    is one whose passage is not among the best that the retriever finds for it (Alberti et al., ACL 2019; Promptagator,
    Dai et al., ICLR 2023).

    Returns:
        The folder, and the numbers of passages, queries and rows.

    Raises:
        UserError: If a function cannot be loaded, fails or returns something else, or fewer than two queries remain.
            An existing result is left unchanged.
    """
    generate = _open_generator(options)
    score = None if options.scorer is None else _open_scorer(options.scorer)
    if score is not None and options.negatives == NO_NEGATIVES:
        raise UserError("'scorer' compares a passage with a negative; leave negatives at bm25, or give a model.")
    out = follow_link(options.out)
    check_output_folder(out)
    if out.exists() and any(out.iterdir()) and not options.overwrite:
        raise UserError(f"'{out}' is not empty; choose another directory, or replace its queries with --overwrite.")
    check_replaceable(out, SUMMARY_FILE, "generated queries")
    corpus, texts = _read_passages(options)
    queries, dropped = _generate(generate, texts, options)
    documents = {f"d{number}": text for number, text in enumerate(texts)}
    if queries and (options.negatives != NO_NEGATIVES or options.consistent is not None):
        asked = [query.text for query in queries]
        if options.negatives in ("bm25", NO_NEGATIVES):
            ranked: Any = rank_with_bm25(documents, asked)
        else:
            ranked = load_bi_encoder(options.negatives, RetrievalTask.default_length).rank(documents, asked)
        if options.consistent is not None:
            number = len(queries)
            queries, ranked = _keep_consistent(queries, ranked, options.consistent)
            dropped["whose passage is not found"] = number - len(queries)
    if len(queries) < 2:
        raise UserError(f"The generator returned {len(queries)} queries that can be used; a task needs at least two.")
    if options.negatives != NO_NEGATIVES:
        queries = mine_negatives(queries, documents, ranked, options.seed)
    rows = [_row(query) for query in queries]
    if score is not None:
        _add_margins(rows, score)
    answered = {query.relevant[0].id for query in queries}
    result = GeneratedQueries(out, len(texts), len(queries), len(texts) - len(answered), dropped, len(rows))
    with atomic_folder(out) as folder:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / ROWS_FILE).write_text("".join(lines), encoding="utf-8")
        functions = {name: _describe(getattr(options, name)) for name in ("generator", "scorer")}
        used = recorded(options, ("corpus", "text_column"), acclimate=__version__, **functions)
        numbers = {name: value for name, value in vars(result).items() if name != "out"}
        write_json(folder / SUMMARY_FILE, {**used, "corpus": corpus.fingerprint, "result": numbers})
        record_files(folder, SUMMARY_FILE)
    return result


def plan_queries(options: GenerateQueriesOptions) -> CallPlan:
    """Return the calls that ``acclimate generate-queries`` would make to write queries."""
    generate, (_, texts) = _open_generator(options), _read_passages(options)
    if options.scorer is not None:
        _open_scorer(options.scorer)
    with plan_calls() as plan:
        if is_model(options.generator):
            _generate(generate, texts, options)
        for text in texts:  # answers of functions are not cached
            plan.add(text)
    return plan


def show_queries(result: Any, options: GenerateQueriesOptions) -> Iterator[Any]:
    """Yield what ``acclimate generate-queries`` prints."""
    yield f"{result.out}: {result.describe()}"
    words = ["--model", "MODEL", "--task", result.out, "--epochs", "1", "--batch-size", "64", "--out", "search"]
    yield Next(["finetune", *words], "to train a retrieval model")


def _read_passages(options: GenerateQueriesOptions) -> tuple[Corpus, list[str]]:
    """Return the corpus, and its distinct passages or some of them."""
    corpus = as_corpus(options.corpus, options)
    drawn = corpus if options.passages is None else subsample_documents(corpus, options.passages)
    return corpus, list(dict.fromkeys(text.strip() for text in drawn if text.strip()))


def _open_generator(options: GenerateQueriesOptions) -> Callable[[Iterable[str]], Iterator[Any]]:
    """Return what yields the queries of each of several passages."""
    if is_model(options.generator):
        prompt = QUERY_PROMPT.replace("{number}", str(options.queries))
        return CachedFunction(options.generator, None, list, prompt=prompt, parse=parse_list).map
    function = load_function(options.generator, "generator")
    return lambda texts: (_call(function, "generator", text) for text in texts)


def _open_scorer(given: Any) -> Callable[[Iterable[tuple[str, str]]], Iterator[Any]]:
    """Return what yields the score of each of several pairs of a query and a passage."""
    if is_model(given):
        rate = CachedFunction(
            given,
            None,
            read_rating,
            "scorer",
            prompt=SCORE_PROMPT,
            parse=read_number,
            split=lambda text: dict(zip(("query", "passage"), json.loads(text), strict=True)),
        )
        return lambda pairs: (score for (score,) in rate.map(json.dumps(pair) for pair in pairs))
    function = load_function(given, "scorer")
    return lambda pairs: (_call(function, "scorer", *pair) for pair in pairs)


def _generate(
    generate: Callable[[Iterable[str]], Iterator[Any]], texts: Sequence[str], options: GenerateQueriesOptions
) -> tuple[list[Query], dict[str, int]]:
    """Return the queries of all passages, and how many were not used, by reason."""
    dropped = dict.fromkeys(("empty", "equal to their passage", "generated before"), 0)
    queries: list[Query] = []
    seen = set[str]()
    with Progress("generate queries", len(texts), unit="passages", enabled=options.progress) as bar:
        for number, (text, found) in enumerate(zip(texts, generate(texts), strict=True)):
            check_stop()
            found = [found] if isinstance(found, str) else found
            if not isinstance(found, list | tuple) or not all(isinstance(query, str) for query in found):
                raise UserError(f"The generator must return a string or a list of strings, not {found!r:.80}.")
            for query in (query.strip() for query in found[: options.queries]):
                wrong = (not query, query == text, query in seen)
                if reason := next((name for name, holds in zip(dropped, wrong, strict=True) if holds), None):
                    dropped[reason] += 1
                    continue
                seen.add(query)
                queries.append(Query(f"q{len(queries)}", query, (Passage(f"d{number}", text),)))
            bar.update(number + 1)
    return queries, dropped


def _keep_consistent(queries: Sequence[Query], ranked: Any, most: int) -> tuple[list[Query], Any]:
    """Return the queries whose passage is among the best that are found for them, and their rankings."""
    parts = ranked if isinstance(ranked, tuple) else (ranked,)
    found = zip(queries, parts[0], strict=True)
    kept = [place for place, (query, ids) in enumerate(found) if query.relevant[0].id in ids[:most]]
    left = tuple([part[place] for place in kept] for part in parts)
    return [queries[place] for place in kept], left if isinstance(ranked, tuple) else left[0]


def _row(query: Query) -> dict[str, Any]:
    """Return the row of a query."""
    negative = {"negative": query.negatives[0]} if query.negatives else {}
    return {"query": query.text, "passage": query.relevant[0].text, **negative}


def _add_margins(rows: Sequence[dict[str, Any]], score: Callable[[Iterable[tuple[str, str]]], Iterator[Any]]) -> None:
    """Add the margin of passage and negative to each row."""
    found = score((row["query"], row[name]) for row in rows for name in ("passage", "negative"))
    for row in rows:
        check_stop()
        scores = next(found), next(found)
        try:
            row[MARGIN] = float(scores[0]) - float(scores[1])
        except (TypeError, ValueError):
            row[MARGIN] = math.nan
        if not math.isfinite(row[MARGIN]):
            raise UserError(f"The scorer must return a finite number, not {scores[0]!r:.40} or {scores[1]!r:.40}.")


def _call(function: Callable[..., Any], what: str, *texts: str) -> Any:
    """Call a function of the user.

    Raises:
        UserError: If it fails.
    """
    try:
        return function(*texts)
    except USER_CODE_ERRORS as error:
        raise UserError(
            f"The {what} failed on {texts[0][:60]!r}: {type(error).__name__}: {first_line(error)}."
        ) from error


def _describe(given: Any) -> str | None:
    """Return how a function was given, or its name."""
    return given if given is None or isinstance(given, str) else str(getattr(given, "__qualname__", given))
