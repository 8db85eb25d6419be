"""Fine-tuning a model on a labelled task of any kind, in one stage or two, and evaluating it on the test split."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from transformers import set_seed

from acclimate.adaptation.result import warn_of_explosion
from acclimate.adaptation.similarity import open_pairs
from acclimate.base.bounds import MAX_SEED
from acclimate.base.errors import UserError
from acclimate.base.locks import with_output_lock
from acclimate.base.options import defaults, recorded, values, verb
from acclimate.base.progress import print_message
from acclimate.data.reading import DEFAULT_READING
from acclimate.data.task_kinds import find_task_kind, open_task
from acclimate.engine.micro_batches import with_memory_limit
from acclimate.evaluation.embeddings import SimilarityChange, similarity_warning
from acclimate.evaluation.learning import first_and_last, still_falls
from acclimate.evaluation.prompts import AskedPrompt, choose_prompts, list_prompts, solved_examples
from acclimate.models.lora import read_low_rank
from acclimate.parts.updates import freeze
from acclimate.tasks.embedding_options import EmbeddingOptions
from acclimate.tasks.generation_options import GenerationOptions
from acclimate.tasks.interfaces import (
    LabelledTask,
    Learner,
    ResolvedOptions,
    find_width,
    learns_pairs,
    resolve_options,
)
from acclimate.tasks.options import FinetuneOptions, JointOptions
from acclimate.tasks.recipe import default_epochs, rates_to_try
from acclimate.tasks.result import FinetuneResult
from acclimate.tasks.run import TaskRun
from acclimate.tasks.splits import join_splits, replace_test_with_dev
from acclimate.tasks.trainer import TrainingResult, train
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
    first = open_task(given.first, clean=given.clean, mask_personal=given.mask_personal)
    check_first_task(first, task)
    first = find_task_kind(first).configured(first, vars(given))
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
    kinds = first.scoring().name, task.scoring().name
    if kinds[0] != kinds[1]:
        raise UserError(
            f"'{first.name}' is a task of the kind {kinds[0]} and '{task.name}' of the kind {kinds[1]}: the first "
            "stage of fine-tuning needs a task of the same kind."
        )
    if (seconds := [getattr(one, "auxiliary_labels", []) for one in (first, task)])[0] != seconds[1]:
        raise UserError(
            f"The auxiliary labels of '{first.name}' ({', '.join(seconds[0]) or 'none'}) differ from those of "
            f"'{task.name}' ({', '.join(seconds[1]) or 'none'}); give a first task with the same ones."
        )
    if list(first.labels) != list(task.labels):
        raise UserError(
            f"The labels of '{first.name}' ({', '.join(first.labels)}) differ from those of '{task.name}' "
            f"({', '.join(task.labels)}), so the head cannot be reused; give a first task with the same labels."
        )


def check_kind_options(task: LabelledTask, given: Mapping[str, Any]) -> None:
    """Check that options of ``finetune`` that only some kinds of tasks or models have are given for these alone.

    Args:
        task: The loaded task.
        given: The options, in full or only those that are given.

    Raises:
        UserError: If one is of another kind.
    """
    if given.get("first_stage") and not given.get("rerank"):
        raise UserError("'first_stage' finds documents to 'rerank': give both, or remove it.")
    kind = find_task_kind(task)
    usual = defaults(FinetuneOptions)
    changed = {
        name
        for name, value in given.items()
        if value is not None and name in usual and (usual[name] is None or value != usual[name])
    }
    for name in defaults(EmbeddingOptions):
        applies = kind.own_training or name == "contrastive" or (kind.low_rank and name == "adapter")
        if name in changed and not applies:
            raise UserError(f"'{name}' is for retrieval models, which '{task.name}' does not train; remove it.")
    for own, only, what in (
        (GenerationOptions, "generation", "generation"),
        (JointOptions, "joint", "the kind joint"),
    ):
        if kind.name != only and (wrong := next((one for one in defaults(own) if one in changed), None)):
            raise UserError(f"'{wrong}' is for tasks of {what}, and '{task.name}' is {kind.name}; remove it.")
    for name in ("template", "shots"):
        asks = kind.name == "generation" or (kind.zero_shot and given.get("epochs") == 0)
        if name in changed and not asks:
            raise UserError(
                f"'{name}' is for tasks of generation, and multiple choice with epochs=0, and '{task.name}' is "
                f"{kind.name}; remove it."
            )


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
    first, last = first_and_last(losses)
    message = (
        f"The training loss still fell steeply at the end (from {first:.3g} to {last:.3g}): the model has "
        f"not learned what the train rows can teach. Train longer, such as --epochs {4 * epochs}, or leave the epochs "
        "and the learning rate to the defaults."
    )
    log.warning(message)
    return message


class Finetuning(TaskRun[FinetuneOptions, FinetuneResult]):
    """One call of ``finetune``.

    Attributes:
        before: The first stage; None if there is only one.
        pairs: The pairs on which embeddings are measured before and after training, if any.
        examples: The train examples, after ``few_shot``.
    """

    verb, product, doing = "finetune", "a fine-tuned model", "fine-tune"
    result_type = FinetuneResult
    prompts: list[AskedPrompt] | None = None
    chosen: int | None = None

    def __init__(self, options: FinetuneOptions) -> None:
        super().__init__(options)
        if options.all_labels:
            self.task = join_splits(self.task)
        self.kind = find_task_kind(self.task)
        self.task = self.kind.configured(self.task, vars(options))
        resolved, self.scoring = resolve_options(options, self.task, options.model)
        self.resolved = replace(resolved, progress=resolved.progress and self.group.first)
        self.before = plan_first_stage(self.task, self.resolved, options)
        if self.before and self.group.size > 1:
            raise UserError(
                "The first stage of fine-tuning runs in one process. Start the command without torchrun or "
                "accelerate, or fine-tune on the first task by itself and start from its result."
            )
        if learns_pairs(self.task, options) and self.resolved.epochs and self.group.size > 1:
            raise UserError("Embeddings are trained in one process; start it without torchrun or accelerate launch.")
        self.models = {"model": options.model} | ({"first_stage": options.first_stage} if options.first_stage else {})
        self.tasks = {"task": self.task, "first": self.before.task if self.before else None}
        check_kind_options(self.task, vars(options))
        self.pairs = None if options.similarity is None else open_pairs(options.similarity)
        count = self.resolved.few_shot
        self.examples = self.task.train if count is None else self.task.few_shot(count, self.resolved.seed)

    def settings(self) -> dict[str, Any]:
        """Return the options of both stages."""
        own = recorded(self.resolved, precision=self.precision)
        similarity = self.pairs and self.pairs.fingerprint()
        first = self.before and recorded(self.before.options, precision=self.precision)
        own |= {"scorer": getattr(self.task, "scorer", None)}
        return recorded(self.options, ("model", "task"), **own, similarity=similarity, first=first)

    def prepare(self) -> Callable[..., TrainingResult]:
        """Load the model, and train it on the first task."""
        options, resolved = self.options, self.resolved
        set_seed(resolved.seed)  # before the new weights are initialized
        learner: Learner = self.kind.learner_for(options)(options.model, self.task, resolved, self.device)
        learner.general, learner.hard_negatives, learner.adapter = (
            self.pairs,
            options.hard_negatives,
            read_low_rank(options.adapter),
        )
        learner.configure(options)
        self.learner = learner
        if options.freeze:
            print_message(freeze(learner.head.model, options.freeze), enabled=resolved.progress)
        if self.before:
            load_or_train(learner, learner.rows(self.before.task.train), self.before.options, self.precision)
            set_seed(resolved.seed)  # the same state whether the first stage was trained or found in the cache
        if options.tune:
            self.resolved = replace(resolved, learning_rate=choose_rate(options, self.task, resolved.metric))
        if resolved.epochs:
            learner.start()
        else:
            self.ask(options)
        if learns_pairs(self.task, options):
            return partial(learner.train, self.examples, group=self.group)
        return partial(train, learner.head, learner.rows(self.examples), group=self.group)

    def ask(self, options: FinetuneOptions) -> None:
        """Choose the prompt of a model that is not trained, which sees neither test nor, with several, other rows.

        Raises:
            UserError: If the model has no prompt, or there are several and no dev split.
        """
        learner, task, given = self.learner, self.task, (options.template, options.shots)
        if not learner.templates and given == (None, None):
            return
        prompts = list_prompts(*given, learner.templates or ("",), bool(task.dev))
        classes = [tuple(row) for row in self.kind.strata(task.train)]

        def use(prompt: AskedPrompt) -> None:
            learner.use_prompt(prompt.template, solved_examples(task.train, prompt.shots, classes))

        def scores(prompt: AskedPrompt, places: Sequence[int]) -> Sequence[float]:
            learner.task = replace(task, dev=[task.dev[place] for place in places], test=[])
            use(prompt)
            return learner.item_scores(learner.measure("dev", "fp32"))

        if len(prompts) > 1:
            if not task.dev:
                raise UserError(
                    f"Several prompts need a dev split to choose on, and '{task.name}' has none; give one."
                )
            groups, seed = task.groups("dev") or range(len(task.dev)), options.seed
            choice = choose_prompts(prompts, scores, groups, [seed], options.prompt_seeds or [seed])
            self.prompts, self.chosen, learner.task = prompts, choice[seed], task
        for prompt in prompts if options.every_prompt and self.prompts else ():
            use(prompt)
            found = learner.measure("test", "fp32")
            prompt.predicted, prompt.metrics = found.predicted, found.metrics
        use(prompts[self.chosen or 0])

    def make_result(self, fields: dict[str, Any], trained: TrainingResult) -> FinetuneResult:
        """Return the result with a warning of what is wrong with the training."""
        changes = fields["metrics"].get("similarity", ())
        warnings = (
            warn_of_explosion(trained.log, self.resolved.learning_rate),
            warn_of_unfinished(fields["losses"], self.resolved.epochs),
            similarity_warning(SimilarityChange.from_dict(change) for change in changes),
        )
        return FinetuneResult(
            **fields,
            train_size=len(self.examples),
            learning_rate=self.resolved.learning_rate,
            first=self.before.task.name if self.before else None,
            prompts=self.prompts,
            chosen=self.chosen,
            warning=" ".join(filter(None, warnings)),
        )


@with_output_lock
@with_memory_limit
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
    return Finetuning(options).run()


finetune = verb(FinetuneOptions)(_finetune)
