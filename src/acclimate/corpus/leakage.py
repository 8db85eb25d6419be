"""Whether a corpus holds texts that a model is judged on: as a document, nearly, or inside a longer document.

The rules, on texts that are normalised (NFKC, case folded, only letters with their marks and digits kept, in words):

- *exact*: a document is the text.
- *near*: the sets of 5-letter sequences of the two have a Jaccard similarity of at least 0.8. MinHash (Broder, 1997)
  with locality-sensitive hashing proposes pairs, and the sets themselves decide: nothing is found that is not so, and
  a pair right at 0.8 is missed with a probability below 0.0001, (1 - 0.8 ** 5) ** 25.
- *contained*: the document holds at least 80 % of the text's different 5-word sequences.

Texts of fewer than eight words are looked for as whole documents only: inside others they occur by chance. A letter of
Chinese or Japanese counts as a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from acclimate.corpus.progress import Progress
from acclimate.corpus.text_index import Rules, TextIndex

EXAMPLES = 20
SHOWN = 200
"""How many finds are kept, and how many letters of each are shown."""
KINDS = ("exact", "near", "contained")


@dataclass
class Leakage:
    """What was found of some groups of texts in a corpus.

    Attributes:
        documents: Documents that were read.
        flagged: How many of them hold a text, in any way.
        groups: For each group: ``texts``, different ones after normalisation; ``short``, those looked for as whole
            documents only; ``found``, those that are in the corpus; and of these as ``exact``, ``near`` and
            ``contained``, each text once, under the first that holds.
        examples: The first finds: ``group``, ``kind``, and the beginnings of ``text`` and ``document``.
        digests: Of the flagged documents, for :meth:`acclimate.corpus.Corpus.without`, as hexadecimal.
    """

    documents: int = 0
    flagged: int = 0
    groups: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def told(found: Mapping[str, Any], places: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return what is told of a :class:`Leakage`, given as plain values, with task and split in place of groups."""
    examples = [
        {**places[example["group"]], **{name: value for name, value in example.items() if name != "group"}}
        for example in found["examples"]
    ]
    return {
        "documents": found["documents"],
        "flagged": found["flagged"],
        "texts": [{**places[group], **counts} for group, counts in found["groups"].items()],
        "examples": examples,
    }


def document_digest(data: bytes) -> bytes:
    """Return what a corpus knows a document by: 12 bytes for its UTF-8."""
    return blake2b(data, digest_size=12).digest()


def find_leakage(
    documents: Iterable[str],
    groups: Mapping[str, Sequence[str]],
    rules: Rules | None = None,
    *,
    progress: bool = False,
) -> Leakage:
    """Look for texts in the documents of a corpus, reading it once.

    Memory holds the texts with their index, and 24 characters for each flagged document; it does not grow with the
    corpus.

    Args:
        documents: A :class:`acclimate.corpus.Corpus`, or other texts.
        groups: The texts, by name of the group: a task and a split, for instance.
        rules: What counts as found.
        progress: Show a bar.

    Raises:
        UserError: If ``datasketch`` is not installed.
    """
    index = TextIndex([text for texts in groups.values() for text in texts], rules or Rules())
    members = {name: index.members(texts) for name, texts in groups.items()}
    best: dict[int, str] = {}
    found = Leakage()
    with Progress("leakage", None, unit="documents", enabled=progress) as bar:
        for document in documents:
            found.documents += 1
            bar.at(found.documents)
            if hits := index.find(document):
                found.flagged += 1
                found.digests.append(document_digest(document.encode("utf-8", "surrogatepass")).hex())
            for number, kind in hits.items():
                if number not in best and len(found.examples) < EXAMPLES:
                    group = next(name for name, numbers in members.items() if number in numbers)
                    shown = {"text": index.texts[number][:SHOWN], "document": document[:SHOWN]}
                    found.examples.append({"group": group, "kind": kind, **shown})
                best[number] = min(kind, best.get(number, kind), key=KINDS.index)
    for name, numbers in members.items():
        kinds = [best[number] for number in numbers if number in best]
        short = sum(number in index.short for number in numbers)
        counts = {kind: kinds.count(kind) for kind in KINDS}
        found.groups[name] = {"texts": len(numbers), "short": short, "found": len(kinds), **counts}
    return found
