"""Fine-tuning a model on a labelled task of any kind, and measuring it on the task's test split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from transformers import set_seed

from acclimate.backbone.device import choose_precision, default_device
from acclimate.errors import UserError
from acclimate.files import check_replaceable, check_writable
from acclimate.locks import one_writer
from acclimate.tasks.finished import decided_by, found
from acclimate.tasks.kinds import LabelledTask, kind_of, load_task
from acclimate.tasks.loop import train
from acclimate.tasks.options import Options, as_names
from acclimate.tasks.outcome import measured, write_learnt
from acclimate.tasks.result import FinetuneResult
from acclimate.tasks.stages import first_stage, learn_first
from acclimate.training.trackers import check_trackers, tracked


@one_writer
def finetune(
    model: str | Path,
    task: LabelledTask | str | Path,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    epochs: int = 5,
    learning_rate: float = 3e-5,
    batch_size: int = 16,
    max_length: int | None = None,
    few_shot: int | None = None,
    select: Literal["last", "dev"] = "last",
    metric: str | None = None,
    warmup: float = 0.06,
    weight_decay: float = 0.01,
    precision: str = "auto",
    progress: bool = True,
    negative: str | Sequence[str] | None = None,
    confidence_penalty: float = 0.0,
    first: LabelledTask | str | Path | None = None,
    first_epochs: int | None = None,
    first_learning_rate: float | None = None,
    report_to: str | Sequence[str] | None = None,
) -> FinetuneResult:
    """Fine-tune a model on a task and measure it on the test split.

    AdamW, a learning rate that rises over the first ``warmup`` of the steps and falls linearly to zero, and gradients
    clipped to a norm of one. The head of the task is drawn from ``seed``. A checkpoint of a masked language model has
    no pooler either; where the architecture wants one (BERT), that is drawn from ``seed`` too, near the identity.
    A multi-label task learns a sigmoid for each label (binary cross-entropy) and predicts what is above one half.
    A task of questions learns where the first gold answer starts and ends (cross-entropy over the tokens of a window);
    its results are five answers a question. A long passage is read in windows, see
    :class:`acclimate.tasks.qa.windows.Reading`.

    The learning rate and the warm-up by default are those usual for models of this size; the DGA paper has 1e-5, its
    released code no warm-up.

    TAPTER's settings are batches of 128, a learning rate of 5e-5, and 5 epochs on SQuAD; on BioASQ 2 epochs of SQuAD
    first and then 10: ``finetune(model, "bioasq", first="squad", first_epochs=2, epochs=10, learning_rate=5e-5,
    batch_size=128)``. Warm-up, weight decay and lengths are those by default here.

    Args:
        model: A Hugging Face model folder, or a name on the hub.
        task: A task, or its folder (see :func:`acclimate.tasks.load_task`).
        seed: Decides the new weights, the order of the examples, dropout, and what ``few_shot`` draws.
        out: Where to save the model, its tokenizer, ``metrics.json`` and ``predictions.jsonl``. If it holds the
            result of the same call already, that is returned at once.
        epochs: Passes over the train split.
        learning_rate: The peak.
        batch_size: Examples a step.
        max_length: Tokens that are read of an example; of a pair the longer text is cut first, and of a passage all is
            read, in windows of that length. Never more than the model can read. None: 128, with questions 384.
        few_shot: Train on so many examples of each class only, or on so many questions.
        select: Which weights to keep: those of the ``"last"`` epoch, as the DGA paper does, or those of the epoch that
            is best on ``"dev"`` (the earliest of equals).
        metric: What ``select="dev"`` compares: one of the scoring of the task (see
            :mod:`acclimate.evaluation.scoring`); None: the first, macro_f1 in classification.
        warmup: Share of the steps, 0 to 1.
        weight_decay: Of all weights but biases and norms.
        precision: ``"fp32"``, ``"bf16"`` (autocast, weights stay in fp32), or ``"auto"``: bf16 where the hardware
            has it.
        progress: Show a progress bar.
        negative: The label, or labels, that stand for "none of these", such as ``"DDI-false"``; the metrics then have
            ``positive_micro_f1``, over the others.
        confidence_penalty: Weight of the entropy of the predictions, which is taken from the loss (Pereyra et al.,
            2017), so that the model is less sure of itself; 0.3 is usual where it is used. Classification only.
        first: Another task of the same kind and with the same labels, or its folder: the model, and the head with it,
            learns its train split before that of ``task``, with the same options. What that gives is kept in the
            cache, so that a later run with the same model, seed and options need not learn it again.
        first_epochs: Passes over the train split of ``first``; None: as many as ``epochs``.
        first_learning_rate: The peak in that stage; None: the same.
        report_to: Trackers of experiments that are told the loss, such as ``tensorboard`` or ``wandb``, see
            :mod:`acclimate.training.trackers`. With ``out`` it is always in ``log.jsonl``, too.

    Raises:
        UserError: If the model or the task cannot be used, an option has no sense, or the loss is not a number.
    """
    started = time.perf_counter()
    trackers = check_trackers(report_to)
    data: LabelledTask = load_task(task) if isinstance(task, str | Path) else task
    none = as_names(negative)
    scoring = data.scoring(negative=none)
    options = Options(
        seed=seed,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_length=data.default_length if max_length is None else max_length,
        few_shot=few_shot,
        select=select,
        metric=scoring.metrics[0] if metric is None else metric,
        warmup=warmup,
        weight_decay=weight_decay,
        precision=precision,
        progress=progress,
        negative=none,
        confidence_penalty=confidence_penalty,
    )
    chosen_by = data.scoring("dev", none) if select == "dev" and data.dev else scoring
    options.check(data.name, chosen_by.metrics, has_dev=bool(data.dev))
    if confidence_penalty and not data.labels:
        raise UserError(f"The task '{data.name}' has no classes, so confidence_penalty has no sense; leave it out.")
    before = first_stage(data, options, first, first_epochs, first_learning_rate)
    check_replaceable(out, "predictions.jsonl", "a fine-tuned model")
    device = default_device()
    kind = choose_precision(precision, device)
    decided: dict[str, Any] = {}
    if out is not None:
        tasks = {"task": data, "first": before.task if before else None}
        used = {"options": options, **({"first": before.options} if before else {})}
        decided = decided_by("finetune", {"model": model}, tasks, kind, used)
        if (done := found(out, decided, FinetuneResult)) is not None:
            return done
        check_writable(out)
    examples: Sequence[Any] = data.train if few_shot is None else data.few_shot(few_shot, seed)

    set_seed(seed)  # before the new weights are drawn
    learner = kind_of(data).learner(model, data, options, device)

    if before:
        learn_first(learner, before.task, before.options, kind)
        set_seed(seed)  # as if the first stage had always been learnt already

    def score() -> float:
        return float(learner.measure("dev", kind).metrics[options.metric])

    with tracked(trackers, None if out is None else Path(out)):
        trained = train(
            learner.model,
            learner.rows(examples),
            learner.collate,
            options,
            kind,
            score if select == "dev" else None,
            tokenizer=learner.tokenizer,
            report_to=trackers,
            run_name=data.name if out is None else Path(out).name,
        )
    fields = measured(
        learner,
        data,
        trained,
        precision=kind,
        scoring=scoring,
        seed=seed,
        train_size=len(examples),
        started=started,
    )
    result = FinetuneResult(**fields, first=before.task.name if before else None)
    if out is not None:
        about = {**asdict(options), "precision": kind, "first": result.first}
        for name in ("progress", "metric"):
            about.pop(name)
        write_learnt(
            Path(out),
            learner,
            trained,
            result,
            verb="finetune",
            models={"model": str(model)},
            task=data,
            options=about,
            decided=decided,
        )
    return result
