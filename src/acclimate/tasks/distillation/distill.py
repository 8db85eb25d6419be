"""From a teacher that knows the domain to a student of another architecture: the whole way, one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn
from transformers import set_seed

from acclimate.backbone.device import choose_precision, default_device, to_device
from acclimate.errors import UserError
from acclimate.files import check_replaceable, check_writable
from acclimate.locks import one_writer
from acclimate.modules.connectors import Connector, Connectors
from acclimate.tasks.data import Task
from acclimate.tasks.distillation.choices import check_choices
from acclimate.tasks.distillation.phases import Lesson, switch_epoch, two_phases
from acclimate.tasks.distillation.result import DistillResult
from acclimate.tasks.distillation.scores import scores
from acclimate.tasks.distillation.signs import teacher_signs, width
from acclimate.tasks.distillation.stages import learnt, taught_into
from acclimate.tasks.finished import decided_by, found
from acclimate.tasks.kinds import load_task
from acclimate.tasks.loop import train
from acclimate.tasks.options import Options, as_names
from acclimate.tasks.outcome import measured, write_learnt
from acclimate.training.trackers import check_trackers, tracked

NOT_DECIDING = ("teacher", "student", "task", "out", "teacher_out", "precision", "progress", "report_to")
"""Arguments that do not decide the result, or that are known by their content."""


@one_writer
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
    connector: Connector = "auto",
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
    """Distil a teacher of a domain into a student of any architecture, width and tokenizer (DoKTra, ACL 2022).

    The teacher learns the task with a confidence penalty, the student without; a checkpoint that already is a
    classifier of the task's labels is taken as it is. Then the student is trained for ``epochs`` more: in the first
    ``floor(distill_share * epochs)`` its representation of the first token learns to be active where the teacher's
    is, and its head learns nothing; in the others it learns the labels, with a confidence penalty.

    The defaults are the paper's, found for models of 60 to 355 million parameters; small models want learning rates
    some three to ten times as high. As in its released code there is no warm-up and no weight decay.

    Args:
        teacher: A classifier of the task, or any other model of the domain, such as one that ``adapt`` made.
        student: A classifier of the task, or any other model.
        task: A classification task, also multi-label, or its folder.
        seed: Of the student's fine-tuning and distillation, and of a random connector.
        out: Where to save the student, its tokenizer, ``metrics.json`` and ``predictions.jsonl``. If it holds the
            result of the same call already, that is returned at once.
        teacher_out: Where to save the teacher if it is fine-tuned here.
        objective: ``"boundary"``: which units are active. ``"kl"``: the divergence of the softened predictions, the
            paper's ablation (Table 6).
        epochs: Of both phases together.
        distill_share: The paper's gamma: so much of the epochs, rounded down to whole ones, distils. 0: no
            distillation, but fine-tuning goes on with the confidence penalty.
        learning_rate: The peak, of both phases.
        confidence_penalty: The paper's beta_2, of the second phase.
        margin: The paper's mu.
        scale: Factor of the boundary loss: see :func:`acclimate.objectives.activation_boundary.activation_boundary`.
        temperature: Of ``"kl"``. The released code has none.
        connector: Between different widths: see :class:`acclimate.modules.connectors.Connectors`.
        connector_learning_rate: Of the connector ``"student"``. It is new and small, and is not kept: at the rate of
            an encoder it would stay a random projection.
        schedule: ``"shared"``: the learning rate falls linearly over both phases, as in the released code: the second
            one, short and last, only touches up. ``"each"``: it starts from the peak again in the second phase.
        teacher_epochs: Of the teacher's fine-tuning.
        teacher_learning_rate: Of the same.
        teacher_penalty: The paper's beta_1, of the same; 0 is the ablation without calibration.
        teacher_seed: Of the same; None: ``seed``.
        student_epochs: Of the student's fine-tuning.
        student_learning_rate: Of the same.
        batch_size: Examples a step, in all stages. The paper takes what fits into memory.
        max_length: Tokens that are read of an example, in all stages, each model counting its own.
        few_shot: Learn from so many examples of each class only, in all stages.
        select: Which weights of the student to keep: of the ``"last"`` epoch, as the paper, or of the best on
            ``"dev"``.
        metric: What ``select="dev"`` compares, as in :func:`acclimate.tasks.finetune`.
        warmup: Share of the steps of each stage.
        weight_decay: In all stages.
        precision: ``"fp32"``, ``"bf16"`` or ``"auto"``.
        progress: Show progress bars.
        negative: As in :func:`acclimate.tasks.finetune`.
        report_to: Trackers of experiments that are told the loss of both phases, as in
            :func:`acclimate.tasks.finetune`; those before them are in no tracker.

    Raises:
        UserError: If a model or the task cannot be used, an option has no sense, or a loss is not a number.
    """
    asked = dict(locals())
    started = time.perf_counter()
    trackers = check_trackers(report_to)
    data = load_task(task) if isinstance(task, str | Path) else task
    if not isinstance(data, Task):
        raise UserError(f"'{data.name}' is no classification task, and only those can be distilled.")
    none = as_names(negative)
    scoring = data.scoring(negative=none)
    options = Options(
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
    # All stages now: a slip in the student's fine-tuning would show when the teacher is done.
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
    check_choices(
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
    kind = choose_precision(precision, device)
    whole = data
    if few_shot is not None:  # one draw for both models
        data = replace(data, train=data.few_shot(few_shot, seed))
    decided: dict[str, Any] = {}
    if out is not None:
        used = {name: value for name, value in asked.items() if name not in NOT_DECIDING}
        decided = decided_by("distill", {"teacher": teacher, "student": student}, {"task": whole}, kind, used)
        if done := found(out, decided, DistillResult):
            if teacher_out is not None and done.teacher_trained:  # another call may have put its own teacher there
                taught_into(teacher_out, teacher, data, teaching, kind)
            return done
        check_writable(out)
    connectors = Connectors(connector, width(teacher), width(student), seed)  # now: they may not suit each other
    master, taught, teacher_trained = learnt(teacher, data, teaching, kind, device, teacher_out)
    nn.Module.to(master.model, "cpu")  # out of the way of an accelerator until the student has learnt, too
    learner, studied, _ = learnt(student, data, studying, kind, device)
    to_device(master.model)
    set_seed(seed)
    connectors.to(device)
    signs = teacher_signs(master.classifier, master.rows(data.train), connectors, kind)
    teacher_scores, student_scores = scores(master, kind), scores(learner, kind)
    del master  # its signs are all that is needed
    gc.collect()  # mixed precision has tied it to itself

    lesson = Lesson(signs, connectors, objective, margin, scale, temperature, data.multi_label, kind)
    rows = [{**row, "place": place} for place, row in enumerate(learner.rows(data.train))]
    switch = switch_epoch(epochs, distill_share)
    course, watch = two_phases(lesson, learner.classifier, rows, options, switch, schedule, connector_learning_rate)

    def score() -> float:
        return float(learner.measure("dev", kind).metrics[options.metric])

    begin = time.perf_counter()
    with tracked(trackers, None if out is None else Path(out)):
        trained = train(
            learner.model,
            rows,
            learner.collate,
            options,
            kind,
            score if select == "dev" else None,
            course,
            learner.tokenizer,
            report_to=trackers,
            run_name=data.name if out is None else Path(out).name,
        )
    spent = {
        "teacher": taught,
        "student": studied,
        "signs": signs.seconds,
        "distillation": time.perf_counter() - begin,
    }
    fields = measured(
        learner, data, trained, precision=kind, scoring=scoring, seed=seed, train_size=len(rows), started=started
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
        stage_seconds={name: round(seconds, 3) for name, seconds in spent.items()},
    )
    if out is not None:
        used = {name: value for name, value in asked.items() if name not in (*NOT_DECIDING, "metric")}
        write_learnt(
            Path(out),
            learner,
            trained,
            result,
            verb="distill",
            models={"teacher": str(teacher), "student": str(student)},
            task=data,
            options={**used, "precision": kind},
            decided=decided,
        )
    return result
