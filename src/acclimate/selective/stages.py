"""The four stages of the paper's appendix A one after the other, each kept in the cache by what determines it."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from acclimate.backbone import save_model
from acclimate.corpus import TokenRows
from acclimate.errors import UserError
from acclimate.files import new_folder, read_json, write_json
from acclimate.masking.marks import Marks
from acclimate.selective import annotating, fine_tuning, marking
from acclimate.selective.fine_tuning import FineTuning
from acclimate.selective.marking import mark_rows
from acclimate.selective.options import AnnotationOptions, TokenTraining, annotation_options
from acclimate.selective.start import starts_from
from acclimate.selective.token_classifier import check_training, load_token_classifier, train_token_classifier
from acclimate.tasks.cached import alone
from acclimate.training.run import Run, cache_folder, cache_key
from acclimate.vectors.stop_words import read_stop_words

log = logging.getLogger(__name__)
ACCOUNT = "account.json"
STAGES = ("finetune", "annotate", "train", "mark")
"""Finetune BERT, Downstream Mask, Train NN, In-domain Mask."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides which tokens of a text are important to a task."""

    fine_tuning: FineTuning
    annotation: AnnotationOptions
    token_training: TokenTraining
    seed: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], seed: int) -> Recipe:
        """Make a recipe from the parameters of :class:`acclimate.methods.selective.Selective`.

        Raises:
            UserError: If a value does not fit.
        """
        sizes = ("epochs", "learning_rate", "batch_size", "length")
        made = cls(
            FineTuning(*(settings[f"finetune_{name}"] for name in sizes)),
            annotation_options(**{field.name: settings[field.name] for field in fields(AnnotationOptions)}),
            TokenTraining(
                **{"max_length" if name == "length" else name: settings[f"token_{name}"] for name in sizes},
                class_weight=settings["class_weight"],
                special_tokens=settings["special_tokens"],
            ),
            seed,
        )
        check_training(made.token_training)  # before the stages that come first, not after them
        return made


def important_tokens(run: Run, recipe: Recipe) -> tuple[Marks, dict[str, Any]]:
    """Find the important tokens of the text of a run, or take them from the cache.

    A run that was killed goes on with the stage that it was in; one that finds another at the same stage waits for it,
    as do seeds of a study that share their stages. Fine-tuning and the token classifier are trained in one process; a
    run of several takes them from the cache.

    Args:
        run: An adaptation with a task.
        recipe: How.

    Returns:
        The marks, and the account of every stage by its name, minutes included.

    Raises:
        UserError: If the task is of another kind, nothing in the text is important, or the run has several processes
            and the cache lacks a stage.
    """
    with ExitStack() as stack:
        return _Stages(run, recipe, stack).run()


class _Stages:
    """The stages of one run; the model to start from is written to disk only if a stage needs it."""

    def __init__(self, run: Run, recipe: Recipe, stack: ExitStack) -> None:
        self._run, self._recipe, self._stack = run, recipe, stack
        self._task = fine_tuning.check_task(run.task)
        self._start: Path | None = None

    def run(self) -> tuple[Marks, dict[str, Any]]:
        run, recipe, task = self._run, self._recipe, self._task
        stop_words = sorted(read_stop_words(recipe.annotation.stop_words))
        start = {**starts_from(run), "seed": recipe.seed}
        tuned_by = {**start, "task": task.fingerprint(), "finetune": asdict(recipe.fine_tuning)}
        annotated_by = {**tuned_by, "annotation": asdict(recipe.annotation), "stop_words": stop_words}
        trained_by = {**annotated_by, "train": asdict(recipe.token_training)}
        text = getattr(run.rows, "fingerprint", None) or TokenRows.of([row.tolist() for row in run.rows]).fingerprint
        tuned, first = self._stage("finetune", tuned_by, self._fine_tune, [fine_tuning.warn])
        annotated, second = self._stage(
            "annotate", annotated_by, lambda folder: self._annotate(tuned, folder), [annotating.warn]
        )
        trained, third = self._stage("train", trained_by, lambda folder: self._train(annotated, folder), [])
        _judge(third)
        marked, fourth = self._stage(
            "mark", {**trained_by, "text": text}, lambda folder: self._mark(trained, folder), [marking.warn]
        )
        if not fourth["important"]:
            raise UserError(
                f"The token classifier finds nothing important in the {fourth['tokens']:,} tokens of the text, so "
                f"there is nothing to mask: {second['share']:.1%} of the tokens of the task are annotated as "
                f"important, and its F1 on held-out texts is {third['f1']:.2f}. Train it longer or faster "
                "(token_epochs, token_learning_rate), or change delta."
            )
        return Marks.load(marked), dict(zip(STAGES, (first, second, third, fourth), strict=True))

    def _stage(
        self,
        name: str,
        identity: dict[str, Any],
        make: Callable[[Path], dict[str, Any]],
        warnings: Sequence[Callable[[dict[str, Any]], None]],
    ) -> tuple[Path, dict[str, Any]]:
        """Return the folder and the account of a stage; make them if they are not there."""
        folder = cache_folder() / "selective" / f"{name}-{cache_key(identity)}"
        there = (folder / ACCOUNT).is_file()
        if not there and self._run.group.size > 1:
            raise UserError(
                "Selective masking finds the important tokens in one process, and keeps them in the cache for runs of "
                "several. Start the same command once without torchrun or accelerate, with --steps 1 and another "
                "--out; then this one again."
            )
        there = there or not _made(folder, make)
        account = read_json(folder / ACCOUNT)
        for warn in warnings if there else ():  # what is found again is said again
            warn(account)
        return folder, account

    @property
    def _base(self) -> Path:
        """The model as it is before the adaptation, on disk."""
        if self._start is None:
            self._start = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="acclimate-")))
            save_model(self._run.model, self._start)
            self._run.tokenizer.save_pretrained(self._start)
        return self._start

    def _fine_tune(self, folder: Path) -> dict[str, Any]:
        run, recipe = self._run, self._recipe
        run.say(f"Selective masking, 1 of 4: fine-tuning on '{self._task.name}'.")
        return fine_tuning.fine_tune(
            self._base,
            self._task,
            folder / "classifier",
            recipe.fine_tuning,
            seed=recipe.seed,
            precision=run.precision,
            progress=run.progress,
        )

    def _annotate(self, tuned: Path, folder: Path) -> dict[str, Any]:
        run, recipe, task = self._run, self._recipe, self._task
        run.say(f"Selective masking, 2 of 4: finding the important tokens of '{task.name}'.")
        classifier = fine_tuning.open_classifier(tuned / "classifier", task, recipe.fine_tuning.max_length)
        found = annotating.annotate(classifier, task.train, recipe.annotation, progress=run.progress)
        path = folder / annotating.FILE
        annotating.write_annotations(path, found.annotated, classifier.tokenizer, task.labels)
        return found.account

    def _train(self, annotated: Path, folder: Path) -> dict[str, Any]:
        run, recipe = self._run, self._recipe
        run.say("Selective masking, 3 of 4: training the token classifier.")
        items = annotating.read_annotations(annotated / annotating.FILE, self._task.labels)
        classifier, account = train_token_classifier(
            self._base,
            annotating.training_texts(items, recipe.annotation),
            recipe.token_training,
            seed=recipe.seed,
            precision=run.precision,
            progress=run.progress,
        )
        classifier.save(folder)
        return {"options": asdict(recipe.token_training), **account}

    def _mark(self, trained: Path, folder: Path) -> dict[str, Any]:
        run = self._run
        run.say("Selective masking, 4 of 4: finding the important tokens of the text.")
        classifier, _ = load_token_classifier(trained)
        return mark_rows(classifier, run.rows, folder, precision=run.precision, progress=run.progress)


def _made(folder: Path, make: Callable[[Path], dict[str, Any]]) -> bool:
    """Make the folder of a stage, unless another process that needs it makes it first; say whether it was made here.

    A folder that is there is never replaced, since others may be reading it.
    """
    with alone(folder):
        if (folder / ACCOUNT).is_file():
            return False
        begin = time.perf_counter()
        with new_folder(folder) as temporary:
            account = make(temporary)
            write_json(temporary / ACCOUNT, {**account, "minutes": (time.perf_counter() - begin) / 60})
    return True


def _judge(account: dict[str, Any]) -> None:
    """Say so if the token classifier is no better than marking every token."""
    if account["f1"] <= account["f1_of_all"]:
        log.warning(
            "The token classifier is no better than marking every token: F1 %.3f on %d held-out texts, against %.3f "
            "(precision %.3f, recall %.3f; %.1f %% of their tokens are important, it marks %.1f %%).",
            account["f1"],
            account["held_out_texts"],
            account["f1_of_all"],
            account["precision"],
            account["recall"],
            100 * account["share"],
            100 * account["predicted_share"],
        )
