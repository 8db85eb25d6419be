"""A training that reads several texts: sources whose shares a mix decides, and replay with fixed shares.

General text and conversations among the domain text keep a model from forgetting them. The loss of every token counts
alike. Terms that compare the texts of a step read the replayed texts as well: leaving them out would give each step
another number of negatives, and a text of another source is never a false negative. What a method measures before the
training, such as importance, is measured on the domain text alone.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerControl, TrainerState, TrainingArguments

from acclimate.adaptation.inputs import Budget
from acclimate.base.errors import UserError
from acclimate.base.files import atomic_folder, cache_folder, read_json, write_json
from acclimate.base.progress import print_message
from acclimate.base.records import fingerprint
from acclimate.data.mix.base import AdaptiveMix, History, Mix, Round, ask
from acclimate.data.token_dataset import Rows, RowSubset, TokenDataset
from acclimate.engine.callbacks import ResumableCallback, find_newest_checkpoint
from acclimate.engine.ledger import SourceLedger
from acclimate.engine.sampler import EpochSampler, MixtureSampler
from acclimate.engine.trainer import LOG_FILE, StepTrainer
from acclimate.parts.masking.base import Strategy

COUNTS = ("documents", "duplicates", "leaked", "broken", "truncated", "repeated")
"""What is recorded of a text, unless it is 0."""
MANY_EPOCHS = 16
"""Repetitions of a text after which another one teaches almost nothing (Muennighoff et al., NeurIPS 2023)."""

MIX_FILE = "mix.json"
"""File of a checkpoint, and next to the model, with the rounds of a mix."""
Measurement = Callable[[int], dict[str, np.ndarray]]
"""Returns fields of a :class:`Round`, given the number of the round."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MixedText:
    """One of the texts that a training reads.

    Attributes:
        name: Its name in messages.
        rows: Its rows.
        share: Its share of the tokens if it is fixed; None if the mix decides.
        key: Its name for the mix.
        parent: Index of the text that it is a part of, where the mix divides texts; else its own.
        heldout: Rows that are not trained on, on which the mix measures the loss; None if it does not.
        masking: Its masking, where the mix weights objectives; else None for that of the training.
    """

    name: str
    rows: TokenDataset | RowSubset
    share: float | None = None
    key: str = ""
    parent: int = 0
    heldout: Rows | None = None
    masking: Strategy | None = None


class MixedRows(Rows):
    """The rows of several texts behind one index, those of the first text first."""

    def __init__(self, texts: Sequence[MixedText]) -> None:
        self.texts = texts
        self._ends = np.cumsum([len(text.rows) for text in texts]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, index: int) -> np.ndarray:
        """Return a row of one of the texts."""
        text, row = self._locate(index)
        return text.rows[row]

    def lengths_of(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the numbers of tokens of some rows: int64 of shape (indices,)."""
        rows = np.asarray(indices, dtype=np.int64)
        number = np.searchsorted(self._ends, rows, side="right")
        lengths = np.zeros(len(rows), dtype=np.int64)
        for text, (source, end) in enumerate(zip(self.texts, self._ends, strict=True)):
            here = number == text
            lengths[here] = source.rows.lengths_of(rows[here] - (end - len(source.rows)))
        return lengths

    def source(self, index: int) -> int:
        """Return the index of the text of a row."""
        return bisect_right(self._ends, index)

    def place(self, index: int) -> str:
        """Return the number of the document of a row, counted from 1, and the name of its text."""
        text, row = self._locate(index)
        return f"{text.rows.place(row)} of {text.name}"

    def _locate(self, index: int) -> tuple[MixedText, int]:
        number = bisect_right(self._ends, index)
        return self.texts[number], index - (self._ends[number - 1] if number else 0)


class Mixture:
    """The domain text and what is read next to it, and the order in which a training reads them.

    The sources that a mix weights come first; texts that are replayed keep their shares, and the mix divides the rest.

    Attributes:
        texts: The texts, the domain text first.
        rows: The rows of all texts.
        batch_size: Texts per step.
        mix: The mix; None if there is only the domain text next to what is replayed.
        rounds: What the mix was asked with, and what it proposed.
        ledger: Losses of the texts in training; None if there is only one text.
    """

    def __init__(
        self, texts: Sequence[MixedText], batch_size: int, seed: int, appended: int = 0, mix: Mix | None = None
    ) -> None:
        """Prepare the order.

        Args:
            texts: The texts, the domain text first; those that the mix weights come before those with a share.
            batch_size: Texts per step.
            seed: Random seed.
            appended: Virtual tokens per row, which do not count.
            mix: The mix of the texts without a share; None if it is one.
        """
        self.texts, self.batch_size, self.mix, self._appended = texts, batch_size, mix, appended
        self.rows: Rows = texts[0].rows
        self.weighted = [text for text in texts if text.share is None]
        self.rounds: list[Round] = []
        self.steps, self.timed = 0, False
        self.ledger: SourceLedger | None = None
        self._sampler: MixtureSampler | None = None
        if len(texts) > 1:
            self._lengths = [text.rows.lengths - appended for text in texts]
            self._sampler = MixtureSampler(self._lengths, self._shares(), batch_size, seed)
            self.rows, self.ledger = MixedRows(texts), SourceLedger(len(texts))
        self._order = self._sampler or EpochSampler(len(self.rows), batch_size, seed)

    def _shares(self, weights: np.ndarray | None = None) -> list[float]:
        """Return the shares of all texts, given the weights of those without a share; by default they are equal."""
        count = len(self.weighted)
        weights = np.full(count, 1 / count) if weights is None else weights
        fixed = [text.share for text in self.texts if text.share is not None]
        return [*((1 - sum(fixed)) * weights).tolist(), *fixed]

    @property
    def names(self) -> list[str]:
        """The name of each text, which for sources of a mix is the one that the mix knows."""
        return [text.key or text.name for text in self.texts]

    @property
    def mean_length(self) -> float:
        """Mean tokens per row of the mix."""
        return mean_length(self.texts, self._shares())

    @property
    def maskings(self) -> dict[int, Strategy]:
        """The masking of each text that has one of its own, by index."""
        return {number: text.masking for number, text in enumerate(self.texts) if text.masking is not None}

    @property
    def adapts(self) -> bool:
        """Whether the mix is asked during the training, so that no step can be prepared before the one before it."""
        if self.mix is None:
            return False
        return isinstance(self.mix, AdaptiveMix) or (self.timed and len(self.mix.moments) > 1)

    def of(self, step: int) -> list[int]:
        """Return the indices of the texts of a step."""
        return self._order.of(step)

    def ask(self, measured: Round, progress: float) -> np.ndarray:
        """Ask the mix for weights, and record the round."""
        assert self.mix is not None
        history = History(
            names=tuple(text.key for text in self.weighted),
            sizes=np.array([text.rows.tokens for text in self.weighted], dtype=float),
            steps=0 if self.timed else self.steps,
            progress=progress,
            rounds=(*self.rounds, measured),
            parents=np.array([text.parent for text in self.weighted]),
        )
        weights = ask(self.mix, history)
        self.rounds.append(replace(measured, weights=weights))
        return weights

    def change(self, step: int, weights: np.ndarray) -> None:
        """Set the weights of the sources of the mix from a step on."""
        assert self._sampler is not None
        self._sampler.change(step, self._shares(weights))

    def restore(self, rounds: Sequence[Round]) -> None:
        """Set the weights of a run that is resumed."""
        self.rounds = list(rounds)
        for one in rounds:
            assert one.weights is not None
            self.change(effective_step(one.step), one.weights)

    def read(self, steps: int) -> np.ndarray:
        """Return the tokens of each source of the mix in the first ``steps`` steps."""
        assert self._sampler is not None
        return np.array(self._sampler.read(steps)[: len(self.weighted)], dtype=float)

    def describe(self, steps: int) -> list[dict[str, Any]]:
        """Return what the first ``steps`` steps read of each text.

        For each text: its share of the tokens as scheduled and realized, tokens, epochs, and the mean loss of its
        predicted tokens between the last two lines of the log, or where it was read last. Where a mix changes the
        shares, ``share`` is the mean over the steps, and ``weights`` has the first step of each share. The numbers of
        its documents, and of those that were left out or cut, are included. The list is empty if there is only the
        domain text.
        """
        if self._sampler is None:
            return []
        tokens = self._sampler.read(steps)
        changes = [(step, shares) for step, shares in self._sampler.changes if step < max(1, steps)]
        scheduled = self._sampler.scheduled(steps) if len(changes) > 1 else list(changes[0][1])
        found = []
        for number, (text, read) in enumerate(zip(self.texts, tokens, strict=True)):
            about: dict[str, Any] = {
                "name": text.name,
                "share": round(scheduled[number] / max(1e-9, sum(scheduled)), 6),
                "realized": round(read / max(1, sum(tokens)), 6),
                "tokens": read,
                "epochs": round(read / int(self._lengths[number].sum()), 3),
            }
            if self.ledger and not np.isnan(self.ledger.known[number]):
                about["loss"] = round(float(self.ledger.known[number]), 5)
            if text.key and text.share is None and len(self.weighted) > 1:
                about["source"] = text.key
            if len(changes) > 1:
                about["weights"] = [[step, round(shares[number], 4)] for step, shares in changes]
            about |= {name: text.rows.report[name] for name in COUNTS if text.rows.report.get(name)}
            found.append(about)
        return found

    def record(self, steps: int) -> dict[str, Any]:
        """Return all rounds of the mix and the mean of its weights over the first ``steps`` steps, as plain values."""
        assert self.mix is not None and self._sampler is not None
        scheduled = np.array(self._sampler.scheduled(steps)[: len(self.weighted)])
        return {
            "mix": self.mix.describe(),
            "sources": [text.key for text in self.weighted],
            "mean_weights": (scheduled / max(1e-9, scheduled.sum())).round(6).tolist(),
            "rounds": [one.to_dict() for one in self.rounds],
        }

    def plan(self, budget: Budget, progress: bool) -> int:
        """Return the number of optimizer steps, and print the shares and the epochs of each text.

        Epochs are those of the domain text, and all tokens count as tokens. A mix that does not depend on the training
        is asked here; for one that does, the numbers are those of equal weights.

        Raises:
            UserError: If the budget is in epochs, and the mix does not read the domain text.
        """
        self.timed = budget.max_minutes is not None
        if self._sampler is None:
            return budget.resolve(self.texts[0].rows, self.batch_size, self._appended)
        moments: tuple[float, ...] = (0.0,)
        proposed = [self._shares()]
        if self.mix is not None and not self.adapts:
            moments, nothing = self.mix.moments, np.zeros(len(self.weighted))
            proposed = [self._shares(self.ask(Round(0, nothing), moment)) for moment in moments]
        steps = self.steps = self._count_steps(budget, np.diff([*moments, 1.0]), proposed)
        starts = [round(moment * steps) for moment in moments]
        self.rounds = [replace(one, step=start) for one, start in zip(self.rounds, starts, strict=False)]
        for start, shares in zip(starts, proposed, strict=True):
            self._sampler.change(start, shares)
        self._report(steps, progress)
        return steps

    def _count_steps(self, budget: Budget, durations: np.ndarray, proposed: Sequence[Sequence[float]]) -> int:
        """Return the number of steps of a budget, given the shares of the texts and how long each is in force."""
        if budget.epochs is None and budget.tokens is None:
            return budget.resolve(self.texts[0].rows, self.batch_size)
        assert self._sampler is not None
        domain = [number for number, text in enumerate(self.weighted) if text.parent == 0]
        if len(proposed) == len(domain) == 1 and budget.epochs is not None and proposed[0][0]:
            self._sampler.change(0, proposed[0])
            return self._sampler.steps_for(budget.epochs)
        per_step = self.batch_size * durations * [mean_length(self.texts, shares) for shares in proposed]
        if budget.tokens is not None:
            return max(1, round(budget.tokens / per_step.sum()))
        of_domain = float(per_step @ [sum(shares[number] for number in domain) for shares in proposed])
        if not of_domain:
            raise UserError("The mix does not read the domain text, so it has no epochs; give --steps or --tokens.")
        wanted = float(budget.epochs or 0) * sum(int(self._lengths[number].sum()) for number in domain)
        wanted /= max(1, len(self.mix.objectives) if self.mix else 1)  # each objective reads the same text
        return max(1, math.ceil(wanted / of_domain))

    def _report(self, steps: int, progress: bool) -> None:
        """Print the shares, and warn of texts that are repeated too often."""
        texts = self.describe(1 if self.timed else steps)
        if self.adapts and self.mix is not None:
            names = ", ".join(text.name for text in self.weighted)
            fixed = "".join(f"; {text.share:.1%} {text.name}" for text in self.texts if text.share is not None)
            what = f"Mix: {names}, in shares that {self.mix.describe()} sets during the training{fixed}."
            print_message(what, enabled=progress)
            return
        parts = [
            f"{text['share']:.1%} {text['name']}" + ("" if self.timed else f" ({text['epochs']:.3g} epochs)")
            for text in texts
        ]
        print_message(f"Mix: {', '.join(parts)}.", enabled=progress)
        if "weights" in texts[0]:
            for number, (start, _) in enumerate(texts[0]["weights"]):
                shares = ", ".join(f"{text['weights'][number][1]:.1%} {text['name']}" for text in texts)
                print_message(f"From step {start + 1:,}: {shares}.", enabled=progress)
        for text in texts[1:]:
            if text["epochs"] > MANY_EPOCHS:
                log.warning(
                    "'%s' is read %.0f times, and a text teaches little after %d times; give more of it, or a smaller "
                    "share.",
                    text["name"],
                    text["epochs"],
                    MANY_EPOCHS,
                )


@dataclass(frozen=True)
class SharedStart:
    """A checkpoint in the cache from which trainings start that differ in their end alone.

    Attributes:
        folder: The folder of the checkpoint and the log.
        step: Optimizer steps before.
    """

    folder: Path
    step: int

    @classmethod
    def of(cls, mixture: Mixture, config: Mapping[str, Any]) -> SharedStart | None:
        """Return the checkpoint for a training with this configuration; None if its mix asks for none."""
        share = mixture.mix.shared_until if mixture.mix and not mixture.timed else 0.0
        if not share or config.get("keep_steps"):
            return None
        same = {name: value for name, value in config.items() if name != "mix"}
        first, step = mixture.rounds[0].to_dict()["weights"], round(share * mixture.steps)
        key = fingerprint(json.loads(json.dumps([same, first, mixture.steps, step], default=str)))
        return cls(cache_folder() / "starts" / key, step)

    def keep(self, work: Path) -> None:
        """Copy the checkpoint of a training, and its log, to the cache."""
        if not self.folder.is_dir():
            with atomic_folder(self.folder) as made:
                name = f"checkpoint-{self.step}"
                shutil.copytree(work / name, made / name)
                shutil.copy(work / LOG_FILE, made / LOG_FILE)

    def use(self, work: Path) -> None:
        """Copy the checkpoint from the cache to a training that has none."""
        if self.folder.is_dir() and find_newest_checkpoint(work) is None:
            shutil.copytree(self.folder, work, dirs_exist_ok=True)
            log.info("The first %s steps are those of an earlier training.", f"{self.step:,}")


class MixCallback(ResumableCallback):
    """Records the losses of the texts for the log, and asks the mix for weights when it is due."""

    def __init__(
        self, trainer: StepTrainer, mixture: Mixture, measure: Measurement | None, start: SharedStart | None = None
    ) -> None:
        """Set up the callback.

        Args:
            trainer: The trainer.
            mixture: The texts and the mix.
            measure: Returns what the mix reads, apart from the losses in training.
            start: Where the checkpoint before the end of the mix is kept; None if it is not.
        """
        self._trainer, self._mixture, self._measure, self._start = trainer, mixture, measure, start

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask for the weights of the first step."""
        if state.global_step == 0:
            self._ask(state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the losses for a line of the log, and ask for weights."""
        if control.should_log and self._mixture.ledger:
            self._mixture.ledger.update_known()
        if state.global_step < state.max_steps:
            self._ask(state)
        if self._start and state.global_step == self._start.step and not self._start.folder.is_dir():
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the checkpoint before the end of the mix."""
        if self._start and state.global_step == self._start.step:
            self._start.keep(Path(str(args.output_dir)))

    def _ask(self, state: TrainerState) -> None:
        mixture, trainer, step = self._mixture, self._trainer, state.global_step
        progress = trainer.clock.spent if mixture.timed else step / state.max_steps
        if (
            not mixture.adapts
            or not mixture.mix
            or not mixture.mix.is_due(step, state.max_steps, progress, len(mixture.rounds))
        ):
            return
        started, found = time.monotonic(), dict[str, np.ndarray]()
        if "train_loss" in mixture.mix.reads and mixture.ledger:
            found["train_loss"] = mixture.ledger.since("mix")[: len(mixture.weighted)]
        if self._measure is not None:
            found |= self._measure(len(mixture.rounds))
        mixture.change(effective_step(step), mixture.ask(Round(step, mixture.read(step), **found), progress))
        # Measuring does not count as training time.
        trainer.clock.earlier -= time.monotonic() - started

    def save(self, checkpoint: Path) -> None:
        """Write the losses and the rounds into the folder of a checkpoint."""
        mixture = self._mixture
        ledger = mixture.ledger.state() if mixture.ledger else {}
        rounds = [one.to_dict() for one in mixture.rounds] if mixture.adapts else []
        write_json(checkpoint / MIX_FILE, {"ledger": ledger, "rounds": rounds})

    def load(self, checkpoint: Path) -> None:
        """Restore the losses, and the weights so far."""
        state = read_json(checkpoint / MIX_FILE)
        if self._mixture.ledger:
            self._mixture.ledger.load(state["ledger"])
        if self._mixture.adapts:
            self._mixture.restore([Round.from_dict(one) for one in state["rounds"]])


def effective_step(step: int) -> int:
    """Return the first step that has the weights that a mix proposed after ``step`` steps.

    The texts of the next step are prepared already, except at the start.
    """
    return step + 1 if step else 0


def mean_length(texts: Sequence[MixedText], shares: Sequence[float]) -> float:
    """Return the mean tokens per row of a mix."""
    pairs = zip(texts, shares, strict=True)
    return 1 / sum(share * len(text.rows) / text.rows.tokens for text, share in pairs)
