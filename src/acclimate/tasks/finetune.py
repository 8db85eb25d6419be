"""Fine-tuning a model on a labelled task of any kind, in one stage or two, and evaluating it on the test split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from transformers import set_seed

from acclimate.device import choose_precision, default_device
from acclimate.errors import UserError
from acclimate.files import check_replaceable, check_writable
from acclimate.locks import with_output_lock
from acclimate.tasks.kinds import LabelledTask, Learner, find_task_kind, load_task
from acclimate.tasks.options import FinetuneOptions, as_label_tuple
from acclimate.tasks.result import FinetuneResult, RunFolder, evaluate_splits, run_identity
from acclimate.tasks.trainer import train
from acclimate.tasks.training_cache import load_or_train
from acclimate.training.callbacks import check_trackers, tensorboard_folder
from acclimate.training.distributed import join_process_group


@dataclass(frozen=True)
class FirstStage:
    """The task of the first stage, and its options."""

    task: LabelledTask
    options: FinetuneOptions


def plan_first_stage(
    task: LabelledTask,
    options: FinetuneOptions,
    first: LabelledTask | str | Path | None,
    epochs: int | None,
    learning_rate: float | None,
) -> FirstStage | None:
    """Return the first stage of a fine-tuning, or None.

    Args:
        task: The task of the second stage.
        options: Options of the second stage.
        first: The first task or its folder; None for none.
        epochs: Epochs of the first stage; None for those of the second.
        learning_rate: Learning rate of the first stage; None for that of the second.

    Raises:
        UserError: If the tasks do not fit together, or an option does not apply.
    """
    if first is None:
        for name, value in (("first_epochs", epochs), ("first_learning_rate", learning_rate)):
            if value is not None:
                raise UserError(f"{name} is given without a first task; give one as 'first', or remove it.")
        return None
    data: LabelledTask = load_task(first) if isinstance(first, str | Path) else first
    check_first_task(data, task)
    rate = options.learning_rate if learning_rate is None else learning_rate
    own = replace(options, epochs=options.epochs if epochs is None else epochs, learning_rate=rate, select="last")
    own.check(data.name, [own.metric], has_dev=False)
    return FirstStage(data, own)


def check_first_task(first: LabelledTask, task: LabelledTask) -> None:
    """Check that a model trained on one task can continue with another.

    Raises:
        UserError: If the tasks are of different kinds, or their labels differ.
    """
    if first.kind != task.kind:
        raise UserError(
            f"'{first.name}' is a task of the kind {first.kind} and '{task.name}' of the kind {task.kind}: the first "
            "stage of fine-tuning needs a task of the same kind."
        )
    if list(first.labels) != list(task.labels):
        raise UserError(
            f"The labels of '{first.name}' ({', '.join(first.labels)}) differ from those of '{task.name}' "
            f"({', '.join(task.labels)}), so the head cannot be reused; give a first task with the same labels."
        )


@with_output_lock
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
    """Fine-tune a model on a task and evaluate it on the test split.

    Training uses AdamW, a learning rate that rises over the first ``warmup`` of the steps and falls linearly to zero,
    and gradients clipped to a norm of one. The head of the task is initialized from ``seed``. A checkpoint of a masked
    language model has no pooler either; where the architecture needs one (BERT), it is initialized from ``seed`` near
    the identity. A multi-label task trains a sigmoid per label (binary cross-entropy) and predicts labels above one
    half. A question answering task trains start and end of the first gold answer (cross-entropy over the tokens of a
    window); its results are five answers per question. A long passage is read in windows, see
    :class:`acclimate.tasks.qa.windows.WindowConfig`.

    The default learning rate and warm-up are common for models of this size; the DGA paper has 1e-5, and its released
    code no warm-up. TAPTER's settings are batches of 128, a learning rate of 5e-5, and 5 epochs on SQuAD; for BioASQ 2
    epochs
    of SQuAD first and then 10: ``finetune(model, "bioasq", first="squad", first_epochs=2, epochs=10,
    learning_rate=5e-5, batch_size=128)``, with warm-up, weight decay and lengths as by default here.

    With ``out``, an interrupted run resumes from its last checkpoint when the same call is repeated. Started by
    ``torchrun`` or ``accelerate launch``, its processes share each step.

    Args:
        model: A Hugging Face model folder or a name on the Hub.
        task: A task, or its folder (see :func:`acclimate.tasks.load_task`).
        seed: Random seed of new weights, the order of examples, dropout, and ``few_shot``.
        out: Output directory for the model, its tokenizer, ``metrics.json`` and ``predictions.jsonl``. If it already
            holds the result of the same call, that is returned at once.
        epochs: Passes over the train split.
        learning_rate: Peak learning rate.
        batch_size: Examples per optimizer step.
        max_length: Maximum tokens per example; of a pair the longer text is truncated first, and a passage is read in
            windows of that length. Reduced to what the model can read. None: 128, for question answering 384.
        few_shot: Train on this many examples per class only, or on this many questions.
        select: Which weights to keep: those of the ``"last"`` epoch, as the DGA paper does, or those of the epoch that
            is best on ``"dev"`` (the earliest of equals).
        metric: What ``select="dev"`` compares: a metric of the task (see :mod:`acclimate.evaluation.scoring`); None
            for its primary metric, macro_f1 in classification.
        warmup: Share of the steps, 0 to 1.
        weight_decay: AdamW weight decay, on matrices only.
        precision: ``"fp32"``, ``"bf16"`` (autocast, weights stay in fp32), or ``"auto"``: bf16 where the hardware
            supports it.
        progress: Show a progress bar.
        negative: The label, or labels, that mean "none of these", such as ``"DDI-false"``; they add the metric
            ``positive_micro_f1`` over the other labels.
        confidence_penalty: Weight of the entropy of the predictions, which is subtracted from the loss (Pereyra et
            al., 2017) so that the model is less confident; 0.3 is a common value. Classification only.
        first: Another task of the same kind and with the same labels, or its folder: the model and its head are first
            trained on its train split, with the same options. The result is cached for later runs with the same model,
            seed and options.
        first_epochs: Passes over the train split of ``first``; None for ``epochs``.
        first_learning_rate: Peak learning rate of that stage; None for ``learning_rate``.
        report_to: Experiment trackers for the loss, such as ``tensorboard`` or ``wandb``, see
            :func:`acclimate.training.callbacks.check_trackers`. With ``out`` the loss is always in ``log.jsonl``, too.

    Raises:
        UserError: If the model or the task cannot be used, an option is invalid, or the loss becomes NaN.
    """
    started = time.perf_counter()
    trackers = check_trackers(report_to)
    group = join_process_group()
    data: LabelledTask = load_task(task) if isinstance(task, str | Path) else task
    none = as_label_tuple(negative)
    scoring = data.scoring(negative=none)
    options = FinetuneOptions(
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
        progress=progress and group.first,
        negative=none,
        confidence_penalty=confidence_penalty,
    )
    chosen_by = data.scoring("dev", none) if select == "dev" and data.dev else scoring
    options.check(data.name, chosen_by.metrics, has_dev=bool(data.dev))
    if confidence_penalty and not data.labels:
        raise UserError(f"The task '{data.name}' has no classes, so confidence_penalty does not apply; remove it.")
    before = plan_first_stage(data, options, first, first_epochs, first_learning_rate)
    if before and group.size > 1:
        raise UserError(
            "The first stage of fine-tuning runs in one process. Start the command without torchrun or accelerate, or "
            "fine-tune on the first task by itself and start from its result."
        )
    check_replaceable(out, "predictions.jsonl", "a fine-tuned model")
    device = default_device()
    chosen = choose_precision(precision, device)
    tasks = {"task": data, "first": before.task if before else None}
    used = {"options": options, **({"first": before.options} if before else {})}
    target = None if out is None else Path(out)
    identity = run_identity("finetune", {"model": model}, tasks, chosen, used) if target else {}
    run = RunFolder(target, identity, group)
    if (done := run.load_finished(FinetuneResult)) is not None:
        return done
    if target is not None:
        check_writable(target)
    examples: Sequence[Any] = data.train if few_shot is None else data.few_shot(few_shot, seed)

    set_seed(seed)  # before the new weights are initialized
    learner: Learner = find_task_kind(data).learner(model, data, options, device)
    if before:
        load_or_train(learner, learner.rows(before.task.train), before.options, chosen)
        set_seed(seed)  # the same state whether the first stage was trained or found in the cache
    run.open_work()

    def score() -> float:
        return float(learner.measure("dev", chosen).metrics[options.metric])

    with tensorboard_folder(trackers, target):
        trained = train(
            learner.head,
            learner.rows(examples),
            options,
            chosen,
            work=run.steps,
            title=f"fine-tune on {data.name}",
            score=score if select == "dev" else None,
            report_to=trackers,
            run_name=data.name if target is None else target.name,
            group=group,
        )
    fields = evaluate_splits(
        learner,
        data,
        trained,
        precision=chosen,
        scoring=scoring,
        seed=seed,
        train_size=len(examples),
        started=started,
    )
    result = FinetuneResult(**fields, first=before.task.name if before else None)
    about = {**asdict(options), "precision": chosen, "first": result.first}
    about = {name: value for name, value in about.items() if name not in ("progress", "metric")}
    run.write(learner, trained, result, verb="finetune", models={"model": str(model)}, task=data, options=about)
    return result
