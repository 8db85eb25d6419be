"""Types of the options that name what ``adapt`` reads next to the domain text, and in which mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from acclimate.base.bounds import Count, Share
from acclimate.base.options import DATA, Option, options
from acclimate.base.registry import PartLike, parse_number

if TYPE_CHECKING:
    from acclimate.data.chat import Chats
    from acclimate.data.documents import Corpus

    Sources = str | Path | Iterable[str | Path] | Corpus | Chats | Mapping[Any, float]
    Texts = Mapping[str, str | Path | Iterable[Any] | Corpus]
else:  # the command line imports neither torch nor transformers to show its help
    Sources = Any
    Texts = dict[str, Any]

REPLAY_SHARE = 0.1
"""Default share of the tokens that are replayed (general text, or conversations)."""
REPLAY_OPTIONS = ("replay", "replay_share", "chat", "chat_share", "mix", "sources")
"""The options that have these types."""
MEMORY_OPTIONS = ("replay_memory", "memory_share", "memory_rule")
"""Options of the texts that an adaptation keeps for later ones."""


def read_shares(value: Any) -> Any:
    """Return sources with a share each as a mapping: a mapping, or texts such as ``wiki.txt=0.1``; others unchanged.

    Raises:
        ValueError: If a share is not a number between 0 and 1, or only some sources have one.
    """
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list | tuple):
        parts = [str(item).rpartition("=") for item in items]
        shared = [bool(source) and isinstance(parse_number(share), int | float) for source, _, share in parts]
        if not any(shared):
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
    found = {source: parse_number(share) for source, share in items.items()}
    for source, share in found.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ValueError(f"must give '{source}' a share of at least 0 and less than 1, not {share}")
    return found


def check_shares(given: Any) -> None:
    """Check that options whose sources have a share each come without a common share, and further sources with a mix.

    Raises:
        ValueError: If they do not.
    """
    if given.sources and given.mix is None:
        raise ValueError("'sources' needs a mix that divides the training among them; give one, such as mix=fixed")
    for name in ("replay", "chat"):
        if isinstance(getattr(given, name), Mapping) and getattr(given, f"{name}_share") is not None:
            raise ValueError(f"'{name}' gives each source its share; remove '{name}_share'")
    if given.replay_memory is None and (given.memory_share is not None or given.memory_rule != "equal"):
        raise ValueError("'memory_share' and 'memory_rule' are for kept texts; give their number as 'replay_memory'")


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
        "General text to mix into the training: file, folder, glob or hf:NAME; wiki.txt=0.1 sets its own share.",
        DATA,
        more="In Python and study files also a mapping of sources to shares. A text that is shorter than its share "
        "repeats. Epochs are those of the domain text; ``tokens`` counts all tokens. In a study of causal models, the "
        "default is the general text of the study, without the documents that it measures on.",
        many=True,
    ),
]
ReplayShare = Annotated[
    Share | None, Option("Share of the tokens that are replayed text.", DATA, default=str(REPLAY_SHARE))
]
Chat = Annotated[
    Sources | None,
    BeforeValidator(read_shares),
    Option(
        "Conversations to mix into the training, as JSON lines; chat.jsonl=0.05 sets the share of a file.",
        DATA,
        more="For causal models, in the chat template of their tokenizer; only answers are learned. See "
        ":mod:`acclimate.data.chat` for the layouts.",
        many=True,
    ),
]
ChatShare = Annotated[
    Share | None, Option("Share of the tokens that are conversations.", DATA, default=str(REPLAY_SHARE))
]
ReplayMemory = Annotated[
    Count | None,
    Option(
        "Texts of all domains so far to keep next to the model; texts of earlier domains are replayed.",
        DATA,
        more="They are in ``carried.json`` of the model folder, and a later adaptation with this option replays them, "
        "so it does not need the texts of earlier domains. They are not uploaded to the Hub. Of a long document a "
        "random piece is kept.",
        default="none are kept or replayed",
    ),
]
MemoryShare = Annotated[
    Share | None,
    Option("Share of the tokens that are kept texts of earlier domains.", DATA, default=str(REPLAY_SHARE)),
]
MemoryRule = Annotated[
    Literal["equal", "reservoir"],
    Option(
        "How kept texts are divided among domains: equal, or reservoir, by their numbers of documents.",
        DATA,
        more="``reservoir`` is a uniform sample of all documents so far (Vitter, 1985).",
    ),
]


@options
class ReplayOptions:
    """Options of what ``adapt`` reads next to the domain text."""

    _: KW_ONLY
    replay: Replay = None
    replay_share: ReplayShare = None
    chat: Chat = None
    chat_share: ChatShare = None
    mix: Mix = None
    sources: MixSources = None
    replay_memory: ReplayMemory = None
    memory_share: MemoryShare = None
    memory_rule: MemoryRule = "equal"
