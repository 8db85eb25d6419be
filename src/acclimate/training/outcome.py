"""What an adaptation leaves behind: the result, its card, and whether a folder holds just this run."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.errors import UserError
from acclimate.files import read_json, write_json
from acclimate.training.processes import Processes
from acclimate.training.trainer import StepTrainer

CARD = "acclimate.json"
LOG = "log.jsonl"


@dataclass
class AdaptResult:
    """What an adaptation did.

    Attributes:
        out: The model folder.
        method: Name of the method.
        steps: Optimiser steps.
        tokens: Real tokens of unique text read (each text counts once a step, however many views read it).
        seconds: Of training, without loading and tokenising.
        losses: Mean of each term over the last logged stretch, nats.
        parameters: The resolved configuration.
        accounts: What the method found while it prepared, by the name of the JSON file beside the model.
        masked: A few texts with what is masked of them, see :mod:`acclimate.training.preview`; None if the run was
            finished before and the cache is gone. They do not go beside the model, since not every text may go where
            a model goes.
        about: Paper and summary of the method, for the card.
    """

    out: Path
    method: str
    steps: int
    tokens: int
    seconds: float
    losses: dict[str, float]
    parameters: dict[str, Any] = field(default_factory=dict)
    accounts: dict[str, Any] = field(default_factory=dict)
    masked: dict[str, Any] | None = None
    about: dict[str, str] = field(default_factory=dict)

    def take(self, trainer: StepTrainer) -> None:
        """Take the numbers of a training at the step where it is."""
        self.steps, self.tokens = trainer.state.global_step, trainer.tokens
        self.seconds, self.losses = round(trainer.clock.seconds, 1), trainer.last_terms

    def measured(self) -> dict[str, Any]:
        """Return what was measured, as the card has it."""
        numbers = {"steps": self.steps, "tokens": self.tokens, "seconds": self.seconds, "losses": self.losses}
        return {**numbers, "accounts": sorted(self.accounts)} if self.accounts else numbers


def open_work(work: Path, config: dict[str, Any], group: Processes) -> None:
    """Make the working folder of a run, or keep what a killed run of the same configuration left in it."""
    if group.first:
        if work.is_dir() and read_card(work) != plain(config):
            shutil.rmtree(work)
        work.mkdir(parents=True, exist_ok=True)
        write_json(work / CARD, config)
    group.wait()


def finished(out: Path, config: dict[str, Any], overwrite: bool) -> AdaptResult | None:
    """Return the result if ``out`` holds just this run, None if there is nothing.

    Raises:
        UserError: If it holds something else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if out.is_file():
        raise UserError(f"'{out}' is a file; give a folder to make.")
    card = read_card(out)
    if card is None:
        raise UserError(f"The folder '{out}' is not empty and not an adaptation of ours; give another.")
    if overwrite:
        return None
    same = {key: card.get(key) for key in config} == plain(config)
    if not same:
        raise UserError(f"The folder '{out}' holds another adaptation; give another, or replace it with --overwrite.")
    measured = card["result"]
    files = [name for name in measured.get("accounts", []) if Path(name).name == name and (out / name).is_file()]
    accounts = {name: read_json(out / name) for name in files}
    steps, tokens, seconds, losses = (measured[name] for name in ("steps", "tokens", "seconds", "losses"))
    return AdaptResult(out, card["method"], steps, tokens, seconds, losses, config, accounts)


def read_card(folder: Path) -> Any:
    """Return the card in a folder, None if there is none."""
    return read_json(folder / CARD) if (folder / CARD).is_file() else None


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration looks like after a trip through JSON."""
    return json.loads(json.dumps(config, default=str))
