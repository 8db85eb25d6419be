"""Fine-tuning a model on a labelled task of any kind, in one stage or two, and evaluating it on the test split."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import set_seed

from acclimate.adaptation.heldout import open_pairs
from acclimate.adaptation.result import warn_of_explosion
from acclimate.base.bounds import MAX_SEED
from acclimate.base.device import choose_precision, default_device
from acclimate.base.errors import UserError
from acclimate.base.files import RECORD_FILE, check_replaceable, check_writable, follow_link
from acclimate.base.locks import with_output_lock
from acclimate.base.options import recorded, values, verb
from acclimate.base.progress import print_message
from acclimate.data.reading import DEFAULT_READING
from acclimate.engine.callbacks import check_trackers, tensorboard_folder
from acclimate.engine.distributed import join_process_group
from acclimate.evaluation.embeddings import SentencePairs, SimilarityChange, similarity_warning
from acclimate.evaluation.learning import still_falls
from acclimate.parts.updates import freeze
from acclimate.tasks.interfaces import (
    LabelledTask,
    Learner,
    ResolvedOptions,
    find_task_kind,
    find_width,
    learns_pairs,
    open_task,
    resolve_options,
)
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.recipe import default_epochs, rates_to_try
from acclimate.tasks.result import FinetuneResult, RunFolder, evaluate_splits, run_identity
from acclimate.tasks.splits import replace_test_with_dev
from acclimate.tasks.trainer import train
from acclimate.tasks.training_cache import load_or_train

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FirstStage:
    """The task of the first stage, and its options."""

    task: LabelledTask
    options: ResolvedOptions


def plan_first_stage(task: LabelledTask, resolved: ResolvedOptions, given: FinetuneOptions) -> FirstStage | None:
    """Return the first stage, or None if there is only one.

    Args:
        task: The task of the second stage.
        resolved: The options of the second stage.
        given: The options of ``finetune``.

    Raises:
        UserError: If the tasks do not fit together.
    """
    if given.first is None:
        return None
    first = open_task(given.first)
    check_first_task(first, task)
    if given.freeze:
        raise UserError("'freeze' does not apply with 'first'; fine-tune on one task, then on the other.")
    if find_task_kind(task).own_training or given.contrastive:
        raise UserError(f"'first' does not apply to the task '{task.name}'; fine-tune on one task, then on the other.")
    epochs, rate = given.first_epochs or given.epochs, given.first_learning_rate
    own = replace(
        resolved,
        epochs=default_epochs(len(first.train), resolved.batch_size) if epochs is None else epochs,
        learning_rate=resolved.learning_rate if rate is None else rate,
        select="last",
    )
    return FirstStage(first, own)


def check_first_task(first: LabelledTask, task: LabelledTask) -> None:
    """Check that a model trained on one task can continue with another.

    Raises:
        UserError: If the tasks are of different kinds, or their labels differ.
    """
    kinds = first.scoring().kind, task.scoring().kind
    if kinds[0] != kinds[1]:
        raise UserError(
            f"'{first.name}' is a task of the kind {kinds[0]} and '{task.name}' of the kind {kinds[1]}: the first "
            "stage of fine-tuning needs a task of the same kind."
        )
    if list(first.labels) != list(task.labels):
        raise UserError(
            f"The labels of '{first.name}' ({', '.join(first.labels)}) differ from those of '{task.name}' "
            f"({', '.join(task.labels)}), so the head cannot be reused; give a first task with the same labels."
        )


OF_EMBEDDINGS = ("similarity", "hard_negatives", "adapter")
"""Options that apply only to kinds of tasks whose models have embeddings of sentences."""
IN_IDENTITY = ("model", "task", "first", "first_epochs", "first_learning_rate", "contrastive", "tune", *OF_EMBEDDINGS)
"""Options that the identity of a run contains under other names, or as hashes."""


def _open_similarity(options: FinetuneOptions, task: LabelledTask) -> SentencePairs | None:
    """Return the pairs on which embeddings are measured before and after; None if there are none.

    Raises:
        UserError: If an option is given for a kind of task whose models have no embeddings of sentences.
    """
    for name in OF_EMBEDDINGS:
        if getattr(options, name) is not None and not find_task_kind(task).own_training:
            raise UserError(f"'{name}' is for retrieval models, which '{task.name}' does not train; remove it.")
    if options.similarity is None:
        return None
    return open_pairs(options.similarity)


def choose_rate(options: FinetuneOptions, task: LabelledTask, metric: str) -> float:
    """Return the learning rate that is best on dev: one of three, each tried with a seed that is not used afterwards.

    Args:
        options: The options of ``finetune``.
        task: The loaded task.
        metric: The metric to choose by.

    Raises:
        UserError: If the task has no dev split, or trains embeddings, whose learning rate does not follow from the
            width.
    """
    if not task.dev:
        raise UserError(f"'tune' needs a dev split, and '{task.name}' has none; give a learning_rate instead.")
    if learns_pairs(task, options) or options.epochs == 0:
        raise UserError(f"'tune' does not apply to '{task.name}': its head is not trained by fine-tuning. Remove it.")
    found = dict[float, float]()
    own = {"task": replace_test_with_dev(task), "seed": MAX_SEED if options.seed < MAX_SEED else 0}
    own |= {"tune": False, "select": "last", "out": None, "report_to": None, **values(DEFAULT_READING)}
    for rate in rates_to_try(find_width(options.model)):
        result: FinetuneResult = _finetune(replace(options, **own, learning_rate=rate))
        found[rate] = float(result.metrics[metric])
        print_message(f"Learning rate {rate:g}: {metric} {found[rate]:.4f} on dev", enabled=options.progress)
    return max(found, key=found.__getitem__)


def warn_of_unfinished(losses: Sequence[float], epochs: int) -> str:
    """Warn that the loss of a training still fell steeply at its end; return the warning, or an empty text."""
    if not still_falls(losses):
        return ""
    message = (
        f"The training loss still fell steeply at the end (from {losses[0]:.3g} to {losses[-1]:.3g}): the model has "
        f"not learned what the train rows can teach. Train longer, such as --epochs {4 * epochs}, or leave the epochs "
        "and the learning rate to the defaults."
    )
    log.warning(message)
    return message


@with_output_lock
def _finetune(options: FinetuneOptions) -> FinetuneResult:
    """Fine-tune a model on a task and evaluate it on the test split.

    The optimizer is AdamW; the learning rate rises over the share ``warmup`` of the steps and then falls linearly to
    zero, and gradients are clipped. New weights are initialized from ``seed``: the head of the task, and a pooler if
    the architecture needs one (BERT) and the checkpoint of a masked language model lacks it; the pooler starts near
    the identity. A multi-label task has a sigmoid per label (binary cross-entropy), and the labels
    with a probability above one half are predicted. A question-answering task learns the start and the end of the
    first gold answer (cross-entropy over the tokens of a window) and returns five answers per question; a long passage
    is read in windows (see :class:`acclimate.tasks.kinds.qa.windows.WindowConfig`).

    By default a model learns long enough to be compared: at least 300 steps, however few rows there are, at a learning
    rate that follows from its width (:mod:`acclimate.tasks.recipe`). The DGA paper uses 1e-5, and its released code
    no warm-up.

    TAPTER uses batches of 128, a learning rate of 5e-5 and 5 epochs on SQuAD. For BioASQ (after Wiese et al., 2017) it
    trains for 2 epochs on SQuAD and then for 10 epochs on BioASQ: ``finetune(model, "bioasq", first="squad",
    first_epochs=2, epochs=10, learning_rate=5e-5, batch_size=128)``, where warm-up, weight decay and lengths keep the
    defaults of this function.

    With ``out``, an interrupted run resumes from its last checkpoint when it is started again. Under ``torchrun`` or
    ``accelerate launch``, the processes share each step.

    Returns:
        The metrics on dev and test, the predictions for the test split, and the steps, loss and seconds of training.

    Raises:
        UserError: If the model or the task cannot be used, an option is invalid, or the loss becomes NaN or infinite.
    """
    started = time.perf_counter()
    trackers = check_trackers(options.report_to)
    group = join_process_group()
    data = open_task(options.task, options)
    kind = find_task_kind(data)
    resolved, scoring = resolve_options(options, data, options.model)
    resolved = replace(resolved, progress=resolved.progress and group.first)
    before = plan_first_stage(data, resolved, options)
    if before and group.size > 1:
        raise UserError(
            "The first stage of fine-tuning runs in one process. Start the command without torchrun or accelerate, or "
            "fine-tune on the first task by itself and start from its result."
        )
    pairs = _open_similarity(options, data)
    target = None if options.out is None else follow_link(options.out)
    seed, device = resolved.seed, default_device()
    chosen = choose_precision(resolved.precision, device)
    tasks = {"task": data, "first": before.task if before else None}
    used = recorded(options, IN_IDENTITY, **recorded(resolved, precision=chosen))
    given = {
        "similarity": pairs and pairs.fingerprint(),
        **{name: getattr(options, name) for name in OF_EMBEDDINGS[1:]},
        "contrastive": options.contrastive or None,
        "tune": options.tune or None,
    }
    used |= {name: value for name, value in given.items() if value is not None}
    if not used["freeze"]:  # results of earlier versions stay valid
        del used["freeze"]
    stages = {"options": used, **({"first": recorded(before.options, precision=chosen)} if before else {})}
    identity = run_identity("finetune", {"model": options.model}, tasks, chosen, stages) if target else {}
    run = RunFolder(target, identity, group)
    if (done := run.load_finished(FinetuneResult)) is not None:
        return done
    check_replaceable(target, RECORD_FILE, "a fine-tuned model")
    check_writable(target)
    examples: Sequence[Any] = data.train if resolved.few_shot is None else data.few_shot(resolved.few_shot, seed)

    set_seed(seed)  # before the new weights are initialized
    load = kind.contrastive_learner if options.contrastive else kind.learner
    learner: Learner = load(options.model, data, resolved, device)
    learner.general, learner.hard_negatives, learner.adapter = pairs, options.hard_negatives, options.adapter
    if options.freeze:
        print_message(freeze(learner.head.model, options.freeze), enabled=resolved.progress)
    if before:
        load_or_train(learner, learner.rows(before.task.train), before.options, chosen)
        set_seed(seed)  # the same state whether the first stage was trained or found in the cache
    if options.tune:
        resolved = replace(resolved, learning_rate=choose_rate(options, data, resolved.metric))
        used["learning_rate"] = resolved.learning_rate
    run.open_work()

    def score() -> float:
        return float(learner.measure("dev", chosen).metrics[resolved.metric])

    if resolved.epochs:
        learner.start()
    with tensorboard_folder(trackers, target):
        own = kind.own_training or options.contrastive
        run_training: Callable[..., Any] = learner.train if own else train
        what = (examples,) if own else (learner.head, learner.rows(examples))
        trained = run_training(
            *what,
            resolved,
            chosen,
            work=run.steps,
            title=f"fine-tune on {data.name}",
            score=score if resolved.select == "dev" else None,
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
    change = fields["metrics"].get("similarity")
    dropped = similarity_warning([SimilarityChange.from_dict(change)]) if change else ""
    unfinished = warn_of_unfinished(fields["losses"], resolved.epochs)
    warning = " ".join(filter(None, (warn_of_explosion(trained.log, resolved.learning_rate), unfinished, dropped)))
    result = FinetuneResult(
        **fields,
        learning_rate=resolved.learning_rate,
        first=before.task.name if before else None,
        warning=warning,
    )
    used["first"] = result.first
    run.write(learner, trained, result, verb="finetune", models={"model": options.model}, task=data, options=used)
    return result


finetune = verb(FinetuneOptions, _finetune)
