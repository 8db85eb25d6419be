"""Knowledge distillation from a teacher of the domain into a student of another architecture, in one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn
from transformers import set_seed

from acclimate.device import choose_precision, default_device, to_device
from acclimate.errors import UserError
from acclimate.files import check_replaceable, check_writable
from acclimate.locks import with_output_lock
from acclimate.modules.connectors import ConnectorKind, Connectors
from acclimate.tasks.classification.data import Task
from acclimate.tasks.distillation.initial_models import finetune_into, load_or_evaluate, load_or_finetune
from acclimate.tasks.distillation.student_training import (
    DistillationLoss,
    build_phase_hooks,
    check_distill_options,
    count_distillation_epochs,
)
from acclimate.tasks.distillation.teacher_targets import compute_teacher_targets, representation_width
from acclimate.tasks.kinds import load_task
from acclimate.tasks.options import FinetuneOptions, as_label_tuple
from acclimate.tasks.result import FinetuneResult, RunFolder, evaluate_splits, run_identity
from acclimate.tasks.trainer import train
from acclimate.training.callbacks import check_trackers, tensorboard_folder
from acclimate.training.distributed import join_process_group


@dataclass(frozen=True, kw_only=True)
class DistillResult(FinetuneResult):
    """What a distillation measured.

    ``seconds`` is the wall-clock time of the call, without what the cache saved; ``epoch``, ``steps`` and
    ``train_loss`` cover both phases.
    """

    objective: str
    connector: str
    """What ``"auto"`` was resolved to."""
    distilled_epochs: int
    """Epochs of the first phase."""
    disagreement: list[float]
    """Eq. 4 of DoKTra: the number of units that are active in only one of the models.

    A mean over up to 512 train examples, without dropout: before the first step, then after each epoch of both phases.
    """
    units: int
    """Number of units that are compared."""
    teacher_metrics: dict[str, Any]
    """Metrics of the teacher on the test split."""
    teacher_dev_metrics: dict[str, Any] | None
    teacher_trained: bool
    """Whether the teacher was fine-tuned by this distillation."""
    student_metrics: dict[str, Any]
    """Metrics of the student on the test split before distillation."""
    student_dev_metrics: dict[str, Any] | None
    stage_seconds: dict[str, float]
    """Seconds of each stage.

    ``teacher`` and ``student`` (their fine-tuning, zero if they already were classifiers of the task), ``signs``
    (reading the train split with the teacher once) and ``distillation`` (both phases). Cached stages count the seconds
    that they originally took, so the sum can exceed ``seconds``.
    """


NON_IDENTITY_ARGUMENTS = ("teacher", "student", "task", "out", "teacher_out", "precision", "progress", "report_to")
"""Arguments that do not affect the result, or whose content is part of the identity."""


@with_output_lock
def distill(
    teacher: str | Path,
    student: str | Path,
    task: Task | str | Path,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    teacher_out: str | Path | None = None,
    objective: Literal["boundary", "kl"] = "boundary",
    epochs: int = 10,
    distill_share: float = 0.9,
    learning_rate: float = 1e-5,
    confidence_penalty: float = 0.5,
    margin: float = 1.0,
    scale: float = 1e-3,
    temperature: float = 1.0,
    connector: ConnectorKind = "auto",
    connector_learning_rate: float = 1e-3,
    schedule: Literal["shared", "each"] = "shared",
    teacher_epochs: int = 5,
    teacher_learning_rate: float = 2e-5,
    teacher_penalty: float = 0.3,
    teacher_seed: int | None = None,
    student_epochs: int = 5,
    student_learning_rate: float = 1e-5,
    batch_size: int = 16,
    max_length: int = 128,
    few_shot: int | None = None,
    select: Literal["last", "dev"] = "last",
    metric: str | None = None,
    warmup: float = 0.0,
    weight_decay: float = 0.0,
    precision: str = "auto",
    progress: bool = True,
    negative: str | Sequence[str] | None = None,
    report_to: str | Sequence[str] | None = None,
) -> DistillResult:
    """Distill a teacher of a domain into a student of any architecture, width and tokenizer (DoKTra, ACL 2022).

    The teacher is fine-tuned on the task with a confidence penalty, the student without; a checkpoint that already is
    a classifier of the task's labels is used as it is. Then the student is trained for ``epochs`` more. In the first
    ``floor(distill_share * epochs)`` its representation of the first token learns to be active where the teacher's is,
    and its head is not trained; in the remaining ones it learns the labels with a confidence penalty.

    The defaults are the paper's, for models of 60 to 355 million parameters; small models need learning rates three to
    ten times as high. As in its released code there is no warm-up and no weight decay.

    With ``out``, an interrupted run resumes from its last checkpoint when the same call is repeated.

    Args:
        teacher: A classifier of the task, or any other model of the domain, such as an adapted model.
        student: A classifier of the task, or any other model.
        task: A classification task, possibly multi-label, or its folder.
        seed: Random seed of the student's fine-tuning and distillation, and of a random connector.
        out: Output directory for the student, its tokenizer, ``metrics.json`` and ``predictions.jsonl``. If it already
            holds the result of the same call, that is returned at once.
        teacher_out: Output directory for the teacher, if it is fine-tuned here.
        objective: ``"boundary"``: which units are active. ``"kl"``: the divergence of the softened predictions, the
            paper's ablation (Table 6).
        epochs: Passes over the train split in both phases together.
        distill_share: The paper's gamma: this share of the epochs, rounded down to whole ones, distils. 0: no
            distillation, only further fine-tuning with the confidence penalty.
        learning_rate: Peak learning rate of both phases.
        confidence_penalty: The paper's beta_2, in the second phase.
        margin: The paper's mu.
        scale: Factor of the boundary loss: see :func:`acclimate.objectives.distillation.activation_boundary_loss`.
        temperature: Temperature of ``"kl"``. The released code has none.
        connector: Between different widths: see :class:`acclimate.modules.connectors.Connectors`.
        connector_learning_rate: Peak learning rate of the connector ``"student"``, which is new, small and not saved:
            at the learning rate of an encoder it would remain a random projection.
        schedule: ``"shared"``: the learning rate falls linearly over both phases, as in the released code, so that the
            short second phase makes small changes. ``"each"``: it starts from the peak again in the second phase.
        teacher_epochs: Epochs of the teacher's fine-tuning.
        teacher_learning_rate: Peak learning rate of the same.
        teacher_penalty: The paper's beta_1, in the same; 0 is the ablation without calibration.
        teacher_seed: Random seed of the same; None for ``seed``.
        student_epochs: Epochs of the student's fine-tuning.
        student_learning_rate: Peak learning rate of the same.
        batch_size: Examples per optimizer step, in all stages. The paper uses what fits into memory.
        max_length: Maximum tokens per example in all stages, in tokens of each model.
        few_shot: Train on this many examples per class only, in all stages.
        select: Which weights of the student to keep: of the ``"last"`` epoch, as the paper, or of the best on
            ``"dev"``.
        metric: What ``select="dev"`` compares, as in :func:`acclimate.tasks.finetune`.
        warmup: Share of the steps of each stage.
        weight_decay: AdamW weight decay in all stages.
        precision: ``"fp32"``, ``"bf16"`` or ``"auto"``.
        progress: Show progress bars.
        negative: As in :func:`acclimate.tasks.finetune`.
        report_to: Experiment trackers for the loss of both phases, as in :func:`acclimate.tasks.finetune`; earlier
            stages are not tracked.

    Raises:
        UserError: If a model or the task cannot be used, an option is invalid, or a loss becomes NaN.
    """
    asked = dict(locals())
    started = time.perf_counter()
    trackers = check_trackers(report_to)
    if join_process_group().size > 1:
        raise UserError("Distillation runs in one process; start it without torchrun or accelerate launch.")
    data = load_task(task) if isinstance(task, str | Path) else task
    if data.task_kind != Task.task_kind:
        raise UserError(f"'{data.name}' is not a classification task; only these can be distilled.")
    none = as_label_tuple(negative)
    scoring = data.scoring(negative=none)
    options = FinetuneOptions(
        seed=seed,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_length=max_length,
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
    # Check all stages first: otherwise an error in the student's options would appear after the teacher's training.
    before = replace(options, few_shot=None, select="last", confidence_penalty=0.0)
    teaching = replace(
        before,
        seed=seed if teacher_seed is None else teacher_seed,
        epochs=teacher_epochs,
        learning_rate=teacher_learning_rate,
        confidence_penalty=teacher_penalty,
    )
    studying = replace(before, epochs=student_epochs, learning_rate=student_learning_rate)
    for own in (options, teaching, studying):
        own.check(data.name, chosen_by.metrics, has_dev=bool(data.dev))
    check_distill_options(
        objective,
        connector,
        schedule,
        distill_share,
        epochs,
        margin=margin,
        scale=scale,
        temperature=temperature,
        connector_learning_rate=connector_learning_rate,
    )
    check_replaceable(out, "predictions.jsonl", "a fine-tuned model")
    device = default_device()
    chosen = choose_precision(precision, device)
    whole = data
    if few_shot is not None:  # the same subset for both models
        data = replace(data, train=data.few_shot(few_shot, seed))
    target = None if out is None else Path(out)
    used = {name: value for name, value in asked.items() if name not in NON_IDENTITY_ARGUMENTS}
    models = {"teacher": teacher, "student": student}
    run = RunFolder(target, run_identity("distill", models, {"task": whole}, chosen, used) if target else {})
    if (done := run.load_finished(DistillResult)) is not None:
        if teacher_out is not None and done.teacher_trained:  # another call may have written its own teacher there
            finetune_into(teacher_out, teacher, data, teaching, chosen)
        return done
    if target is not None:
        check_writable(target)
    connectors = Connectors(
        connector, representation_width(teacher), representation_width(student), seed
    )  # checked before training, since their widths may not match
    instructor, teacher_seconds, teacher_trained = load_or_finetune(
        teacher, data, teaching, chosen, device, teacher_out
    )
    nn.Module.to(instructor.head.model, "cpu")  # leaves the accelerator to the student's fine-tuning
    learner, student_seconds, _ = load_or_finetune(student, data, studying, chosen, device)
    to_device(instructor.head.model)
    set_seed(seed)
    connectors.to(device)
    targets = compute_teacher_targets(instructor.head, instructor.rows(data.train), connectors, chosen)
    teacher_scores, student_scores = load_or_evaluate(instructor, chosen), load_or_evaluate(learner, chosen)
    del instructor  # only its targets are needed from here on
    gc.collect()  # mixed precision creates reference cycles

    distillation_loss = DistillationLoss(
        targets, connectors, objective, margin, scale, temperature, data.multi_label, chosen
    )
    rows = [{**row, "place": place} for place, row in enumerate(learner.rows(data.train))]
    switch = count_distillation_epochs(epochs, distill_share)
    hooks, watch = build_phase_hooks(
        distillation_loss, learner.head, rows, options, switch, schedule, connector_learning_rate
    )
    run.open_work()

    def score() -> float:
        return float(learner.measure("dev", chosen).metrics[options.metric])

    begin = time.perf_counter()
    with tensorboard_folder(trackers, target):
        trained = train(
            learner.head,
            rows,
            options,
            chosen,
            work=run.steps,
            title=f"distill on {data.name}",
            score=score if select == "dev" else None,
            hooks=hooks,
            report_to=trackers,
            run_name=data.name if target is None else target.name,
        )
    seconds = {
        "teacher": teacher_seconds,
        "student": student_seconds,
        "signs": targets.seconds,
        "distillation": time.perf_counter() - begin,
    }
    fields = evaluate_splits(
        learner, data, trained, precision=chosen, scoring=scoring, seed=seed, train_size=len(rows), started=started
    )
    result = DistillResult(
        **fields,
        objective=objective,
        connector=connectors.kind,
        distilled_epochs=switch,
        disagreement=watch.curve,
        units=connectors.units,
        teacher_metrics=teacher_scores["test"],
        teacher_dev_metrics=teacher_scores.get("dev"),
        teacher_trained=teacher_trained,
        student_metrics=student_scores["test"],
        student_dev_metrics=student_scores.get("dev"),
        stage_seconds={name: round(value, 3) for name, value in seconds.items()},
    )
    shown = {name: value for name, value in used.items() if name != "metric"}
    run.write(
        learner,
        trained,
        result,
        verb="distill",
        models={role: str(path) for role, path in models.items()},
        task=data,
        options={**shown, "precision": chosen},
    )
    return result
