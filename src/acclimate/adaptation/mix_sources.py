"""What a training reads next to the domain text: sources that a mix weights, and text and conversations to replay."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.adaptation.inputs import check_masking
from acclimate.adaptation.method import Method
from acclimate.adaptation.mixture import MIX_FILE, MixedText, Mixture, mean_length
from acclimate.adaptation.replay_options import CHAT, GENERAL, MEMORIES, SELF, SelfReplay, find_memory, list_replayed
from acclimate.adaptation.run import Feature, Run, warn_of_cuts
from acclimate.adaptation.source_measures import watch_sources
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.base.options import values
from acclimate.base.progress import print_message, report_text
from acclimate.data.chat import Chats, check_chat_tokenizer, tokenize_chats
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.mix.base import DOMAIN, Mix, read_mix
from acclimate.data.reading import text_options
from acclimate.data.token_dataset import RowSubset, TokenDataset
from acclimate.data.tokenizing import tokenize
from acclimate.engine.trainer import CallbackFactory
from acclimate.models.loading import load_tokenizer
from acclimate.parts.masking.base import RandomMasking, resolve

HELDOUT_TEXTS, HELDOUT_SHARE = 64, 0.05
"""Texts of each source that are not trained on if a mix measures the loss on them, and their maximum share."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Text or conversations that are read next to the domain text; a model may still have to write them.

    Attributes:
        text: The text.
        share: Its share of the tokens if it is replayed; None if a mix weights it.
        name: The name that the user gave it; empty if it is replayed.
    """

    text: Corpus | Chats | SelfReplay
    share: float | None
    name: str = ""

    def identity(self) -> dict[str, Any]:
        """Return the entry of the configuration that is recorded."""
        rest = {"name": self.name} if self.share is None else {"share": self.share}
        if isinstance(self.text, SelfReplay):
            return {SELF: self.text.identity(), **rest}
        kind = "chat" if isinstance(self.text, Chats) else "text"
        return {kind: self.text.fingerprint, **rest}


def open_sources(given: Mapping[str, Any], kept: Corpus | None = None) -> list[Source]:
    """Return what is read next to the domain text: first the sources of the mix, then what is replayed.

    Sources whose share is 0 are left out.

    Args:
        given: The options :data:`acclimate.adaptation.replay_options.REPLAY_OPTIONS`, and those for reading text, as
            far as they are given.
        kept: Kept texts of past domains.

    Raises:
        UserError: If a share is given without a text, a source does not exist, the shares leave nothing for the
            domain text, or the mix does not suit the sources.
    """
    reading = text_options(given)
    named = [Source(as_corpus(text, reading), None, name) for name, text in (given.get("sources") or {}).items()]
    if any(source.name == DOMAIN for source in named):
        raise UserError(f"'{DOMAIN}' is the name of the domain text; give the source another name.")
    if (given_mix := given.get("mix")) is not None:
        mix = read_mix(given_mix)
        if not named and not mix.classes and not mix.objectives:
            raise UserError(
                f"The mix '{mix.name}' needs text in addition to the domain text; give it with --source NAME=TEXT."
            )
        mix.check([DOMAIN, *(source.name for source in named)])
    found = []
    for kind, what, share in list_replayed(given.get("replay")):
        if kind in MEMORIES:
            found += [] if kept is None else [Source(kept, share)]
        elif kind == SELF:
            found.append(Source(what, share))
        elif kind == CHAT or isinstance(what, Chats):
            found.append(Source(what if isinstance(what, Chats) else Chats(what), share))
        elif isinstance(what, str) and what == GENERAL:
            raise UserError(f"'replay' gives the share {share:g} but no text; give it, as wiki.txt={share:g}.")
        else:
            found.append(Source(as_corpus(what, reading), share))
    if (total := sum(source.share or 0 for source in found)) >= 1:
        raise UserError(f"The shares of replay are {total:.0%} together and leave nothing for the domain text.")
    return [*named, *(source for source in found if source.share)]


class Sources(Feature):
    """What is read besides the domain text: the sources of a mix, replayed text, conversations and kept texts.

    Attributes:
        sources: First the sources of the mix, then what is replayed.
        mix: The mix of the domain text and the sources without a share; None if there is none.
    """

    def __init__(self, run: Run) -> None:
        """Open the sources.

        Raises:
            UserError: As :func:`open_sources`, or if the method does not train.
        """
        given = run.options
        self._kept = [memory.identity()] if (memory := find_memory(given.replay)) else []
        opened = open_sources(values(given), run.carried.kept_texts())
        self.sources = [part for source in opened for part in _by_author(source, given.model)]
        self.mix = None if given.mix is None else read_mix(given.mix)
        if (self.sources or self.mix) and not run.method.trains:
            raise UserError(
                f"Method '{run.method.name}' does not train, so nothing can be mixed in; remove replay and mix."
            )
        corpora = [source.text for source in self.sources if isinstance(source.text, Corpus)]
        run.named_texts |= {f"replayed text {number}": corpus for number, corpus in enumerate(corpora, 1)}
        self._names = _text_names(self.sources)
        divided = [DOMAIN, *(source.name for source in self.sources if source.name)]
        kinds = (*self.mix.classes, *self.mix.objectives) if self.mix else ()
        parts = [f"{name} ({kind})" for name in divided for kind in kinds]
        self._maskings = [resolve(one, given.mask_rate) for one in (self.mix.objectives if self.mix else ())]
        if self._maskings and (given.masking is not None or type(run.method).masking is not Method.masking):
            raise UserError(
                f"The objectives of the mix are maskings; remove --masking, or take a method other than "
                f"'{run.method.name}' if it has its own."
            )
        run.sources = [*parts, *self._names[len(divided) :]] if parts else [DOMAIN, *self._names[1:]]

    def identity(self) -> dict[str, Any]:
        """Return the hashes of the sources, their shares, and the mix."""
        return {
            "replay": [source.identity() for source in self.sources if not source.name] + self._kept,
            "sources": [source.identity() for source in self.sources if source.name],
            "mix": self.mix and self.mix.identity(),
            **({"objectives": [masking.identity() for masking in self._maskings]} if self._maskings else {}),
        }

    def prepare(self, run: Run) -> None:
        """Check that the model can learn from conversations among the sources, and write what it is to write.

        Raises:
            UserError: If it cannot.
        """
        virtual, kind = run.method.virtual_tokens, run.kind
        for masking in self._maskings:
            check_masking(run.options, kind, masking)
            if not (kind.uses_masking or kind.pairs or masking.rearranges or isinstance(masking, RandomMasking)):
                raise UserError(
                    f"The masking '{masking.name}' does not change the text of a {kind.name} model, so it is no "
                    "objective of its own; give random for plain text, and one such as denoisers."
                )
        written = [source.text for source in self.sources if isinstance(source.text, SelfReplay)]
        if written and not kind.frames_documents:
            raise UserError(
                f"A {kind.name} language model does not write text, so 'replay: {SELF}' is for causal ones; name "
                "general text, as --replay wiki.txt, or use a method that needs none (docs/methods.md)."
            )
        if not any(isinstance(source.text, Chats) for source in self.sources) and not any(one.chat for one in written):
            return
        if kind.uses_masking or virtual:
            what = "virtual tokens" if virtual else f"a {kind.name} language model"
            raise UserError(f"Conversations are for causal language models; {what} cannot learn answers.")
        check_chat_tokenizer(run.loaded.tokenizer)

    def read(self, run: Run) -> None:
        """Tokenize the sources, mix them with the domain text, and plan the steps.

        Raises:
            UserError: If a text is empty or too short for its loss to be measured, or the budget does not fit the mix.
        """
        if not self.sources and self.mix is None:
            return
        seed, texts = run.options.seed, [MixedText(self._names[0], run.rows, key=DOMAIN)]
        of_domain = {one["hash"] for one in run.text.contents()}
        for number, (name, source) in enumerate(zip(self._names[1:], self.sources, strict=True), 1):
            rows = self._written(source, run) if isinstance(source.text, SelfReplay) else _tokenize(source, run)
            texts.append(MixedText(name, rows, source.share, source.name, number))
            if isinstance(source.text, SelfReplay):
                continue
            if of_domain & {one["hash"] for one in source.text.contents()}:
                log.warning(
                    "'%s' is %s and is domain text as well, so it is read more often.",
                    text_name(source.text),
                    "a source of the mix" if source.name else "replayed",
                )
        if self.mix is not None:
            weighted = [part for text in texts if text.share is None for part in divide(text, self.mix, seed)]
            if self._maskings:
                named = list(zip(self.mix.objectives, self._maskings, strict=True))
                weighted = [
                    replace(part, name=f"{part.name} ({name})", key=f"{part.key} ({name})", masking=masking)
                    for part in weighted
                    for name, masking in named
                ]
            texts = [*weighted, *(text for text in texts if text.share is not None)]
        rest = 1 - sum(text.share or 0 for text in texts)
        of_mix = [text for text in texts if text.share is None]
        shares = [rest / len(of_mix) if text.share is None else text.share for text in texts]
        share = rest * sum(text.parent == 0 for text in of_mix) / len(of_mix)
        size = run.choose_batch_size(mean_length(texts, shares), share)
        run.mixture = Mixture(texts, size, seed, run.appended, self.mix)
        run.sources = run.mixture.names
        run.batch_size, run.mean_length = size, run.mixture.mean_length
        run.steps = run.mixture.plan(run.budget, run.progress)

    def _written(self, source: Source, run: Run) -> TokenDataset:
        """Return the rows of what a model writes, by default as many tokens as the training reads."""
        from acclimate.adaptation.self_replay import write_rows

        assert isinstance(source.text, SelfReplay)
        mixed = sum(one.share is None for one in self.sources)
        domain = (1 - sum(one.share or 0 for one in self.sources)) / (1 + mixed)
        budget, mean = run.budget, run.rows.tokens / len(run.rows)
        total = (budget.epochs or 1) * run.rows.tokens / domain
        if budget.tokens is not None or budget.steps is not None:
            total = budget.tokens or (budget.steps or 1) * run.choose_batch_size(mean) * mean
        tokens = source.text.tokens or math.ceil(total * (source.share or 0))
        if run.dry:  # placeholders: the number of steps depends on the lengths of rows alone
            print_message(f"Replay: the model writes {tokens:,} tokens before the training.", run.progress)
            return run.rows
        return write_rows(source.text, tokens, run)

    def callbacks(self, run: Run) -> list[CallbackFactory]:
        """Let the engine record the losses of the sources; return what makes the callback that asks the mix."""
        return watch_sources(run) if run.mixture else []

    def arguments(self, run: Run) -> dict[str, Any]:
        """Prepare no step ahead of a mix that changes the shares."""
        return {"loader_workers": 0} if run.mixture and run.mixture.adapts else {}

    def close(self, run: Run) -> None:
        """Record the rounds of the mix."""
        if run.mixture and run.mixture.rounds:
            run.result.preparation[MIX_FILE] = run.mixture.record(run.result.steps)

    def finish(self, run: Run, folder: Path) -> None:
        """Warn of files whose rest could not be read."""
        for source in self.sources:
            if not isinstance(source.text, SelfReplay):
                warn_of_cuts(source.text.report)


def _text_names(sources: Sequence[Source]) -> list[str]:
    """Return the name of the domain text and of each source; names of replayed files that repeat are numbered."""
    names = ["domain text", *(source.name or text_name(source.text) for source in sources)]
    counts = Counter(names)
    return [
        f"{name} ({number})" if counts[name] > 1 and number and not sources[number - 1].name else name
        for number, name in enumerate(names)
    ]


def _tokenize(source: Source, run: Run) -> TokenDataset:
    """Return the rows of a source, and report what was left out of it."""
    assert not isinstance(source.text, SelfReplay)
    tokenizer, cache, about = run.loaded.tokenizer, cache_folder() / "rows", ""
    if isinstance(source.text, Chats):
        found = tokenize_chats(source.text, tokenizer, run.length, cache=cache)
        for count, words in (("truncated", "truncated"), ("repeated", "split into one text per answer")):
            about += f"; {found.report[count]:,} {words}" if found.report[count] else ""
    else:
        framing, progress = run.framing, run.progress
        found = tokenize(source.text, tokenizer, run.length, framing=framing, cache=cache, progress=progress)
    report = source.text.report  # after the reading, which replaces it
    about = report.summary("conversation" if isinstance(source.text, Chats) else "document") + about
    title = f"Source '{source.name}'" if source.name else "Replay"
    report_text(f"{title}: {about}.", run.progress, bool(report.problems or report.unused))
    return found


def divide(text: MixedText, mix: Mix, seed: int) -> list[MixedText]:
    """Return the parts of a source that a mix weights, each without the rows on which the mix measures the loss.

    Raises:
        UserError: If the loss is to be measured on a source with a single text.
    """
    parts = [text]
    if mix.classes:
        documents, row = np.unique(text.rows.document, return_inverse=True)
        lengths = np.bincount(row, text.rows.lengths, minlength=len(documents))
        classes = mix.classify(lengths)[row]
        parts = [
            replace(
                text,
                name=f"{text.name} ({name})",
                key=f"{text.key} ({name})",
                rows=RowSubset(text.rows, np.flatnonzero(classes == number)),
            )
            for number, name in enumerate(mix.classes)
            if (classes == number).any()
        ]
        if len(parts) < len(mix.classes):
            log.warning(
                "All documents of '%s' are %s, so the mix '%s' does not divide it.",
                text.name,
                mix.classes[int(classes[0])],
                mix.name,
            )
    if not {"heldout_loss", "reference_loss"} & {*mix.reads}:
        return parts
    return [_hold_out(part, np.random.default_rng([seed, 7, text.parent])) for part in parts]


def _hold_out(text: MixedText, rng: np.random.Generator) -> MixedText:
    """Set aside some rows of a text: those of whole documents, unless there are few documents."""
    few = len(np.unique(text.rows.document)) < 1 / HELDOUT_SHARE
    group = np.arange(len(text.rows)) if few else np.unique(text.rows.document, return_inverse=True)[1]
    most = max(1, min(HELDOUT_TEXTS, int(len(text.rows) * HELDOUT_SHARE)))
    order = rng.permutation(group.max() + 1)
    rows = np.bincount(group)[order]
    held = np.isin(group, order[: max(1, int(np.searchsorted(np.cumsum(rows), most, side="right")))])
    if held.all():
        raise UserError(f"The mix measures the loss on a part of '{text.name}', which has a single text; give more.")
    return replace(
        text, rows=RowSubset(text.rows, np.flatnonzero(~held)), heldout=RowSubset(text.rows, np.flatnonzero(held))
    )


def _by_author(source: Source, model: Any) -> list[Source]:
    """Return a source with the model that writes it, half of it as conversations if the model has a chat template."""
    if not isinstance(source.text, SelfReplay) or source.share is None:
        return [source]
    given = replace(source.text, model=source.text.model or str(model() if callable(model) else model))
    if given.chat is None:
        given = replace(given, chat=bool(load_tokenizer(given.model or "").chat_template))
    halves = [replace(given, chat=False), given] if given.chat else [given]
    return [replace(source, text=half, share=source.share / len(halves)) for half in halves]


def text_name(text: Corpus | Chats | SelfReplay) -> str:
    """Return the name of the first file of a text, and how many others there are."""
    if isinstance(text, SelfReplay):
        return f"{SELF} (chat)" if text.model and text.chat else SELF
    first, *others = [Path(str(source["name"])).name for source in text.contents()]
    return first + (f" and {len(others)} more" if others else "")
