"""DER++: texts of earlier domains are replayed with the logits that they had (Buzzega et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.api import (
    AdaptContext,
    Batch,
    BatchObjective,
    Count,
    Drawing,
    LanguageModelling,
    Method,
    Objective,
    Outputs,
    Published,
    Record,
    TokenDataset,
    UserError,
    View,
    autocast,
    check_not_negative,
    check_positive,
    check_single_process,
    cross_entropy,
    encode,
    format_count,
    known_numbers,
    language_head,
    logit_rows,
    register_method,
    share_memory,
    step_context,
    with_presets,
)

PREFIX = "der++/"
"""Beginning of the names of the carried tensors."""


class Example(NamedTuple):
    """A kept text and what the model predicted in it at the end of its domain.

    Attributes:
        ids: Token ids after masking (tokens,).
        places: Positions that are predicted (positions,).
        targets: The tokens to predict there (positions,).
        entries: The tokens with the largest logits (positions, kept); all tokens, if there are no columns.
        logits: Their logits (positions, kept), float16.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    entries: Tensor
    logits: Tensor


class DrawKept(Drawing):
    """A kept text, each with the same probability, and its index."""

    def __init__(self, examples: Sequence[Example]) -> None:
        """Set up the texts."""
        self.examples = examples
        self.width = max(len(example.ids) for example in examples)

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return the masked token ids of a text, and its index."""
        index = int(rng.integers(len(self.examples)))
        return self.examples[index].ids.numpy(), (index,)


class _Replay(Objective):
    """A mean over the predicted tokens of drawn texts; a text is drawn for each text of the step."""

    def __init__(self, kept: DrawKept, weight: float) -> None:
        """Set up the view of the kept texts."""
        self.kept, self.weight, self.view = kept, weight, View(kept)
        self.views = (self.view,)

    def drawn(self, batch: Batch) -> list[Example]:
        """Return the drawn texts, in the order of their rows."""
        return [self.kept.examples[index] for index in known_numbers(batch, self.view)[:, 0].tolist()]

    def count(self, batch: Batch) -> int:
        """Return the number of predicted tokens."""
        return sum(len(example.places) for example in self.drawn(batch))

    def states(self, outputs: Outputs, drawn: Sequence[Example]) -> Tensor:
        """Return the states of the student at the predicted tokens (positions, width)."""
        hidden = outputs.hidden(self.view)
        places = torch.cat([row * hidden.shape[1] + example.places for row, example in enumerate(drawn)])
        return hidden.flatten(0, 1)[outputs.batch.on_device(places)]


class ReplayedLanguageModelling(_Replay):
    """Mean cross-entropy of the predicted tokens of drawn texts, in nats."""

    name = "replay"

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed losses."""
        drawn = self.drawn(outputs.batch)
        targets = outputs.batch.on_device(torch.cat([example.targets for example in drawn]).long())
        return outputs.map_states(cross_entropy, self.states(outputs, drawn), targets).sum()


class LogitReplay(_Replay):
    """Mean over the predicted tokens of drawn texts of the mean squared difference of their logits and those kept."""

    name = "logits"

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed differences."""
        drawn = self.drawn(outputs.batch)
        entries = outputs.batch.on_device(torch.cat([example.entries for example in drawn]))
        # Autocast to bfloat16 refuses to join tensors in float16.
        logits = outputs.batch.on_device(torch.cat([example.logits.float() for example in drawn]))
        return outputs.map_states(_squared_difference, self.states(outputs, drawn), entries, logits).sum()


def _squared_difference(found: Tensor, entries: Tensor, kept: Tensor) -> Tensor:
    """Return the mean squared difference at each position; new tokens have no kept logit."""
    found = found.gather(1, entries.long()) if entries.shape[1] else found[:, : kept.shape[1]]
    return (found - kept).square().mean(1)


class _Kept(Record):
    """What is stored next to the tensors: the number of kept texts of each domain, and of logits per token."""

    texts: list[Count]
    top: int


def _is_sound(one: Example, tokens: int) -> bool:
    """Return whether the parts of an example fit each other, and a vocabulary of a number of tokens."""
    limits = ((one.places, len(one.ids)), *((ids, tokens) for ids in (one.ids, one.targets, one.entries)))
    inside = all(bool(((ids >= 0) & (ids < limit)).all()) for ids, limit in limits)
    return inside and one.logits.shape == (len(one.targets), one.entries.shape[1] or one.logits.shape[1])


@register_method(
    "der++",
    paper="Buzzega et al., NeurIPS 2020",
    summary="language modelling, plus texts of earlier domains with their labels and with the logits that they had",
)
@with_presets
@dataclass
class DarkExperience(Method):
    """L = L_LM + alpha x mean (z - z')^2 + beta x L_LM(kept texts).

    z are the logits of the model at the predicted tokens of kept texts of earlier domains, z' those of the model at
    the end of their domain; a step draws a kept text for each of its texts. The texts (as token ids), their masks and
    z' are stored next to the model, and the next adaptation of the model with ``der++`` replays them. The first domain
    is plain language modelling. The paper keeps examples throughout the training, each with the logits of that moment,
    and draws anew for each of the two terms; here both read the same texts.

    Attributes:
        preset: ``"paper"`` to keep all logits. None for the defaults.
        alpha: Weight of the squared difference of logits (paper: 0.1 to 1).
        beta: Weight of the language-model loss of kept texts (paper: 0.5 to 1); 0 gives DER.
        memory: Number of texts of all domains together, divided equally among them.
        top: Logits that are kept at a predicted token, the largest ones; 0 keeps those of the whole vocabulary.
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 2.2

    preset: Literal["paper"] | None = None
    alpha: float = 0.5
    beta: float = 0.5
    memory: int = 500
    top: Annotated[
        int,
        Published(
            {"paper": 0},
            "A vocabulary has tens of thousands of logits per token, nearly all of them far from the prediction.",
        ),
    ] = 64

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_not_negative(alpha=self.alpha, beta=self.beta, top=self.top)
        check_positive(memory=self.memory)
        if not self.alpha and not self.beta:
            raise UserError("alpha and beta are both 0, so kept texts are not used; use the method lm.")
        self._kept: DrawKept | None = None  # set by `check`, as is their number by domain
        self._past: list[int] = []

    def check(self, run: AdaptContext) -> None:
        """Check that there is one process, and read the kept texts of earlier domains."""
        check_single_process(self.name, run)
        super().check(run)
        past = run.carried.record("der++", _Kept)
        if past is None:
            run.say("DER++: no earlier domain, so no text is replayed.")
            return
        if past.top != self.top:
            raise UserError(f"The kept texts have {past.top or 'all'} logits per token; use top={past.top}.")
        self._past = past.texts
        try:
            examples = unpack(run.carried.select(PREFIX))
            table: Any = run.model.get_input_embeddings().weight
            sound = len(examples) == sum(self._past) and all(_is_sound(one, len(table)) for one in examples)
        except (LookupError, RuntimeError, TypeError, ValueError):
            sound = False
        if not sound:
            raise UserError("The kept texts next to the model are damaged ('der++'); restore them, or start anew.")
        if examples:
            self._kept = DrawKept(examples)
        domains = format_count(len(self._past), "earlier domain")
        run.say(f"DER++: {format_count(len(examples), 'kept text')} of {domains}.")

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and, if there are kept texts, the terms of those whose weight is not 0."""
        if self._kept is None:
            return [LanguageModelling()]
        terms = LogitReplay(self._kept, self.alpha), ReplayedLanguageModelling(self._kept, self.beta)
        return [LanguageModelling(), *(term for term in terms if term.weight)]

    def finish(self, run: AdaptContext) -> None:
        """Keep some texts of this domain with their logits, instead of some of earlier domains."""
        new = keep_examples(run, self.memory, self.top)
        places = np.cumsum([0, *self._past])
        old = [] if self._kept is None else list(self._kept.examples)
        parts = [{"texts": old[first:last]} for first, last in pairwise(places)]
        shared = share_memory([*parts, {"texts": new}], self.memory, "equal", np.random.default_rng(run.seed))
        kept = [len(part["texts"]) for part in shared]
        run.carried.records["der++"] = {"texts": kept, "top": self.top}
        tensors = pack([example for part in shared for example in part["texts"]])
        run.carried.tensors |= {PREFIX + name: value for name, value in tensors.items()}
        size = sum(value.nbytes for value in tensors.values())
        run.say(
            f"DER++: {format_count(sum(kept), 'text')} of {format_count(len(shared), 'domain')}, with logits, take "
            f"{size / 1e6:,.1f} MB next to the model."
        )


@torch.no_grad()
def keep_examples(run: AdaptContext, most: int, top: int) -> list[Example]:
    """Return random texts of a domain that have predicted tokens, with the largest logits of the model at these.

    Args:
        run: The adaptation, after the training.
        most: Maximum number of texts.
        top: Logits that are kept at a predicted token; 0 for all.
    """
    model, rng, kept = run.model, np.random.default_rng([run.seed, 13]), list[Example]()
    chosen = rng.permutation(len(run.rows))[:most].tolist()
    texts = TokenDataset.of([run.rows[index] for index in chosen])
    head, training = language_head(model), model.training
    model.eval()
    for batch in replace(run, rows=texts).sample(texts.tokens):
        if not batch.labelled:
            continue
        there = batch.to(run.device)
        with step_context(model, run.precision)(), autocast(run.precision, run.device):
            states = encode(model, there.masked, there.text).flatten(0, 1)[there.chosen[: batch.labelled]]
            largest = [_largest(head(part).float(), top) for part in states.split(logit_rows(model) or len(states))]
        entries, logits = (torch.cat(parts) for parts in zip(*largest, strict=True))
        row, place = (batch.labels >= 0).nonzero(as_tuple=True)
        for number in row.unique().tolist():
            ids = batch.masked[number][batch.text[number] >= 0]
            mine = row == number
            kept.append(Example(ids.int(), place[mine].int(), batch.targets[mine].int(), entries[mine], logits[mine]))
    model.train(training)
    return [kept[index] for index in rng.permutation(len(kept))]  # they are sorted by length


def _largest(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return the tokens with the largest logits at each position, and these, on the CPU; no tokens mean all."""
    if not top:
        return torch.zeros(len(logits), 0, dtype=torch.int32), logits.half().cpu()
    largest = logits.topk(min(top, logits.shape[1]))
    return largest.indices.int().cpu(), largest.values.half().cpu()


def pack(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Return the fields of all examples, joined, and the numbers of tokens and of predicted tokens of each."""
    if not examples:
        return {}
    width = min(one.logits.shape[1] for one in examples)  # the vocabulary may have grown
    joined = {name: torch.cat([getattr(one, name) for one in examples]) for name in Example._fields[:-2]}
    joined |= {name: torch.cat([getattr(one, name)[:, :width] for one in examples]) for name in ("entries", "logits")}
    sizes = [(len(one.ids), len(one.places)) for one in examples]
    return {**joined, "sizes": torch.tensor(sizes, dtype=torch.int32)}


def unpack(tensors: Mapping[str, Tensor]) -> list[Example]:
    """Return the examples of :func:`pack`."""
    if not tensors:
        return []
    tokens, positions = tensors["sizes"].T.tolist()
    split = {name: tensors[name].split(tokens if name == "ids" else positions) for name in Example._fields}
    return [Example(*parts) for parts in zip(*(split[name] for name in Example._fields), strict=True)]
