"""The four stages of selective masking (appendix A of the paper), each cached under a hash of all its inputs."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, PreTrainedModel

from acclimate.api import (
    AdaptContext,
    TokenDataset,
    TokenImportanceStore,
    UserError,
    atomic_folder,
    cache_folder,
    cache_key,
    cache_lock,
    computation_key,
    fingerprint_tensors,
    fingerprint_tokenizer,
    read_json,
    read_stop_words,
    save_model,
    values,
    write_json,
)
from acclimate.papers.selective import annotation, annotator, token_classifier
from acclimate.papers.selective.command_options import AnnotatorOptions
from acclimate.papers.selective.options import AnnotationOptions, TokenTrainingOptions
from acclimate.papers.selective.token_classifier import load_token_classifier, mark_rows, train_token_classifier


def fingerprint_base_model(run: AdaptContext) -> dict[str, Any]:
    """Return the part of the cache key that identifies the base model of a run and the numerics, as JSON values.

    Only the tensors of the masked-LM head that classifiers reuse are included: a missing head is initialized randomly
    by each run.
    """
    encoder: Any = run.model.base_model
    return {
        **computation_key(encoder, run.tokenizer, run.precision),
        "tokenizer": fingerprint_tokenizer(run.tokenizer),
        "head": fingerprint_tensors(shared_head_tensors(run.model)),
    }


def shared_head_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the tensors of a masked-LM head that text or token classifiers share (ModernBERT has some), by name."""
    shapes: dict[str, set[torch.Size]] = {}
    for auto in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
        with torch.device("meta"):
            classifier = auto.from_config(model.config)
        for name, value in classifier.state_dict().items():
            shapes.setdefault(name, set()).add(value.shape)
    encoder = f"{model.base_model_prefix}."
    return {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith(encoder) and value.shape in shapes.get(name, ())
    }


log = logging.getLogger(__name__)
SUMMARY_FILE = "summary.json"
STAGES = ("finetune", "annotate", "train", "mark")
"""The paper's "Finetune BERT", "Downstream Mask", "Train NN" and "In-domain Mask"."""


@dataclass(frozen=True)
class SelectionOptions:
    """Options and random seed of all stages."""

    fine_tuning: AnnotatorOptions
    annotation: AnnotationOptions
    token_training: TokenTrainingOptions
    seed: int


def find_important_tokens(run: AdaptContext, options: SelectionOptions) -> tuple[TokenImportanceStore, dict[str, Any]]:
    """Find the important tokens of the text of a run, or read them from the cache.

    An interrupted run resumes with the stage in which it stopped. A run that needs a stage which another run is
    computing, such as another seed of a study, waits for it. The stages run in a single process, so distributed runs
    need them in the cache.

    Args:
        run: An adaptation with a task.
        options: Options of the stages.

    Returns:
        The important tokens, and the summary of every stage by name, with its minutes.

    Raises:
        UserError: If the task is of another kind, no token of the text is important, or the run is distributed and a
            stage is missing from the cache.
    """
    with ExitStack() as stack:
        return _StageRunner(run, options, stack).run()


class _StageRunner:
    """The stages of one run; the base model is written to disk only if a stage needs it."""

    def __init__(self, run: AdaptContext, options: SelectionOptions, stack: ExitStack) -> None:
        self._run, self._options, self._stack = run, options, stack
        self._task = annotator.check_task(run.task)
        self._start: Path | None = None

    def run(self) -> tuple[TokenImportanceStore, dict[str, Any]]:
        run, options, task = self._run, self._options, self._task
        stop_words = sorted(read_stop_words(options.annotation.stop_words))
        start = {**fingerprint_base_model(run), "seed": options.seed}
        tuned_by = {**start, "task": task.fingerprint(), "finetune": values(options.fine_tuning)}
        annotated_by = {**tuned_by, "annotation": asdict(options.annotation), "stop_words": stop_words}
        trained_by = {**annotated_by, "train": asdict(options.token_training)}
        text = (
            getattr(run.rows, "fingerprint", None) or TokenDataset.of([row.tolist() for row in run.rows]).fingerprint
        )
        tuned, first = self._stage("finetune", tuned_by, self._fine_tune, [annotator.warn_if_at_chance])
        annotated, second = self._stage(
            "annotate",
            annotated_by,
            lambda folder: self._annotate(tuned, folder),
            [annotation.warn_if_share_is_extreme],
        )
        trained, third = self._stage("train", trained_by, lambda folder: self._train(annotated, folder), [])
        _warn_if_useless(third)
        marked, fourth = self._stage(
            "mark",
            {**trained_by, "text": text},
            lambda folder: self._mark(trained, folder),
            [token_classifier.warn_if_marked_share_is_extreme],
        )
        if not fourth["important"]:
            raise UserError(
                f"The token classifier finds no important token among the {fourth['tokens']:,} tokens of the text, so "
                f"there is nothing to mask: {second['share']:.1%} of the task's tokens are annotated as important, "
                f"and the F1 of the token classifier on held-out texts is {third['f1']:.2f}. Increase token_epochs or "
                "token_learning_rate, or change delta."
            )
        return TokenImportanceStore.load(marked), dict(zip(STAGES, (first, second, third, fourth), strict=True))

    def _stage(
        self,
        name: str,
        key: dict[str, Any],
        make: Callable[[Path], dict[str, Any]],
        warnings: Sequence[Callable[[dict[str, Any]], None]],
    ) -> tuple[Path, dict[str, Any]]:
        """Return the folder and the summary of a stage; compute them if they are not cached."""
        folder = cache_folder() / "selective" / f"{name}-{cache_key(key)}"
        is_cached = (folder / SUMMARY_FILE).is_file()
        if not is_cached and self._run.group.size > 1:
            raise UserError(
                "Selective masking finds the important tokens in a single process and caches them. Run the same "
                "command once without torchrun or accelerate, with --steps 1 and another --out, then run this again."
            )
        is_cached = is_cached or not _make_once(folder, make)
        summary = read_json(folder / SUMMARY_FILE)
        for warn in warnings if is_cached else ():  # computing the stage has logged them already
            warn(summary)
        return folder, summary

    @property
    def _base(self) -> Path:
        """Folder of the base model."""
        if self._start is None:
            self._start = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="acclimate-")))
            save_model(self._run.model, self._start)
            self._run.tokenizer.save_pretrained(self._start)
        return self._start

    def _fine_tune(self, folder: Path) -> dict[str, Any]:
        run, options = self._run, self._options
        run.say(f"Selective masking, 1 of 4: fine-tuning on '{self._task.name}'.")
        return annotator.fine_tune_annotator(
            self._base,
            self._task,
            folder / "classifier",
            options.fine_tuning,
            seed=options.seed,
            precision=run.precision,
            progress=run.progress,
        )

    def _annotate(self, tuned: Path, folder: Path) -> dict[str, Any]:
        run, options, task = self._run, self._options, self._task
        run.say(f"Selective masking, 2 of 4: annotating the important tokens of '{task.name}'.")
        classifier = annotator.load_annotator(tuned / "classifier", task, options.fine_tuning.max_length)
        found = annotation.annotate(classifier, task.train, options.annotation, progress=run.progress)
        path = folder / annotation.ANNOTATIONS_FILE
        annotation.write_annotations(path, found.annotated, classifier.tokenizer, task.labels)
        return found.summary

    def _train(self, annotated: Path, folder: Path) -> dict[str, Any]:
        run, options = self._run, self._options
        run.say("Selective masking, 3 of 4: training the token classifier.")
        items = annotation.read_annotations(annotated / annotation.ANNOTATIONS_FILE, self._task.labels)
        classifier, summary = train_token_classifier(
            self._base,
            annotation.make_training_texts(items, options.annotation),
            options.token_training,
            seed=options.seed,
            precision=run.precision,
            progress=run.progress,
        )
        classifier.save(folder)
        return {"options": asdict(options.token_training), **summary}

    def _mark(self, trained: Path, folder: Path) -> dict[str, Any]:
        run = self._run
        run.say("Selective masking, 4 of 4: predicting the important tokens of the text.")
        classifier = load_token_classifier(trained)
        summary = mark_rows(classifier, run.rows, folder, precision=run.precision, progress=run.progress)
        token_classifier.warn_if_marked_share_is_extreme(summary)
        return summary


def _make_once(folder: Path, make: Callable[[Path], dict[str, Any]]) -> bool:
    """Compute a stage unless another process has done so; return whether it was computed here.

    An existing folder is never replaced, since other processes may be reading it.
    """
    with cache_lock(folder):
        if (folder / SUMMARY_FILE).is_file():
            return False
        start = time.perf_counter()
        with atomic_folder(folder) as temporary:
            summary = make(temporary)
            write_json(temporary / SUMMARY_FILE, {**summary, "minutes": (time.perf_counter() - start) / 60})
    return True


def _warn_if_useless(summary: dict[str, Any]) -> None:
    """Log a warning if the token classifier is no better than marking every token."""
    if summary["f1"] <= summary["f1_of_all"]:
        log.warning(
            "The token classifier is no better than marking every token: F1 %.3f on %d held-out texts, against %.3f "
            "(precision %.3f, recall %.3f; %.1f %% of the tokens are important, %.1f %% are predicted to be).",
            summary["f1"],
            summary["held_out_texts"],
            summary["f1_of_all"],
            summary["precision"],
            summary["recall"],
            100 * summary["share"],
            100 * summary["predicted_share"],
        )
