"""Types of the options that name what ``adapt`` reads next to the domain text, and in which mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from acclimate.base.bounds import MAX_SIZE, Fraction, Positive, SeedNumber, Size, TokenCount
from acclimate.base.errors import UserError, shorten
from acclimate.base.options import DATA, Option, options
from acclimate.base.registry import PartLike, build_dataclass, parse_number, split_entry

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
SELF = "self"
"""Kind and name of the text that the model writes, with options as in ``self top_p=0.9``."""


@dataclass(frozen=True)
class SelfReplay:
    """Text that the model writes before it is adapted (Marek et al., 2026).

    Attributes:
        temperature: Temperature of sampling; 1 samples from the model as it is.
        top_p: Sample from the most likely tokens with this probability together; 1 for all.
        length: Maximum tokens per text; by default 1,024 or all positions of the model, and for a conversation the
            ``max_length`` of the training.
        tokens: Tokens to write, which repeat if they are fewer than are read. By default as many as are read, and with
            ``max_minutes`` as many as one pass over the domain text needs.
        chat: Whether half of it are conversations: the model writes questions and answers them, through its chat
            template. By default if it has one.
        seed: Random seed. It is not that of the training, so that trainings with several seeds share the text.
        model: The model that writes; None for the one that is adapted.
    """

    temperature: Positive = 1.0
    top_p: Fraction = 1.0
    length: Size | None = None
    tokens: TokenCount | None = None
    chat: bool | None = None
    seed: SeedNumber = 0
    model: str | None = None

    @property
    def fingerprint(self) -> str:
        """What identifies the text of a model."""
        return repr(self)

    def identity(self) -> dict[str, Any]:
        """Return the options for a recorded configuration, with the content of a model that is named."""
        from acclimate.models.checkpoints import model_fingerprint

        return asdict(self) | ({"model": model_fingerprint(self.model)} if self.model else {})


def is_self(source: Any) -> bool:
    """Return whether a source, written with its options and perhaps its share, is the text that the model writes."""
    return str(source).partition(" ")[0].partition("=")[0] == SELF


class Replayed(NamedTuple):
    """A source that is replayed.

    Attributes:
        kind: :data:`TEXT`, :data:`CHAT`, :data:`SELF`, or one of :data:`MEMORIES`.
        what: The text, the conversations, the number of texts to keep, or how the model writes; names without kinds.
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
        ValueError: If the number of texts to keep is none, or an option of what the model writes does not fit.
    """
    if isinstance(source, SelfReplay):
        return SELF, source
    if isinstance(source, str) and is_self(source):
        try:
            return SELF, build_dataclass(SelfReplay, "replay", SELF, split_entry(source, "replay")[1], ("model",))
        except UserError as error:
            raise ValueError(f"does not fit: {str(error).removesuffix('.')}") from error
    kind, _, name = source.partition(":") if isinstance(source, str) else ("", "", "")
    if kind in MEMORIES:
        if not (name.isdigit() and 0 < int(name) <= MAX_SIZE):
            raise ValueError(f"needs a number of texts to keep, as {kind}:500, not {shorten(source)}")
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
        if len(split) > 1 and any(kind == SELF for kind, _ in split):
            raise ValueError(f"needs a share for each source next to '{SELF}', as {SELF}=0.1 wiki.txt=0.1")
        joined = {kind: [what for other, what in split if other == kind] for kind, _ in split}
        found = [
            Replayed(kind, several[0] if len(several) == 1 else several, REPLAY_SHARE)
            for kind, several in joined.items()
        ]
    order = [TEXT, CHAT, SELF, *MEMORIES]
    return sorted(found, key=lambda one: order.index(one.kind))


def written_by(given: Any, model: str) -> Any:
    """Return the option ``replay`` with a model that writes the text that models write themselves."""
    if isinstance(given, str | SelfReplay) or not isinstance(given, Mapping):
        items = given if isinstance(given, list | tuple) else [given]
        if not items or split_source(items[0])[0] != SELF:
            return given
        given = {items[0]: REPLAY_SHARE}
    found = {source: split_source(source) for source in given}
    return {
        (replace(what, model=what.model or model) if kind == SELF else source): given[source]
        for source, (kind, what) in found.items()
    }


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
        parts = [_split_share(str(item)) for item in items]
        shared = [bool(source) and isinstance(parse_number(share), int | float) for source, _, share in parts]
        if not any(shared):
            find_memory(value)
            return value
        if not all(shared):
            without = shorten(items[shared.index(False)])
            raise ValueError(f"needs a share for each source or for none, and {without} has none")
        if len({source for source, _, _ in parts}) < len(parts):
            raise ValueError("names a source twice; give it once")
        items = {source: share for source, _, share in parts}
    if not isinstance(items, Mapping):
        return value
    if not items:
        raise ValueError("must not be empty")
    return _check_each({source: parse_number(share) for source, share in items.items()})


def _split_share(item: str) -> tuple[str, str, str]:
    """Return a source, ``=`` and its share; the first is empty if there is no share."""
    if not is_self(item):
        return item.rpartition("=")
    first, space, rest = item.partition(" ")
    name, mark, share = first.partition("=")
    return (f"{name}{space}{rest}" if mark else ""), mark, share


def _check_each(found: dict[Any, Any]) -> dict[Any, Any]:
    """Check the share of each source."""
    for source, share in found.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ValueError(
                f"must give {shorten(source)} a share of at least 0 and less than 1, not {shorten(share)}"
            )
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
        "Text to replay: file, folder, glob or hf:NAME; chat:FILE for conversations; self for text that the model "
        "writes; memory:500 for kept texts. wiki.txt=0.05 sets the share of the tokens (0.1).",
        DATA,
        more="In Python and study files also a mapping of sources to shares. A text that is shorter than its share "
        "repeats. Epochs are those of the domain text; ``tokens`` counts all tokens. Conversations are JSON lines, "
        "for causal models, in the chat template of their tokenizer; only answers are learned "
        "(:mod:`acclimate.data.chat`). ``self`` is text that the model writes before it is adapted, with options "
        "as in ``self=0.2 top_p=0.9 length=256`` (:class:`SelfReplay`). ``memory:500`` keeps 500 texts of all domains "
        "so far in ``carried.json`` of the model folder, and replays those of earlier domains, so that a later "
        "adaptation does not need their corpora. Each domain has as many; with ``reservoir:500`` they are a uniform "
        "sample of all documents (Vitter, 1985). They are not uploaded to the Hub. In a study of causal models, the "
        "default is the general text of the study, without the documents that it measures on; a number sets its "
        "share, and 0 turns it off.",
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
