"""`acclimate inspect specificity`: does adapting to a domain help with the text of a task, beyond general text?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.adaptation.result import AdaptResult
from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.verbs import Next, show_report
from acclimate.base.version import __version__
from acclimate.data.documents import Corpus, as_corpus, subsample_documents
from acclimate.data.reading import reading_words, text_words
from acclimate.data.task_kinds import open_task, task_texts
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.significance import Interval
from acclimate.labs.inspection.effect_options import InspectSpecificityOptions
from acclimate.models.kinds import get_kind
from acclimate.results.study import Measurements
from acclimate.tasks.interfaces import LabelledTask

Loss = Mapping[str, Any]
VERDICTS = {
    1: "the adaptation helps with the text of the task more than with general text",
    -1: "the adaptation helps with general text more than with the text of the task",
    0: "no difference between text of the task and general text is shown",
}
ONLY_LOST = "general text loses more than the text of the task, on which no gain is shown"
"""The verdict where the difference is positive only because of what general text loses."""


@verb(InspectSpecificityOptions)
def inspect_specificity(options: InspectSpecificityOptions) -> Measurements:
    """Measure how much an adaptation improves the loss on the text of a task, and how much more than on general text.

    The domain specificity of Zheng et al. (2021) is the first number: the mean loss of a general model minus the loss
    of a domain model on texts of the task. In their comparison, tasks where it is larger gain more from pre-training
    on the domain. The second number subtracts what the same adaptation does to general text, as a model that simply
    trained longer improves on both. Without a finished domain model, a pilot adaptation of a few hundred steps takes
    its place.

    Returns:
        ``rows``: the loss on text of the task and on general text, ``before`` and ``after``, with ``gain``, their
        difference, and its 95 % interval; ``specificity``: the gain on text of the task minus that on general text,
        with its interval (:func:`specificity`); and ``unit``: nats per predicted token, or bits per byte for causal
        models, whose tokenizers may differ.

    Raises:
        UserError: If a text, task or model cannot be read, the losses cannot be compared, or neither an adapted model
            nor a text for a pilot is given.
    """
    check_report_file(options.out)
    if (options.after is None) == (options.corpus is None):
        raise UserError("Give either the adapted model with --after, or domain text for a pilot with --corpus.")
    if options.after is None and not can_pilot(options.method):
        raise UserError(f"The method '{options.method}' cannot run a pilot; choose one that trains in one stage.")
    task = open_task(options.task, options, text_column=None)
    general = subsample_documents(as_corpus(options.general, options), options.documents)
    texts = {"task": subsample_documents(task_texts(task), options.documents), "general": general}
    with ExitStack() as stack:
        before = {name: language_model_loss(options.before, some, max_length=options.max_length)
                  for name, some in texts.items()}  # fmt: skip
        adapted: str | Path | None = options.after
        if adapted is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="acclimate-pilot-")))
            text = as_corpus(options.corpus, options)
            adapted = run_pilot(options.before, text, options, work / "pilot", task).out
        after = {name: language_model_loss(adapted, some, max_length=options.max_length)
                 for name, some in texts.items()}  # fmt: skip
    causal = not get_kind(before["task"]["kind"]).uses_masking
    key, unit = ("bits_per_byte", "bits per byte") if causal else ("nats", "nats per predicted token")
    gains = {name: gains_of_texts(before[name], after[name]) for name in texts}
    rows = []
    for name, (gain, weight) in gains.items():
        interval = specificity((gain, weight)).as_dict()
        row = {"text": name, "texts": len(gain), "before": before[name][key], "after": after[name][key]}
        rows.append(row | {"gain": interval["difference"], "low": interval["low"], "high": interval["high"]})
    found = specificity(gains["task"], gains["general"])
    difference = found.as_dict()
    gained = rows[0]["low"] > 0
    difference["verdict"] = ONLY_LOST if found.sign > 0 and not gained else VERDICTS[found.sign]
    report: dict[str, Any] = {"acclimate": __version__, "unit": unit, "rows": rows, "specificity": difference}
    report["pilot_steps"] = options.pilot_steps if options.after is None else None
    if options.out is not None:
        write_json(options.out, report)
    lines = [f"text of the {row['text']}" if row["text"] == "task" else "general text" for row in rows]
    lines = [f"{line}: {_gain(row, 'gain')} {unit}" for line, row in zip(lines, rows, strict=True)]
    lines.append(f"specificity: {_gain(difference, 'difference')} {unit}: {difference['verdict']}")
    return Measurements(report, lines, "Gain of the loss by the adaptation", rows)


def show_specificity(report: Any, options: InspectSpecificityOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect specificity`` prints."""
    yield from show_report(report, options)
    words = ["--model", options.before, *text_words("--corpus", options.corpus, column=options.text_column)]
    words += [*text_words("--task", options.task, "TASK"), *reading_words(options)]
    yield Next(["compare", *words, "--out", "runs/compare"], "to score the task")


def can_pilot(given: Any) -> bool:
    """Return whether a method trains in one stage, which a pilot can run."""
    method = REGISTRY.read(given)
    return method.trains and not method.stages()


def run_pilot(
    model: str | Path,
    text: Corpus,
    options: Any,
    out: Path,
    task: LabelledTask | None,
    **measuring: Any,
) -> AdaptResult:
    """Adapt a model for a few steps.

    Args:
        model: The model.
        text: Domain text.
        options: Options of a verb with a pilot: its method, steps and settings.
        out: Folder of the adapted model.
        task: The task, for methods that need one.
        **measuring: Options of :func:`acclimate.adapt` for measurements during the pilot.
    """
    return adapt(
        model,
        text,
        options.method,
        out,
        task=task if REGISTRY.read(options.method).needs_task else None,
        steps=options.pilot_steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        max_length=options.max_length,
        seed=options.seed,
        progress=options.progress,
        **measuring,
    )


def gains_of_texts(before: Loss, after: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return the improvement of the loss of each text, and its weight in the mean, both (texts,).

    Args:
        before: Losses of the base model (:func:`acclimate.evaluation.lm_loss.language_model_loss`).
        after: Losses of the adapted model on the same texts.

    Returns:
        For causal models in bits per byte, weighted by bytes, else in nats per predicted token, weighted by their
        number. Texts without a predicted token are left out.

    Raises:
        UserError: If the models predict different tokens, or fewer than two texts have one.
    """
    causal = not get_kind(before["kind"]).uses_masking
    name = "per_text_bytes" if causal else "per_text_masked"
    if before["kind"] != after["kind"] or before[name] != after[name]:
        raise UserError(
            "The losses of the two models cannot be compared, since they predict different tokens of the text; give a "
            "model and its adapted version, with the same tokenizer."
        )
    weight = np.array(before[name], dtype=float) * (np.log(2) if causal else 1)
    used = weight > 0
    if used.sum() < 2:
        raise UserError("The gain needs at least two texts to estimate its error; give more text.")
    gain = (np.array(before["per_text"]) - np.array(after["per_text"]))[used] / weight[used]
    return gain, weight[used]


def specificity(task: tuple[np.ndarray, np.ndarray], general: tuple[np.ndarray, np.ndarray] | None = None) -> Interval:
    """Return the mean gain on texts of a task minus that on general text, with a 95 % interval over the texts.

    The means are weighted, with the variances of ratio estimates,
    ``n / (n - 1) * sum(w² (x - mean)²) / sum(w)²``
    for n texts. The texts of the two kinds are independent, so the variances add up, and the interval uses
    Student's t with the degrees of freedom of Welch and Satterthwaite. With equal weights this is Welch's test.

    Args:
        task: Gain of each text and its weight, both (texts,), at least two.
        general: The same for general text; None for the mean gain on texts of the task alone.
    """
    estimate, variances, freedoms = 0.0, [], []
    for sign, (values, weights) in zip((1, -1), (task, *([] if general is None else [general])), strict=False):
        mean, count = float(np.average(values, weights=weights)), len(values)
        estimate += sign * mean
        squares = float((weights**2 * (values - mean) ** 2).sum()) / float(weights.sum()) ** 2
        variances.append(squares * count / (count - 1))
        freedoms.append(count - 1)
    variance = sum(variances)
    if variance == 0:
        return Interval(estimate, estimate, estimate, float(estimate == 0))
    freedom = variance**2 / sum(one**2 / degrees for one, degrees in zip(variances, freedoms, strict=True))
    margin = float(stats.t.ppf(0.975, freedom)) * variance**0.5
    p = float(2 * stats.t.sf(abs(estimate) / variance**0.5, freedom))
    return Interval(estimate, estimate - margin, estimate + margin, p)


def _gain(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
