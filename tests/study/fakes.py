"""A fake backend of studies: it trains nothing, but counts its calls and can fail or be killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from acclimate.evaluation.calibration import calibration_metrics
from acclimate.results.study import ProbeResult
from acclimate.study.backend import Backend
from acclimate.study.compare import prepare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import plan, read_study
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, JobGraph


class World:
    """The fake backend, with a record of its calls."""

    def __init__(self, items: int = 120, gain: float = 0.1, headless: bool = False):
        self.calls: Counter[str] = Counter()
        self.arguments: list[dict] = []
        self.advised: list[dict] = []
        self.items, self.gain, self.headless = items, gain, headless
        self.fail_on: dict[str, Exception] = {}
        self.die_after: int | None = None

    def _called(self, kind: str, **arguments) -> None:
        if self.die_after is not None and sum(self.calls.values()) >= self.die_after:
            raise KeyboardInterrupt
        self.calls[kind] += 1
        self.arguments.append({"kind": kind, **arguments})
        if kind in self.fail_on:
            raise self.fail_on[kind]

    def adapt(self, model, corpus, method="mlm", out=None, *, progress=True, **options):
        method, settings = next(iter(method.items())) if isinstance(method, dict) else (method, None)
        self._called("adapt", model=model, method=method, documents=list(corpus), settings=settings, **options)
        self._called(f"adapt {method}")
        self.calls[f"adapt {method}"] -= 1
        folder = Path(out)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"method": method, **(settings or {})}))
        terms = {"mlm": 2.5, "contrast": 4.0} if method == "dga" else {"mlm": 2.4}
        steps = [
            {
                "step": i,
                "tokens": 5000 * i,
                "loss": sum(terms.values()),
                "terms": {
                    name: value * (0.8 + np.exp(-i / 8) / 4 + 0.01 * np.sin(7 * i)) for name, value in terms.items()
                },
            }
            for i in range(1, 41)
        ]
        (folder / "log.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        measured = {"steps": 40, "tokens": 200_000, "seconds": 62.5, "losses": terms, "out": folder}
        return SimpleNamespace(method=method, rows=SimpleNamespace(tokens=5000), **measured)

    def finetune(self, model, task, *, seed=0, progress=True, **options):
        self._called("finetune", model=model, task=task.name, seed=seed, **options)
        self._called(f"finetune {task.name}")
        self.calls[f"finetune {task.name}"] -= 1
        gold = np.random.default_rng(5).integers(3, size=self.items)
        kind = self._kind(model)
        if "out" in options:
            Path(options["out"]).mkdir(parents=True)
            (Path(options["out"]) / "config.json").write_text(json.dumps({"method": kind}))
        rng = np.random.default_rng([seed, len(kind), 3])
        right = rng.random(self.items) < 0.55 + self.gain * (kind == "mlm") - self.gain * (kind == "dga") / 3
        predicted = np.where(right, gold, (gold + 1) % 3)
        score = float(right.mean())
        scoring = task.scoring(negative=options.get("negative"))
        extra = {name: scoring.score(gold, predicted, name) for name in scoring.metrics[3:]}
        return SimpleNamespace(
            task=task.name,
            seed=seed,
            metrics={"accuracy": score, "macro_f1": score, "micro_f1": score, **extra, **_calibration(rng, right)},
            gold=gold.tolist(),
            predicted=predicted.tolist(),
            labels=["a", "b", "c"],
            seconds=1.5,
            train_size=50,
            scoring=scoring.details(),
        )

    def distill(self, teacher, student, task, *, seed=0, progress=True, **options):
        """Distil; the reported disagreement falls with every epoch."""
        made = self.finetune(teacher, task, seed=seed)
        self.calls["distill"] += 1
        away = 0.3 if options.get("objective") == "kl" else 0.15
        made.disagreement = [20 + seed, *(48 * away + 10 / epoch for epoch in range(1, 4))]
        made.units, made.distilled_epochs, made.seconds = 48, 2, 9.0
        made.teacher_metrics, made.student_metrics = made.metrics, self.finetune(student, task, seed=seed).metrics
        made.stage_seconds = {"teacher": 0.01, "student": 1.25, "teacher_targets": 0.25, "distillation": 3.0}
        return made

    def merge(self, model, method, out, *, progress=True, **options):
        first = model[0] if isinstance(model, list) else model
        self._called("merge", model=str(model), method=method.name, **method.settings(), **options)
        Path(out).mkdir(parents=True)
        (Path(out) / "config.json").write_text((Path(first) / "config.json").read_text())
        return SimpleNamespace(notes=["one is not merged"])

    @staticmethod
    def _kind(model) -> str:
        return json.loads((Path(model) / "config.json").read_text()).get("method", "none")

    def lm_loss(self, model, texts, *, max_length):
        self._called("lm_loss", model=model, texts=list(texts), max_length=max_length)
        kind = self._kind(model)
        general = texts[0].startswith("general")
        shift = {"none": 0.0, "mlm": 0.12, "dga": 0.05}[kind] * (1 if general else -3)
        rng = np.random.default_rng(len(texts))
        noise = np.random.default_rng(len(kind)).normal(0, 0.1, len(texts)) * (kind != "none")
        counts = rng.integers(3, 12, len(texts))
        losses = (3.1 + rng.normal(0, 0.6, len(texts)) + shift + noise) * counts
        return {
            "nats": float(losses.sum() / counts.sum()),
            "masked": int(counts.sum()),
            "texts": len(texts),
            "per_text": losses.tolist(),
            "per_text_masked": counts.tolist(),
        }

    def has_head(self, model, max_length, methods=(), setting=""):
        return not self.headless

    def advice(self, model, corpus, held_out, general, *, max_length):
        self.advised.append({"model": model, "held_out": held_out, "general": general, "documents": list(corpus)})
        if "advice" in self.fail_on:
            raise self.fail_on["advice"]
        above = {"difference": 0.5, "low": 0.25, "high": 0.75, "unit": "nats"}
        return {
            "documents": len(list(corpus)),
            "tokens": 123_456.0,
            "vocabulary": {"domain, general": {"top": 0.625, "words": 900}} if general else {},
            "fragmentation": {name: {"pieces": 1.5} for name in ("domain", "general")[: 2 if general else 1]},
            "loss": {"domain": {"nats": 3.0, "above_general": above}, "general": {"nats": 2.5}} if general else {},
        }

    def drift(self, base, adapted, texts, *, max_length):
        self._called("drift", base=base, model=adapted, texts=list(texts), max_length=max_length)
        layer = {"cka": 0.9, "distance": 1.0, "share": 0.1, "cosine": 0.95}
        movement = {"distance": 0.05, "coordinate": 0.01, "share": 0.02, "cosine": 0.99, "moved": 1.0, "tokens": 7}
        layers = [layer, {**layer, "cka": 0.7}, {**layer, "cka": 0.8}]
        return {
            "texts": len(texts),
            "tokens": 99,
            "embeddings": {"all": movement, "read": movement},
            "layers": layers,
        }

    def backend(self, **functions) -> Backend:
        """Return the backend, with some of its functions replaced."""
        own = {
            "adapt": self.adapt,
            "finetune": self.finetune,
            "distill": self.distill,
            "lm_loss": self.lm_loss,
            "others": {"drift": self.drift, "advice": self.advice, **functions.pop("others", {})},
            "merge": self.merge,
            "has_head": self.has_head,
            "probe": no_probe,
        }
        return Backend(**{**own, **functions})


def no_probe(model, task, **options) -> ProbeResult:
    """Return a probe without scores."""
    return ProbeResult(task=task.name, gold=[0], kind="single_label", unit="labels per class")


def _calibration(rng, right) -> dict:
    """Calibration metrics of an overconfident classifier of three classes."""
    sure = np.clip(rng.beta(6, 1.5, right.size), 0.34, 1).tolist()
    rows = [[one, (1 - one) / 2, (1 - one) / 2] for one in sure]
    return calibration_metrics(rows, [0 if hit else 1 for hit in right.tolist()])


def read(values: dict, world: World | None = None) -> StudyInputs:
    """Read the inputs of a study as ``compare`` does."""
    return prepare(read_study(StudyConfig.of(values), (world or World()).backend()))[0]


def graph_of(values: dict, world: World | None = None) -> JobGraph:
    """Plan a study without running it."""
    return plan(read(values, world))


def of_kind(graph: JobGraph, kind: str, **place) -> list[Job]:
    """Return the jobs of a kind; ``place`` gives values that the fields of their place must have."""
    jobs = [job for job in (graph.entries if place else graph.jobs.values()) if job.name == kind]
    return [job for job in jobs if all(getattr(job.place, name) == value for name, value in place.items())]


def files(folder: Path) -> Path:
    """Write the input files of a small study; return their folder."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    for name, count in (("cs", 300), ("food", 300), ("general", 80), ("heldout", 60)):
        (folder / f"{name}.txt").write_text("".join(f"{name} document number {i} of many\n" for i in range(count)))
    for name in ("intent", "aspect"):
        write_task(folder / name, name)
    return folder


def write_classifier(folder: Path) -> Path:
    """Write the configuration of a classifier of these tasks."""
    folder.mkdir(parents=True)
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": "a", "1": "b", "2": "c"}}))
    return folder


def write_task(folder: Path, name: str, **texts: list[str]) -> Path:
    """Write a task of three classes; ``texts`` are those of splits, others have a few of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = "abc"[: len(texts.get("train", "abc"))]
    for split, count in (("train", 6), ("dev", 3), ("test", 3)):
        own = texts.get(split, [f"{name} {split} text {number}" for number in range(count)])
        rows = [{"text": text, "label": classes[number % len(classes)]} for number, text in enumerate(own)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def distilling(folder: Path, **changes) -> dict:
    """Return the configuration of a study that distills an adapted model into a second one, in two rows."""
    (folder / "student").mkdir()
    (folder / "student" / "config.json").write_text('{"model_type": "bert", "hidden_size": 4}')
    teacher = {"model": "model", "method": "mlm"}
    rows = [{"label": "doktra", "teacher": teacher}, {"label": "kl", "teacher": teacher, "objective": "kl"}]
    models = [str(folder / "model"), str(folder / "student")]
    return study(folder, models=models, methods=["none", "mlm"], distill=rows, **changes)


def study(folder: Path, **changes) -> dict:
    """Return the configuration of a small study of these files; with one adaptation, so without verdicts."""
    return {
        "name": "small",
        "models": [str(folder / "model")],
        "methods": ["none", "mlm", {"name": "dga", "label": "dga, no contrast", "contrast_weight": 0}],
        "domains": [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(folder / "intent")]}],
        "general": str(folder / "general.txt"),
        "adapt": {"tokens": 200_000},
        "finetune": {"epochs": 3},
        "seeds": 3,
        "adapt_seeds": [0],
        "evaluate": {"documents": 20},
        "probe": False,  # the floor would be one more job of every study
        **changes,
    }
