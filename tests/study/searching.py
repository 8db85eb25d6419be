"""A fake backend for searches: scores depend only on the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from acclimate.study.backend import Backend
from tests.study.fakes import World, study

BEST = 1e-4
"""The best learning rate of every model, unless a test changes it."""


def write_task(folder: Path, marker: str = "TEST", dev: bool = True) -> Path:
    """Write a task whose texts name their split."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {"train": 24, "test": 30, **({"dev": 12} if dev else {})}
    for split, count in splits.items():
        name = marker if split == "test" else split
        rows = [{"text": f"{name} number {i}", "label": "abc"[i % 3]} for i in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def splits_in(task: Any) -> set[str]:
    """Return the original splits of the rows that a task contains, whichever split they are in now."""
    return {example.text.split()[0] for split in ("train", "dev", "test") for example in getattr(task, split)}


class Trials:
    """A backend that records its calls, and whose scores are a function of the settings."""

    def __init__(self, ece: float = 0.1) -> None:
        self.world = World()
        self.calls: list[dict[str, Any]] = []
        self.ece = ece
        self.fails_at: float | None = None

    def of(self, kind: str, test: bool) -> Iterator[dict[str, Any]]:
        """Yield the calls of a kind, either those that were given the test split or those that were not."""
        return (call for call in self.calls if call["kind"] == kind and ("TEST" in call["splits"]) == test)

    def score(self, options: dict[str, Any]) -> tuple[float, float]:
        """Return score and calibration error of settings."""
        rate, penalty = options.get("learning_rate", 3e-5), options.get("confidence_penalty", 0.0)
        return 0.9 - abs(rate - BEST) * 1000 - penalty / 100, self.ece - penalty / 20

    def finetune(self, model, task, *, seed=0, progress=True, out=None, **options):
        self.calls.append(
            {
                "kind": "teacher" if out else "finetune",
                "model": model,
                "seed": seed,
                "splits": splits_in(task),
                **options,
            }
        )
        if self.fails_at is not None and options.get("learning_rate") == self.fails_at:
            raise RuntimeError("the loss is not a number")
        if out:
            Path(out).mkdir(parents=True)
            (Path(out) / "config.json").write_text("{}")
        return self._result(task, seed, *self.score(options))

    def distill(self, teacher, student, task, *, seed=0, progress=True, **options):
        self.calls.append(
            {"kind": "distill", "teacher": teacher, "student": student, "splits": splits_in(task), **options}
        )
        share, penalty = options.get("distill_share", 0.9), options.get("confidence_penalty", 0.5)
        score = 0.8 - abs(share - 0.7) - abs(penalty - 0.3) / 10
        curve = {"units": 4, "distilled_epochs": 1, "disagreement": [3.0, 2.0, 2.0]}
        curve["stage_seconds"] = {"teacher": 0.0, "student": 0.5, "teacher_targets": 0.1, "distillation": 0.4}
        before = {"teacher_metrics": {"macro_f1": 0.9}, "student_metrics": {"macro_f1": 0.5}}
        return SimpleNamespace(**vars(self._result(task, seed, score, 0.1)), **curve, **before)

    def _result(self, task, seed, score, ece) -> SimpleNamespace:
        gold = [example.label for example in task.test]
        metrics = {"accuracy": score, "macro_f1": score, "micro_f1": score, "ece": ece, "brier": 0.1, "log_loss": 0.3}
        return SimpleNamespace(
            task=task.name, seed=seed, metrics=metrics, gold=gold, predicted=gold, labels=task.labels, seconds=1.0,
            train_size=len(task.train), scoring=task.scoring().details(), kind=task.scoring().name,
        )  # fmt: skip

    def backend(self) -> Backend:
        """Return the backend."""
        return self.world.backend(finetune=self.finetune, distill=self.distill)


def searching(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a small study that searches the learning rate."""
    write_task(folder / "task")
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [{"path": str(folder / "task")}]}]
    grid = {"seeds": 2, "finetune": {"learning_rate": [3e-5, BEST, 3e-4]}}
    return {**study(folder, domains=domains, methods=["none", "mlm"]), "search": grid, "leakage": "off", **changes}
