"""Types of the options that name what ``adapt`` reads next to the domain text, and in which mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from acclimate.base.bounds import MAX_SIZE
from acclimate.base.options import DATA, Option, options
from acclimate.base.registry import PartLike, parse_number

if TYPE_CHECKING:
    from acclimate.data.chat import Chats
    from acclimate.data.documents import Corpus

    Sources = str | Path | Iterable[str | Path] | Corpus | Chats | Mapping[Any, float] | float
    Texts = Mapping[str, str | Path | Iterable[Any] | Corpus]
else:  # the command line imports neither torch nor transformers to show its help
    Sources = Any
    Texts = dict[str, Any]

REPLAY_SHARE = 0.1
"""Default share of the tokens that are replayed (general text, or conversations)."""
REPLAY_OPTIONS = ("replay", "mix", "sources")
"""The options that have these types."""
GENERAL = "general:"
"""The general text of a study as a source."""
TEXT, CHAT, MEMORIES = "text", "chat", {"memory": "equal", "reservoir": "reservoir"}
"""Kinds of replayed sources, written before a colon, as in ``chat:FILE`` and ``memory:500``. Those of kept texts
differ in how these are divided among domains, see :func:`acclimate.adaptation.carried.share_memory`."""


class Replayed(NamedTuple):
    """A source that is replayed.

    Attributes:
        kind: :data:`TEXT`, :data:`CHAT`, or one of :data:`MEMORIES`.
        what: The text, the conversations, or the number of texts to keep; names without their kind.
        share: Its share of the tokens.
    """

    kind: str
    what: Any
    share: float

    def identity(self) -> dict[str, Any]:
        """Return the entry of kept texts in a recorded configuration."""
        return {"kept": self.what, "rule": MEMORIES[self.kind], "share": self.share}


def split_source(source: Any) -> tuple[str, Any]:
    """Return the kind of a source and its name without the kind.

    Raises:
        ValueError: If the number of texts to keep is none.
    """
    kind, _, name = source.partition(":") if isinstance(source, str) else ("", "", "")
    if kind in MEMORIES:
        if not (name.isdigit() and 0 < int(name) <= MAX_SIZE):
            raise ValueError(f"needs a number of texts to keep, as {kind}:500, not '{source}'")
        return kind, int(name)
    return (CHAT, name) if kind == CHAT and name else (TEXT, source)


def list_replayed(given: Any) -> list[Replayed]:
    """Return the sources that the option ``replay`` names: texts, then conversations, then kept texts.

    Sources of one kind that have no shares of their own are one source.
    """
    if isinstance(given, int | float):
        given = {GENERAL: given}
    if isinstance(given, Mapping):
        found = [Replayed(*split_source(source), share) for source, share in given.items()]
    else:
        single = given is not None and not isinstance(given, list | tuple)
        listed = [given] if single else list(given or ())
        split = [split_source(source) for source in listed]
        joined = {kind: [what for other, what in split if other == kind] for kind, _ in split}
        found = [
            Replayed(kind, several[0] if len(several) == 1 else several, REPLAY_SHARE)
            for kind, several in joined.items()
        ]
    order = [TEXT, CHAT, *MEMORIES]
    return sorted(found, key=lambda one: order.index(one.kind))


def find_memory(given: Any) -> Replayed | None:
    """Return the kept texts among the sources of the option ``replay``; None if none are kept."""
    if isinstance(given, str | list | tuple | Mapping):
        return next((one for one in list_replayed(given) if one.kind in MEMORIES), None)
    return None


def read_shares(value: Any) -> Any:
    """Return sources with a share each as a mapping: a mapping, or texts such as ``wiki.txt=0.1``; others unchanged.

    Raises:
        ValueError: If a share is not a number between 0 and 1, or only some sources have one.
    """
    if isinstance(value, int | float):
        _check_each({GENERAL: value})
        return value
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list | tuple):
        parts = [str(item).rpartition("=") for item in items]
        shared = [bool(source) and isinstance(parse_number(share), int | float) for source, _, share in parts]
        if not any(shared):
            find_memory(value)
            return value
        if not all(shared):
            raise ValueError(f"needs a share for each source or for none, and '{items[shared.index(False)]}' has none")
        if len({source for source, _, _ in parts}) < len(parts):
            raise ValueError("names a source twice; give it once")
        items = {source: share for source, _, share in parts}
    if not isinstance(items, Mapping):
        return value
    if not items:
        raise ValueError("must not be empty")
    return _check_each({source: parse_number(share) for source, share in items.items()})


def _check_each(found: dict[Any, Any]) -> dict[Any, Any]:
    """Check the share of each source."""
    for source, share in found.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ValueError(f"must give '{source}' a share of at least 0 and less than 1, not {share}")
    if sum(split_source(source)[0] in MEMORIES for source in found) > 1:
        raise ValueError("keeps texts twice; give one of memory:NUMBER and reservoir:NUMBER")
    return found


def check_shares(given: Any) -> None:
    """Check that further sources come with a mix.

    Raises:
        ValueError: If they do not.
    """
    if given.sources and given.mix is None:
        raise ValueError("'sources' needs a mix that divides the training among them; give one, such as mix=fixed")


Mix = Annotated[
    PartLike | None,
    Option(
        "Mix of the domain text and the sources: NAME, or 'NAME parameter=value ...'; see docs/prepare.md.",
        DATA,
        more="Or ``{name: parameters}``. Text that is replayed and conversations keep their shares; the mix divides "
        "the rest. Epochs are those of the domain text.",
    ),
]
MixSources = Annotated[
    Texts | None,
    Option(
        "Further text of the mix as NAME=TEXT: file, folder, glob or hf:NAME.",
        DATA,
        more="The domain text has the name ``domain``.",
        flag="--source",
    ),
]
Replay = Annotated[
    Sources | None,
    BeforeValidator(read_shares),
    Option(
        "Text to replay: file, folder, glob or hf:NAME; chat:FILE for conversations; memory:500 for kept texts. "
        "wiki.txt=0.05 sets the share of the tokens (0.1).",
        DATA,
        more="In Python and study files also a mapping of sources to shares. A text that is shorter than its share "
        "repeats. Epochs are those of the domain text; ``tokens`` counts all tokens. Conversations are JSON lines, "
        "for causal models, in the chat template of their tokenizer; only answers are learned "
        "(:mod:`acclimate.data.chat`). ``memory:500`` keeps 500 texts of all domains so far in ``carried.json`` of "
        "the model folder, and replays those of earlier domains, so that a later adaptation does not need their "
        "corpora. Each domain has as many; with ``reservoir:500`` they are a uniform sample of all documents (Vitter, "
        "1985). They are not uploaded to the Hub. In a study of causal models, the default is the general text of "
        "the study, without the documents that it measures on; a number sets its share, and 0 turns it off.",
        many=True,
    ),
]


@options
class ReplayOptions:
    """Options of what ``adapt`` reads next to the domain text."""

    _: KW_ONLY
    replay: Replay = None
    mix: Mix = None
    sources: MixSources = None
