"""`acclimate advise`: measurements before an adaptation, and a pilot run with a projection of the held-out loss."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, read_lines, write_json
from acclimate.base.options import verb
from acclimate.base.progress import Progress
from acclimate.base.verbs import Next, show_place
from acclimate.base.version import __version__
from acclimate.data.documents import Corpus, as_corpus, subsample_documents, with_usual_column
from acclimate.data.reading import reading_words, text_words
from acclimate.data.stop_words import read_stop_words
from acclimate.data.task_kinds import open_task, task_texts
from acclimate.data.tokenizing import tokenize
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.advise.advice_text import advice_text
from acclimate.labs.advise.options import AdviseOptions
from acclimate.labs.advise.recommendation import recommend
from acclimate.labs.advise.vocabulary import count_words, fragmentation, overlap
from acclimate.labs.inspection.specificity import can_pilot, gains_of_texts, run_pilot, specificity
from acclimate.labs.plan.plans import read_plan
from acclimate.models.kinds import get_kind, loss_terms
from acclimate.models.loading import load_language_model
from acclimate.results.study import Measurements
from acclimate.tasks.interfaces import LabelledTask

HELD_OUT = 0.1
"""Fraction of the domain documents held out from the pilot."""
MAX_COUNTED = 5000
"""Maximum documents for word counts, sampled from each corpus."""
TOKENIZED, MEASURED = 200, 50
"""Documents that are tokenized to estimate the tokens of a corpus, and texts of a quick measurement of the loss."""
MEASUREMENTS = 10
"""Number of measurements of the held-out loss during the pilot."""
RESAMPLES = 2000
MIN_POINTS = 4
"""Minimum points for fitting a learning curve."""
TEXT_NAMES = {"domain": "held-out domain text", "general": "general text", "task": "text of the task"}
Loss = dict[str, Any]


@verb(AdviseOptions)
def advise(options: AdviseOptions) -> Measurements:
    """Measure how a model handles domain text before an adaptation, run a short pilot, and explain the numbers.

    Returns:
        ``vocabulary`` and ``fragmentation`` (:mod:`acclimate.labs.advise.vocabulary`); ``loss`` of the base model on
        each
        text, with the difference to general text; ``pilot``: its gain, projection and forgetting, and with a task its
        specificity; ``recommendation``: what to do, why, and the gain that the pilot lets expect
        (:mod:`acclimate.labs.advise.recommendation`); and ``words``, the explanation: for each measurement ``about``,
        ``says`` and ``does_not_say``.

    Raises:
        UserError: If a text or the model cannot be read, there is too little text, or the method cannot run a pilot.
    """
    check_report_file(options.out)
    steps, batch_size, documents = options.pilot_steps, options.batch_size, options.documents
    max_length, seed, progress = options.max_length, options.seed, options.progress
    labelled = open_task(options.task, options, text_column=None)
    plans = [read_plan(path) for path in options.plans]
    if steps:
        _check_method(options.method, labelled)
    train, held_out = as_corpus(options.corpus, options).split(HELD_OUT, 0)
    stops = read_stop_words(options.stop_words)
    report: dict[str, Any] = {"acclimate": __version__, "model": str(options.model)}
    report |= {"documents": documents, "seed": seed, "plans": plans}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="acclimate-advise-")))
        source = str(options.model)
        general_text = with_usual_column(options.general, options)
        tokenizer = (loaded := load_language_model(source)).tokenizer
        if loaded.absent_head:
            head_text, general_text = general_text.split(0.5, 0)
            adapt(source, head_text, "none", work / "head", max_length=max_length, seed=seed, progress=progress)
            source = str(work / "head")
        samples = {
            "domain": _sample("domain text", train, max(MAX_COUNTED, steps * batch_size), progress),
            "general": _sample("general text", general_text, MAX_COUNTED, progress),
        }
        texts = {
            "domain": _sample("held-out domain text", held_out, documents, progress),
            "general": subsample_documents(samples["general"], documents),
        }
        if labelled is not None:
            samples["task"] = task_texts(labelled)
            texts["task"] = subsample_documents(samples["task"], documents)
        counted = samples["domain"][:TOKENIZED]
        lengths = list(map(len, tokenizer(counted, add_special_tokens=False)["input_ids"]))
        report["tokens"] = round(train.report.documents * sum(lengths) / len(lengths))
        report["parameters"] = sum(weight.numel() for weight in loaded.model.parameters())
        report["labels"] = len(samples["task"]) if labelled is not None else None
        report |= _word_statistics({name: some[:MAX_COUNTED] for name, some in samples.items()}, tokenizer, stops)
        losses = _losses(source, texts, max_length)
        report["loss"] = _compare_losses(losses)
        if steps:
            report["pilot"] = _run_pilot(source, samples["domain"], texts, losses, options, work, labelled)
            sample = samples["domain"][:500]
            rows = tokenize(Corpus.of(sample), tokenizer, max_length, progress=False)
            epoch_steps = train.report.documents * len(rows) / len(sample) / batch_size
            report["pilot"]["projection"] = _project_change(report["pilot"]["curve"], math.ceil(epoch_steps))
    report["recommendation"] = asdict(recommend(report))
    report["words"] = advice_text(report)
    if options.out is not None:
        write_json(options.out, report)
    table = [
        {"text": TEXT_NAMES[name], "nats": found["nats"], "bits_per_byte": found["bits_per_byte"]}
        | {key: found.get("above_general", {}).get(key) for key in ("difference", "low", "high", "unit")}
        for name, found in report["loss"].items()
    ]
    lines = [f"{part['about']}: {part['says']}" for part in report["words"]]
    return Measurements(report, lines, "Loss of the base model, and its difference to general text", table)


def show_advice(report: Any, options: AdviseOptions) -> Iterator[Any]:
    """Yield what ``acclimate advise`` prints."""
    from rich.text import Text

    for part in report["words"]:
        yield Text(part["about"][:1].upper() + part["about"][1:], style="bold")
        yield Text(f"  {part['says']}")
        yield Text(f"  It does not say: {part['does_not_say']}", style="dim")
    yield from show_place("All figures", options.out)
    task: list[Any] = [] if options.task is None else ["--task", options.task]
    texts = (("--corpus", options.corpus), ("--general", options.general))
    described = [word for text in texts for word in text_words(*text, column=options.text_column)]
    described += [*task, *reading_words(options)]
    chosen = report["recommendation"]["options"]
    described += [word for name, value in chosen.items() for word in ("--set", f"adapt.{name}={value}")]
    words = ["compare", "--model", options.model, *described, "--out", "runs/compare"]
    yield Next(words, "to see whether adaptation helps")


def measure_distance(
    model: str | Path, corpus: Corpus, held_out: Sequence[str], general: Sequence[str] | None, *, max_length: int
) -> dict[str, Any]:
    """Measure how far domain text is from general text for a base model, in seconds: :func:`advise` without a pilot.

    Args:
        model: Model folder, or name on the Hugging Face Hub.
        corpus: The domain text; read once.
        held_out: Held-out domain text.
        general: General text; None measures the domain alone.
        max_length: Maximum tokens per text.

    Returns:
        ``documents`` and estimated ``tokens`` of the corpus; ``vocabulary`` and ``fragmentation``; and ``loss``,
        unless the model has no language-model head.

    Raises:
        UserError: If the model or the text cannot be read, or there is too little text.
    """
    loaded = load_language_model(str(model))
    characters = 0

    def counted() -> Iterator[str]:
        nonlocal characters
        for text in corpus:
            characters += len(text)
            yield text

    sample = subsample_documents(counted(), MAX_COUNTED)
    found: dict[str, Any] = {"documents": corpus.report.documents}
    counted_tokens = sum(map(len, loaded.tokenizer(sample[:TOKENIZED], add_special_tokens=False)["input_ids"]))
    found["tokens"] = characters * counted_tokens / max(1, sum(map(len, sample[:TOKENIZED])))
    samples = {"domain": sample, **({} if general is None else {"general": list(general)})}
    found |= _word_statistics(samples, loaded.tokenizer, read_stop_words("english"))
    if not loaded.absent_head:
        texts = {"domain": held_out, **({} if general is None else {"general": general})}
        losses = _losses(str(model), {name: list(some)[:MEASURED] for name, some in texts.items()}, max_length)
        found["loss"] = _compare_losses(losses)
    return found


def _check_method(name: str, task: LabelledTask | None) -> None:
    method = REGISTRY.read(name)
    if not can_pilot(name):
        what = "several stages, which a pilot cannot run" if method.trains else "no training to run a pilot of"
        raise UserError(f"The method '{name}' has {what}: choose another, or skip the pilot with --pilot-steps 0.")
    if method.needs_task and task is None:
        raise UserError(f"A pilot of '{name}' needs a labelled task: give its folder with --task, or another method.")


def _sample(name: str, corpus: Corpus, count: int, progress: bool) -> list[str]:
    with Progress(name, None, unit="documents", enabled=progress) as bar:

        def counted() -> Any:
            for number, text in enumerate(corpus):
                bar.update(number)
                yield text

        return subsample_documents(counted(), count)


def _word_statistics(samples: dict[str, list[str]], tokenizer: Any, stops: frozenset[str]) -> dict[str, Any]:
    """Measure overlap on equal numbers of words, and fragmentation on all samples."""
    counts = {name: count_words(texts) for name, texts in samples.items()}
    found: dict[str, Any] = {}
    for pair in (("domain", "general"), ("task", "domain")):
        if all(name in samples for name in pair):
            most = min(counts[name].words for name in pair)
            one, other = (count_words(samples[name], most) for name in pair)
            found[", ".join(pair)] = {**overlap(one, other, stops), "words": most}
    return {
        "vocabulary": found,
        "fragmentation": {name: fragmentation(tokenizer, count) for name, count in counts.items()},
    }


def _losses(model: str, texts: dict[str, list[str]], max_length: int) -> dict[str, Loss]:
    losses = {name: language_model_loss(model, some, max_length=max_length) for name, some in texts.items()}
    for name, loss in losses.items():
        if sum(count > 0 for count in loss["per_text_masked"]) < 2:
            raise UserError(
                f"The loss on {TEXT_NAMES[name]} needs at least two documents to estimate its error; give more text."
            )
    return losses


def _compare_losses(losses: dict[str, Loss]) -> dict[str, Any]:
    """Return the loss on each text, and its difference to general text with a bootstrap interval over documents.

    The difference is in bits per byte where the loss is a code length, since a token covers less of a text whose words
    are split into more of them.
    """
    keys = ("kind", "nats", "bits_per_byte", "texts", "masked")
    found: dict[str, Any] = {name: {key: loss[key] for key in keys} for name, loss in losses.items()}
    per_byte = not get_kind(losses["domain"]["kind"]).uses_masking
    key, unit = ("bits_per_byte", "bits per byte") if per_byte else ("nats", "nats")
    for name in found.keys() - {"general"} if "general" in losses else ():
        drawn = [_bootstrap(losses[text], seed, per_byte) for seed, text in enumerate((name, "general"))]
        low, high = np.percentile(drawn[0] - drawn[1], [2.5, 97.5]).tolist()
        difference = losses[name][key] - losses["general"][key]
        found[name]["above_general"] = {"difference": difference, "low": low, "high": high, "unit": unit}
    return found


def _bootstrap(loss: Loss, seed: int, per_byte: bool) -> np.ndarray:
    """Return the mean loss of bootstrap resamples of the documents, per token or in bits per byte, (resamples,)."""
    sums, counts = np.array(loss["per_text"]), np.array(loss["per_text_masked"], dtype=float)
    if per_byte:
        counts = np.array(loss["per_text_bytes"]) * np.log(2)
    drawn = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), RESAMPLES)
    return (drawn @ sums) / np.maximum(drawn @ counts, 1)


def _run_pilot(
    source: str,
    train_texts: Sequence[str],
    texts: dict[str, list[str]],
    before: dict[str, Loss],
    options: AdviseOptions,
    work: Path,
    task: LabelledTask | None,
) -> dict[str, Any]:
    """Adapt for a few steps and measure the losses again."""
    every = max(1, options.pilot_steps // MEASUREMENTS)
    measuring = {"heldout": Corpus.of(texts["domain"]), "heldout_every": every}
    result = run_pilot(source, Corpus.of(train_texts), options, work / "pilot", task, **measuring)
    lines = [json.loads(line) for line in read_lines(result.out / "log.jsonl")]
    after = _losses(str(result.out), texts, options.max_length)
    found: dict[str, Any] = {}
    if "task" in texts:
        gains = (gains_of_texts(before[name], after[name]) for name in ("task", "general"))
        unit = "nats" if get_kind(before["task"]["kind"]).uses_masking else "bits per byte"
        found["specificity"] = {**specificity(*gains).as_dict(), "unit": unit}
    return {
        **found,
        "steps": options.pilot_steps,
        **{name: getattr(options, name) for name in ("batch_size", "learning_rate", "method")},
        "tokens": result.tokens,
        "seconds": result.seconds,
        "curve": [[line["step"], _lm_loss(line["heldout"])] for line in lines if "heldout" in line],
        "change": {
            name: {
                "before": before[name]["nats"],
                "after": after[name]["nats"],
                "bits_per_byte": after[name]["bits_per_byte"],
                **_paired_change(before[name], after[name]),
            }
            for name in texts
        },
    }


def _lm_loss(measured: dict[str, Any]) -> float:
    """Return the masked-LM term of a held-out loss, or the total for methods without that term."""
    return float(next((value for name, value in measured["terms"].items() if name in loss_terms()), measured["loss"]))


def _paired_change(before: Loss, after: Loss) -> dict[str, float]:
    counts = np.array(before["per_text_masked"], dtype=float)
    used = counts > 0
    old, new = (np.array(loss["per_text"])[used] / counts[used] for loss in (before, after))
    found = paired_difference(new, old, counts[used]).as_dict()
    return {name: found[name] for name in ("difference", "low", "high")}


def _project_change(curve: list[list[float]], target: int) -> dict[str, Any]:
    """Project the change of the held-out loss to step ``target``; empty if the pilot reached it or is too short."""
    found = project([step for step, _ in curve], [loss for _, loss in curve], target)
    start = curve[0][1]
    changes = {
        name: {key: number - start for key, number in value.items()} if isinstance(value, dict) else value
        for name, value in found.items()
    }
    return {"steps": target, **changes} if changes else {}


def project(steps: Sequence[float], losses: Sequence[float], target: float) -> dict[str, Any]:
    """Extrapolate a learning curve to a later step.

    Two curves are fitted by least squares to the points after step zero: ``log-linear``, L = a - b ln t, and
    ``power law``, L = a t^-b, which is a line between ln L and ln t (Hestness et al., 2017, among others, report power
    laws over orders of magnitude of data). Each has the prediction interval of its linear regression,

        y(x) +- t(0.975, n - 2) s sqrt(1 + 1/n + (x - mean)^2 / Sxx),    x = ln t,

    with the residual standard deviation s and Sxx = sum_i (x_i - mean)^2.

    The interval covers the scatter of the points around the fitted curve, not a wrong form of the curve. Far beyond
    the observed steps, the spread between the two curves is the better indication of the uncertainty.

    Args:
        steps: Steps of the measurements; step zero is ignored.
        losses: Losses at these steps.
        target: Step to extrapolate to.

    Returns:
        For each curve ``value``, ``low`` and ``high`` of the loss at the target; and ``beyond``, the target divided by
        the last step. The power law is omitted if a loss is not positive. Empty if there are fewer than four points or
        the target is not beyond the last step.

    Raises:
        ValueError: If the lengths differ.
    """
    points = [(step, loss) for step, loss in zip(steps, losses, strict=True) if step > 0]
    if len(points) < MIN_POINTS or target <= points[-1][0]:
        return {}
    t, y = np.array(points, dtype=float).T
    found: dict[str, Any] = {
        "beyond": target / t[-1],
        "log-linear": _predict(np.log(t), y, math.log(target)),
    }
    if y.min() > 0:
        line = _predict(np.log(t), np.log(y), math.log(target))
        found["power law"] = {name: math.exp(value) for name, value in line.items()}
    return found


def _predict(x: np.ndarray, y: np.ndarray, target: float) -> dict[str, float]:
    """Fit a line to points (n,) and return its value at the target with the prediction interval of 95 %."""
    from scipy import stats

    mean, sxx = x.mean(), ((x - x.mean()) ** 2).sum()
    slope = ((x - mean) * (y - y.mean())).sum() / sxx
    value = float(y.mean() + slope * (target - mean))
    residuals = y - y.mean() - slope * (x - mean)
    sd = math.sqrt((residuals**2).sum() / (len(x) - 2))
    width = stats.t.ppf(0.975, len(x) - 2) * sd
    width *= math.sqrt(1 + 1 / len(x) + (target - mean) ** 2 / sxx)
    return {"value": value, "low": value - float(width), "high": value + float(width)}
