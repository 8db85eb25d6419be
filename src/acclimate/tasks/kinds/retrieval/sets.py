"""Several retrieval tasks in one folder, such as NanoBEIR, which show what an encoder can do in general."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.records import fingerprint
from acclimate.evaluation.embeddings import SentencePairs
from acclimate.evaluation.retrieval import ranking_scores
from acclimate.evaluation.significance import Interval, paired_difference
from acclimate.tasks.groups import number_known_groups
from acclimate.tasks.kinds.retrieval.data import RetrievalTask, is_beir_folder, read_beir
from acclimate.tasks.kinds.retrieval.encoder import BiEncoder


@dataclass(frozen=True)
class SearchSets(SentencePairs):
    """The test queries of retrieval tasks, with the rankings of all of their documents; each task counts the same.

    Attributes:
        tasks: The tasks, in whose order ``first`` has their queries.
    """

    _: KW_ONLY
    tasks: Sequence[RetrievalTask]

    @classmethod
    def of(cls, name: str, tasks: Sequence[RetrievalTask]) -> SearchSets:
        """Return the sets of some tasks."""
        queries = [(number, query) for number, task in enumerate(tasks) for query in task.test]
        groups = number_known_groups(query.group and f"{number} {query.group}" for number, query in queries)
        texts = [query.text for _, query in queries], [query.relevant[0].text for _, query in queries]
        return cls(name, *texts, groups=groups, tasks=tasks)

    @property
    def texts(self) -> int:
        """Number of queries and documents."""
        return sum(len(task.test) + len(task.documents) for task in self.tasks)

    @property
    def metric(self) -> str:
        """``"ndcg@10"``."""
        return "ndcg@10"

    def fingerprint(self) -> str:
        """Return a hash of the tasks."""
        return fingerprint([[task.name, task.fingerprint()] for task in self.tasks])

    def measure(self, encoder: Any) -> list[float]:
        """Return the nDCG@10 of each query."""
        found = list[float]()
        for task in self.tasks:
            texts, own = [query.text for query in task.test], task.own_documents(task.test)
            ranked, _ = BiEncoder(encoder).rank(dict(task.documents), texts, own)
            for query, ids in zip(task.test, ranked, strict=True):
                found.append(ranking_scores({one.id: one.grade for one in query.relevant}, ids)[self.metric])
        return found

    @property
    def _weights(self) -> np.ndarray:
        """The weight of each query, so that all tasks together have the same."""
        return np.concatenate([np.full(len(task.test), 1 / len(task.test)) for task in self.tasks])

    def score(self, values: Sequence[float]) -> dict[str, float]:
        """Return the mean over tasks of their means over queries."""
        return {self.metric: float(np.average(values, weights=self._weights))}

    def compare(self, before: Sequence[float], after: Sequence[Sequence[float]]) -> Interval:
        """Return the difference of that mean, with an interval over queries and over adaptations."""
        return paired_difference(np.asarray(after), np.asarray(before), self._weights, groups=self.groups)

    def parts(self) -> Iterator[tuple[SentencePairs, slice]]:
        """Yield each task, if there are several, and where its queries are."""
        start = 0
        for task in self.tasks if len(self.tasks) > 1 else ():
            yield SearchSets.of(task.name, [task]), slice(start, start + len(task.test))
            start += len(task.test)


def read_sets(folder: Path, name: str) -> SearchSets | None:
    """Return the tasks of a folder whose folders have the layout of BEIR; None if it is no such folder.

    Raises:
        UserError: If a task cannot be read, or lacks a part.
    """
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    if partial := [path for path in folders if is_beir_folder(path, any) and not is_beir_folder(path)]:
        raise UserError(
            f"'{partial[0]}' is no whole retrieval task: it needs corpus.jsonl, queries.jsonl and a folder qrels, as "
            "in BEIR. Add what is missing, or move it out of the folder of tasks."
        )
    found = [path for path in folders if is_beir_folder(path)]
    return SearchSets.of(name, [read_beir(path, path.name) for path in found]) if found else None
