"""Tables of contamination: the flagged documents, and a row per benchmark for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.base.files import write_text
from acclimate.data.contamination import MATCH_KINDS, Match, TextIndex
from acclimate.data.documents import hash_document
from acclimate.evaluation.significance import share_interval
from acclimate.labs.inspection.leakage_sources import Items
from acclimate.report.text import InertWriter, latex
from acclimate.results.cells import Entry, Table, count_entry, number_entry

FLAGGED = ("corpus", "source", "document", "benchmark", "split", "item", "kind", "share", "digest")
COLUMNS = ("benchmark", "split", "corpus", "items", "contaminated", "share", "low", "high", "documents")
ALL = "all"


class Tally:
    """Counts the items of benchmarks of which a text is in a document, and lists the documents in a file."""

    def __init__(self, items: Mapping[tuple[str, str], Items], index: TextIndex, folder: Path | None) -> None:
        """Take the texts of the items of each benchmark and split; without a folder nothing is listed."""
        self._names, self._sizes = list(items), [len(own) for own in items.values()]
        places = [
            (group, item) for group, own in enumerate(items.values()) for item, texts in enumerate(own) for _ in texts
        ]
        self._items: dict[int, list[tuple[int, int]]] = {}
        numbers = index.members(text for own in items.values() for texts in own for text in texts)
        for place, number in zip(places, numbers, strict=True):
            if number is not None:
                self._items.setdefault(number, []).append(place)
        self._found: dict[str, list[tuple[set[int], list[int]]]] = {}
        self._file = (folder / "flagged.csv").open("w", encoding="utf-8", newline="") if folder else None
        self._list = InertWriter(self._file, FLAGGED, lineterminator="\n") if self._file else None
        if self._list:
            self._list.writeheader()

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def start(self, corpus: str, sources: Sequence[str]) -> None:
        """Begin with a corpus."""
        self._corpus, self._sources, self._document = corpus, sources, 0
        self._found[corpus] = [(set(), [0]) for _ in self._names]

    def count(self, document: str, source: int, hits: Mapping[int, Match]) -> None:
        """Count a document, the next of the corpus."""
        self._document += 1
        matches: dict[tuple[int, int], Match] = {}
        for number, match in sorted(hits.items(), key=lambda hit: (MATCH_KINDS.index(hit[1].kind), -hit[1].share)):
            for place in self._items[number]:
                matches.setdefault(place, match)
        for group in {group for group, _ in matches}:
            self._found[self._corpus][group][1][0] += 1
        for (group, item), match in sorted(matches.items()):
            self._found[self._corpus][group][0].add(item)
            if self._list:
                where = (self._corpus, self._sources[source], self._document, *self._names[group], item + 1)
                digest = hash_document(document.encode("utf-8", "surrogatepass")).hex()
                values = (*where, match.kind, round(match.share, 4), digest)
                self._list.writerow(dict(zip(FLAGGED, values, strict=True)))

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts of each benchmark, split and corpus, and of several corpora together."""
        found = []
        for group, (names, size) in enumerate(zip(self._names, self._sizes, strict=True)):
            own = {corpus: (groups[group][0], groups[group][1][0]) for corpus, groups in self._found.items()}
            if len(own) > 1:
                own[ALL] = set.union(*(items for items, _ in own.values())), sum(count for _, count in own.values())
            for corpus, (items, documents) in own.items():
                low, high = share_interval([1] * len(items) + [0] * (size - len(items)))
                values = (
                    *names,
                    corpus,
                    size,
                    len(items),
                    len(items) / size,
                    max(low, 0.0),
                    min(high, 1.0),
                    documents,
                )
                found.append(dict(zip(COLUMNS, values, strict=True)))
        return found


def write_tables(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ``table.csv``, with shares, and ``table.tex``, with percentages."""
    with (folder / "table.csv").open("w", encoding="utf-8", newline="") as file:
        lines = InertWriter(file, COLUMNS, lineterminator="\n")
        lines.writeheader()
        lines.writerows(rows)
    several = {name: len({row[name] for row in rows}) > 1 for name in ("split", "corpus")}
    shown = [name for name in COLUMNS if several.get(name, True) and name not in ("low", "high")]
    titles = {"contaminated": "found", "share": "% [95 % interval]"}
    cells = []
    for row in rows:
        low, high = (f"{100 * row[end]:.1f}" for end in ("low", "high"))
        entries: dict[str, Entry] = {name: Entry(str(row[name])) for name in ("benchmark", "split", "corpus")}
        entries |= {name: count_entry(row[name]) for name in ("items", "contaminated", "documents")}
        share = number_entry(row["share"], scale=100)
        entries["share"] = Entry(f"{share.text} [{low}, {high}]", share.value)
        cells.append([entries[name] for name in shown])
    title = "Items of benchmarks of which a text is in the corpus, and documents with such a text"
    write_text(folder / "table.tex", latex(Table(title, "", [titles.get(name, name) for name in shown], cells)))
