"""`acclimate advise`: what can be measured before an adaptation, and what a pilot of it promises."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corpus import Corpus, tokenize
from acclimate.corpus.documents import subsample_documents
from acclimate.corpus.stop_words import read_stop_words
from acclimate.errors import UserError, check_positive
from acclimate.evaluation import language_model_loss
from acclimate.evaluation.statistics import paired_difference
from acclimate.files import write_json
from acclimate.inspect.projection import project
from acclimate.inspect.vocabulary import count_words, fragmentation, overlap
from acclimate.methods import get, lookup
from acclimate.models import load_language_model
from acclimate.planning.advice_text import in_words
from acclimate.progress import Progress
from acclimate.tasks.kinds import LabelledTask, load_task
from acclimate.tasks.text import task_text
from acclimate.training import adapt
from acclimate.training.inputs import TextInput, as_corpus
from acclimate.training.options import check_seed
from acclimate.version import __version__

ASIDE = 0.1
"""Share of the documents of the domain that the pilot does not read."""
COUNTED = 5000
"""Documents of each text at most on which words are counted, drawn from all of it."""
POINTS = 10
"""Measurements of the held-out loss during the pilot."""
RESAMPLES = 2000
PLACES = {"domain": "held-out text of the domain", "general": "general text", "task": "text of the task"}
Loss = dict[str, Any]


@dataclass(frozen=True)
class Pilot:
    """How the pilot trains.

    Attributes:
        steps: Optimiser steps; 0 leaves it out.
        batch_size: Texts a step.
        learning_rate: Peak; None is the method's own.
        method: Of adaptation.
    """

    steps: int = 200
    batch_size: int = 32
    learning_rate: float | None = None
    method: str = "mlm"


def advise(
    model: str | Path,
    corpus: TextInput,
    general: TextInput,
    task: Any = None,
    out: str | Path | None = None,
    *,
    pilot: Pilot | None = None,
    documents: int = 200,
    max_length: int = 128,
    stop_words: str = "english",
    text_column: str = "text",
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure what can be known before a model is adapted, and say it in words.

    Args:
        model: A model folder or a name on the hub. A model without a masked-LM head is given one first, on half of
            the general text, of which nothing is measured then.
        corpus: Text of the domain.
        general: General text.
        task: A labelled task or its folder; of it the train texts are looked at.
        out: JSON file to write; None writes nothing.
        pilot: How the pilot trains; its model is thrown away.
        documents: Documents of each text on which losses are measured.
        max_length: Tokens of a text at most.
        stop_words: ``english``, ``none``, a file with one a line, or another language, as ``german``.
        text_column: Where the text is in tables and JSON lines.
        seed: Of the pilot.
        progress: Show bars.

    Returns:
        ``vocabulary`` and ``fragmentation``, see :mod:`acclimate.inspect.vocabulary`; ``loss`` of the model on each
        text, with how far domain and task are above general text; ``pilot``, its gain, its projection and what it
        forgot; and ``words``, the same in words: for each figure ``about``, ``says`` and ``does_not_say``.

    Raises:
        UserError: If a text or the model cannot be read, or there is too little text.
    """
    pilot = pilot or Pilot()
    check_positive(documents=documents, max_length=max_length, batch_size=pilot.batch_size)
    if pilot.steps < 0:
        raise UserError(f"pilot-steps must be 0 or more, not {pilot.steps}.")
    check_seed(seed)
    labelled = load_task(task) if isinstance(task, str | Path) else task
    if pilot.steps:
        _check_method(pilot.method, labelled)
    train, aside = as_corpus(corpus, text_column).split(ASIDE, 0)
    stops = read_stop_words(stop_words)
    report: dict[str, Any] = {"acclimate": __version__, "model": str(model), "documents": documents, "seed": seed}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="acclimate-advise-")))
        source, judged = str(model), as_corpus(general, text_column)
        tokenizer = (loaded := load_language_model(source)).tokenizer
        if loaded.absent_head:
            warm, judged = judged.split(0.5, 0)
            adapt(source, warm, "none", work / "head", max_length=max_length, seed=seed, progress=progress)
            source = str(work / "head")
        samples = {
            "domain": _sample("domain text", train, max(COUNTED, pilot.steps * pilot.batch_size), progress),
            "general": _sample("general text", judged, COUNTED, progress),
        }
        texts = {
            "domain": _sample("held-out domain text", aside, documents, progress),
            "general": subsample_documents(samples["general"], documents),
        }
        if labelled is not None:
            samples["task"] = task_text(labelled)
            texts["task"] = subsample_documents(samples["task"], documents)
        report |= _of_words({name: some[:COUNTED] for name, some in samples.items()}, tokenizer, stops)
        losses = _losses(source, texts, max_length)
        report["loss"] = _specificity(losses)
        if pilot.steps:
            report["pilot"] = _pilot(
                source, samples["domain"], texts, losses, pilot, work, labelled, max_length, seed, progress
            )
            pieces = tokenize(Corpus.of(samples["domain"][:500]), tokenizer, max_length, progress=False)
            an_epoch = train.report.documents * len(pieces) / len(samples["domain"][:500]) / pilot.batch_size
            report["pilot"]["projection"] = _projection(report["pilot"]["curve"], math.ceil(an_epoch))
    report["words"] = in_words(report)
    if out is not None:
        write_json(out, report)
    return report


def _check_method(name: str, task: LabelledTask | None) -> None:
    """Raise UserError for a method that a pilot cannot show, before anything is measured."""
    method = lookup(name)
    if not method.trains or get(name).stages():
        what = "several stages, of which a pilot can show none" if method.trains else "no training, so no pilot"
        raise UserError(f"The method '{name}' has {what}: give another, or leave the pilot out with --pilot-steps 0.")
    if method.needs_task and task is None:
        raise UserError(f"A pilot of '{name}' needs a labelled task: give its folder with --task, or another method.")


def _sample(name: str, corpus: Corpus, count: int, progress: bool) -> list[str]:
    """Draw documents from all of a text, reading it once."""
    with Progress(name, None, unit="documents", enabled=progress) as bar:

        def counted() -> Any:
            for number, text in enumerate(corpus):
                bar.update(number)
                yield text

        return subsample_documents(counted(), count)


def _of_words(samples: dict[str, list[str]], tokenizer: Any, stops: frozenset[str]) -> dict[str, Any]:
    """Measure overlap on as many words of each text, and fragmentation on all that were drawn."""
    counts = {name: count_words(texts) for name, texts in samples.items()}
    most = min(counts["domain"].words, counts["general"].words)
    domain, general = (count_words(samples[name], most) for name in ("domain", "general"))
    found: dict[str, Any] = {"domain, general": {**overlap(domain, general, stops), "words": most}}
    if "task" in samples:
        most = min(counts["task"].words, counts["domain"].words)
        task, domain = (count_words(samples[name], most) for name in ("task", "domain"))
        found["task, domain"] = {**overlap(task, domain, stops), "words": most}
    return {
        "vocabulary": found,
        "fragmentation": {name: fragmentation(tokenizer, count) for name, count in counts.items()},
    }


def _losses(model: str, texts: dict[str, list[str]], max_length: int) -> dict[str, Loss]:
    losses = {name: language_model_loss(model, some, max_length=max_length) for name, some in texts.items()}
    for name, loss in losses.items():
        if sum(count > 0 for count in loss["per_text_masked"]) < 2:
            raise UserError(
                f"There is one document to measure the loss on {PLACES[name]}, and one says nothing of others; give "
                "more text."
            )
    return losses


def _specificity(losses: dict[str, Loss]) -> dict[str, Any]:
    """Return the loss on each text, and how far it is above that on general text, with a bootstrap over documents."""
    kept = ("nats", "bits_per_byte", "texts", "masked")
    found: dict[str, Any] = {name: {key: loss[key] for key in kept} for name, loss in losses.items()}
    for name in found.keys() - {"general"}:
        drawn = [_resampled(losses[text], seed) for seed, text in enumerate((name, "general"))]
        low, high = np.percentile(drawn[0] - drawn[1], [2.5, 97.5]).tolist()
        difference = losses[name]["nats"] - losses["general"]["nats"]
        found[name]["above_general"] = {"difference": difference, "low": low, "high": high}
    return found


def _resampled(loss: Loss, seed: int) -> np.ndarray:
    """Return the mean loss of resamples of the documents, (resamples,)."""
    sums, counts = np.array(loss["per_text"]), np.array(loss["per_text_masked"], dtype=float)
    drawn = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), RESAMPLES)
    return (drawn @ sums) / np.maximum(drawn @ counts, 1)


def _pilot(
    source: str,
    read: Sequence[str],
    texts: dict[str, list[str]],
    before: dict[str, Loss],
    pilot: Pilot,
    work: Path,
    task: LabelledTask | None,
    max_length: int,
    seed: int,
    progress: bool,
) -> dict[str, Any]:
    """Adapt for a few steps and measure again."""
    result = adapt(
        source,
        Corpus.of(read),
        pilot.method,
        work / "pilot",
        task=task if lookup(pilot.method).needs_task else None,
        steps=pilot.steps,
        batch_size=pilot.batch_size,
        learning_rate=pilot.learning_rate,
        max_length=max_length,
        heldout=Corpus.of(texts["domain"]),
        heldout_every=max(1, pilot.steps // POINTS),
        seed=seed,
        progress=progress,
    )
    lines = [json.loads(line) for line in (result.out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    after = _losses(str(result.out), texts, max_length)
    return {
        **asdict(pilot),
        "tokens": result.tokens,
        "seconds": result.seconds,
        "curve": [[line["step"], _common(line["heldout"])] for line in lines if "heldout" in line],
        "change": {
            name: {
                "before": before[name]["nats"],
                "after": after[name]["nats"],
                "bits_per_byte": after[name]["bits_per_byte"],
                **_changed(before[name], after[name]),
            }
            for name in texts
        },
    }


def _common(measured: dict[str, Any]) -> float:
    """Return the masked-LM loss, or the whole loss of a method without one."""
    return float(measured["terms"].get("mlm", measured["loss"]))


def _changed(before: Loss, after: Loss) -> dict[str, float]:
    counts = np.array(before["per_text_masked"], dtype=float)
    asked = counts > 0
    was, now = (np.array(loss["per_text"])[asked] / counts[asked] for loss in (before, after))
    found = paired_difference(now, was, counts[asked]).as_dict()
    return {name: found[name] for name in ("difference", "low", "high")}


def _projection(curve: list[list[float]], target: int) -> dict[str, Any]:
    """Project the change of the held-out loss to one pass over the corpus; empty if the pilot came that far."""
    found = project([step for step, _ in curve], [loss for _, loss in curve], target)
    start = curve[0][1]
    changes = {
        name: {key: number - start for key, number in value.items()} if isinstance(value, dict) else value
        for name, value in found.items()
    }
    return {"steps": target, **changes} if changes else {}
