"""A fake backend of tournaments: adaptations and fine-tunings have chosen gains and noise, and train nothing.

``python -m tests.labs.auto.worlds FOLDER OUT CALLS`` runs a tournament that kills itself after so many calls.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import acclimate
from acclimate.labs.auto.plan import RACE_SEEDS
from acclimate.study.backend import Backend
from tests.study.fakes import files, no_probe, write_task


def tournament_files(folder: Path, dev: int = 800) -> Path:
    """Write a model, texts and a task with so many dev rows; return the folder."""
    files(folder)
    texts = {split: [f"{split} text number {number}" for number in range(count)]
             for split, count in (("train", 30), ("dev", dev), ("test", 60))}  # fmt: skip
    write_task(folder / "task", "task", **texts)
    return folder


def options(folder: Path, out: Path, **changes) -> dict:
    """Return options of ``auto`` for these files."""
    given = {"model": folder / "model", "corpus": folder / "cs.txt", "task": folder / "task", "out": out}
    return {**given, "general": folder / "general.txt", "minutes": 60, "progress": False, **changes}


class World:
    """The backend, with a record of its calls.

    Attributes:
        gains: Added to the accuracy of 0.6, by method.
        forgets: Added to the loss on general text, by method.
        fail_on: Methods whose adaptation fails.
        die_after: Number of calls after which the process is interrupted; None for never.
        dies_hard: Whether it is killed instead.
        read: Labelled texts that fine-tunings were scored on or could choose by, by seed.
        measured: General texts that the losses of adapted models were measured on, by ``"race"`` and ``"claim"``.
    """

    def __init__(self, gains=None, forgets=None, spread: float = 0.01):
        self.gains, self.forgets, self.spread = gains or {}, forgets or {}, spread
        self.calls: Counter[str] = Counter()
        self.fail_on: set[str] = set()
        self.die_after: int | None = None
        self.dies_hard = False
        self.tokens = 400_000
        self.read: defaultdict[int, set[str]] = defaultdict(set)
        self.measured: defaultdict[str, set[str]] = defaultdict(set)

    def _called(self, kind: str) -> None:
        if self.die_after is not None and self.calls.total() >= self.die_after:
            if self.dies_hard:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt
        self.calls[kind] += 1

    def adapt(self, model, corpus, method="mlm", out=None, *, progress=True, seed=0, **given):
        method = next(iter(method)) if isinstance(method, dict) else method
        self._called("adapt" if "max_minutes" not in given else "pilot")
        if method in self.fail_on:
            raise RuntimeError("it does not fit into memory\nand more")
        name = self.name(method, given)
        folder = Path(out)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "bert", "method": name, "seed": seed}))
        points = [{"step": step, "heldout": {"loss": 3.0 - step / 10, "terms": {}}} for step in range(5)]
        (folder / "log.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
        tokens = given.get("tokens") or 1_000_000 * given["max_minutes"]
        made = {"steps": 4, "tokens": tokens, "seconds": tokens / 20_000, "losses": {"mlm": 2.0}, "out": folder}
        return SimpleNamespace(method=method, rows=SimpleNamespace(tokens=self.tokens), **made)

    @staticmethod
    def name(method, given) -> str:
        adapter, rate = ("adapter", given.get("adapter")), ("rate", given.get("learning_rate"))
        return ",".join([method, *(f"{key}={value}" for key, value in (adapter, rate) if value is not None)])

    def merge(self, model, method, out, *, progress=True, **given):
        self._called("merge")
        Path(out).mkdir(parents=True)
        config = self._config(model)
        (Path(out) / "config.json").write_text(json.dumps({**config, "method": f"{config['method']}+{method.name}"}))
        return SimpleNamespace(notes=[])

    @staticmethod
    def _config(model) -> dict:
        return {"method": "none", "seed": 0, **json.loads((Path(model) / "config.json").read_text())}

    def finetune(self, model, task, *, seed=0, progress=True, **given):
        self._called("finetune")
        self.read[seed] |= {row.text for row in (*task.dev, *task.test)}
        config = self._config(model)
        gold = np.array([row.label for row in task.test])
        of_items = np.random.default_rng(len(gold)).random(len(gold))
        own = np.random.default_rng([seed, config["seed"], *config["method"].encode()])
        chance = 0.6 + self.gains.get(config["method"], 0.0) + own.normal(0, self.spread)
        right = 0.5 * of_items + 0.5 * own.random(len(gold)) < _quantile(chance)
        predicted = np.where(right, gold, (gold + 1) % 3)
        scoring = task.scoring()
        metrics = {name: scoring.score(gold, predicted, name) for name in scoring.metrics}
        return SimpleNamespace(
            **{"task": task.name, "seed": seed, "metrics": metrics, "gold": gold.tolist()},
            **{"predicted": predicted.tolist(), "labels": ["a", "b", "c"], "seconds": 1.5, "train_size": 30},
            scoring=scoring.details(),
        )

    def lm_loss(self, model, texts, *, max_length):
        self._called("lm_loss")
        config = self._config(model)
        if config["method"] != "none" and texts[0].startswith("general"):
            self.measured["race" if config["seed"] < RACE_SEEDS else "claim"] |= set(texts)
        shift = self.forgets.get(config["method"], 0.0) if texts[0].startswith("general") else -0.3
        noise = np.random.default_rng([config["seed"], *config["method"].encode()]).normal(0, 0.01, len(texts))
        losses = (3.0 + (shift + noise) * (config["method"] != "none")) * np.full(len(texts), 10.0)
        return {
            **{"nats": float(losses.sum() / 10 / len(texts)), "masked": 10 * len(texts), "texts": len(texts)},
            **{"per_text": losses.tolist(), "per_text_masked": [10] * len(texts)},
        }

    def backend(self) -> Backend:
        """Return the backend."""
        return Backend(
            adapt=self.adapt,
            finetune=self.finetune,
            merge=self.merge,
            lm_loss=self.lm_loss,
            others={"advice": _advice},
            probe=no_probe,
            has_head=lambda *given: True,
        )


def _advice(*_, **__) -> dict:
    return {"documents": 300, "tokens": 123_456.0, "vocabulary": {}, "fragmentation": {}, "loss": {}}


def _quantile(chance: float) -> float:
    """Return the quantile of the mean of two uniform numbers."""
    return float(np.sqrt(chance / 2) if chance < 0.5 else 1 - np.sqrt((1 - chance) / 2))


def helped() -> World:
    """Return a world in which plain training helps, and forgets little."""
    return World(gains={"lm": 0.12}, forgets={"lm": 0.02})


def run(folder: Path, out: Path, world: World, **changes):
    """Run a small tournament."""
    given = {"minutes": 30, "tokens": 60_000, "methods": "tapt", **changes}
    return acclimate.auto(**options(folder, out, backend=world.backend(), **given))


if __name__ == "__main__":
    dying = helped()
    dying.die_after, dying.dies_hard = int(sys.argv[3]), True
    run(Path(sys.argv[1]), Path(sys.argv[2]), dying, forget_at_most=0.05)
