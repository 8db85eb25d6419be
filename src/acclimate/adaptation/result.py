"""The result of an adaptation, checks for finished, interrupted and diverged runs, and previews of masked texts."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from acclimate.adaptation.method import cache_key
from acclimate.base.errors import UserError, first_line
from acclimate.base.files import (
    MANIFEST_FILE,
    cache_folder,
    cache_path,
    check_replaceable,
    is_intact,
    read_json,
    read_json_object,
    warn_on_write_error,
    write_json,
)
from acclimate.base.records import build_value
from acclimate.data.token_dataset import RowAccount
from acclimate.engine.batches import Collator
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.trainer import LOG_FILE, StepTrainer
from acclimate.evaluation.dips import describe_dips
from acclimate.evaluation.embeddings import SimilarityChange, similarity_warning
from acclimate.models.batching import MINIMAL_PADDING
from acclimate.parts.masking.preview import find_importance_store, preview_tokens
from acclimate.results.adaptations import (
    AdaptationRow,
    Change,
    MaskedTexts,
    MaskedToken,
    read_curves,
    read_log,
)
from acclimate.results.display import Reported, data_frame
from acclimate.results.study import MethodRow, StudyResults

if TYPE_CHECKING:
    import pandas

EXPLOSION_MARGIN = 1.0
"""Nats above a uniform guess, or above twice the first loss, at which a loss counts as exploded."""

log = logging.getLogger(__name__)


@dataclass(repr=False)
class AdaptResult(Reported):
    """The result of an adaptation.

    Attributes:
        out: The model folder.
        method: Name of the method.
        steps: Number of optimizer steps.
        tokens: Real tokens read (each text counts once per step, however many views read it).
        seconds: Training time, without loading and tokenizing.
        losses: Mean of each term over the last logging interval, in nats.
        parameters: The resolved configuration.
        preparation: What the method recorded before training, and the mix during it, by the name of the JSON file
            next to the model.
        rows: What became of the documents; None if the run was finished before, or nothing was trained.
        about: Paper and summary of the method, for the card.
        mix: What was read of each text, if there were several: its share as given and as realized, its tokens and
            epochs, and the loss at the end, see :meth:`acclimate.adaptation.mixture.Mixture.describe`.
        warning: What is wrong with the result; empty if nothing is.
        adapter: Size of the adapter, and how far the merged model is from the trained one, see
            :meth:`acclimate.models.lora.LowRankAdapter.export`; None if all weights were trained.
        similarity: Of a sentence encoder, how far its embeddings show similarity, before and after.
        changes: Losses and instructions before and after, with intervals.
        batch_size: Texts per step; 0 if nothing was trained, or the stages of a method differ.
        kept_step: The step whose model this is, if ``keep_best`` chose another one than the last.
        preview: Returns :attr:`masked`; None if the run was finished before.
    """

    out: Path
    method: str
    steps: int
    tokens: int
    seconds: float
    losses: dict[str, float]
    parameters: dict[str, Any] = field(default_factory=dict)
    preparation: dict[str, Any] = field(default_factory=dict)
    rows: RowAccount | None = None
    about: dict[str, str] = field(default_factory=dict)
    mix: list[dict[str, Any]] = field(default_factory=list)
    warning: str = ""
    adapter: dict[str, Any] | None = None
    similarity: list[SimilarityChange] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    batch_size: int = 0
    kept_step: int | None = None
    preview: Callable[[], MaskedTexts | None] | None = None

    @cached_property
    def masked(self) -> MaskedTexts | None:
        """A few texts with their masked tokens, see :func:`sample_masked_texts`; None for a model without masking.

        They are made when they are first asked for, and kept in the cache for a later call, which finds the run
        finished: not next to the model, since texts of the corpus may be confidential.
        """
        file = Path("masked", f"{cache_key(self.parameters)}.json")
        found = cast(MaskedTexts | None, read_json_object(cache_path() / file))
        if found is None and self.preview is not None and (found := self.preview()) is not None:
            with warn_on_write_error("Previews", cache_folder() / file):
                write_json(cache_folder() / file, found)
        return found

    def describe(self) -> list[str]:
        """Return the budget, the losses and the folder, in a few lines."""
        speed = f", {self.tokens / self.seconds:,.0f} tokens/s" if self.seconds else ""
        steps = f"{self.method}, {self.steps:,} step{'s' * (self.steps != 1)}"
        lines = [f"{self.out}: {steps}, {self.tokens:,} tokens{speed}", *self._describe_losses()]
        lines += [change.describe() for change in self.changes]
        lines += [f"Similarity, {change.describe()}" for change in self.similarity]
        return [*lines, *([f"Warning: {self.warning}"] if self.warning else [])]

    def _describe_losses(self) -> Iterator[str]:
        """Yield lines on the loss in training, on held-out and on general text, as far as it was measured."""
        lines = list(read_log(self.out / LOG_FILE))
        if terms := {name: value for name, value in self.losses.items() if name != "loss"}:
            trained = [line for line in lines if "terms" in line]
            before = [line["step"] for line in trained[:-1]]
            steps = _name_steps(before[-1] + 1 if before else 1, self.steps)
            first = f"{_join(trained[0]['terms'])}, mean of {_name_steps(1, before[0])}; " if before else ""
            yield f"Training loss in nats: {first}{_join(terms)}, mean of {steps}"
        for key, name in (("heldout", "Held-out"), ("general", "General")):
            measured = [line for line in lines if key in line]
            if measured and not self.changes:
                points = measured[:1] + measured[1:][-1:]
                found = "; ".join(f"{_join(point[key]['terms'])} after step {point['step']:,}" for point in points)
                yield f"{name} loss in nats: {found}"
        for dip in describe_dips(read_curves(self.out / LOG_FILE)):
            yield f"{dip[:1].upper()}{dip[1:]}."
        if self.kept_step is not None:
            yield f"The model is from step {self.kept_step:,}, with the lowest held-out loss."

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: the folder and what was measured, without texts of the corpus."""
        return {"out": self.out, "method": self.method, **self.measured()}

    def as_results(self) -> StudyResults:
        """Return the budget and the learning curves, as the results of a study; :attr:`masked` has texts."""
        model = str(self.parameters.get("model", ""))
        curves = read_curves(self.out / LOG_FILE)
        row = AdaptationRow(
            model=model,
            domain="text",
            method=self.method,
            seed=self.parameters.get("seed"),
            folder=self.out.name,
            steps=self.steps,
            tokens=self.tokens,
            seconds=self.seconds,
            losses=self.losses,
            curve=curves["curve"],
            heldout_curve=curves["heldout_curve"],
            mix=self.mix,
            general_curve=curves["general_curve"],
        )
        return StudyResults(
            name=self.out.name,
            title=f"Adaptation with {self.method}",
            models=[model],
            domains=["text"],
            methods=[MethodRow(label=self.method, name=self.method, parameters=self.parameters.get("settings") or {})],
            adaptations=[row],
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Return the log of the training: a row per logged step, with a column per term of the loss, in nats.

        Columns that start with ``heldout_`` and ``general_`` are losses on held-out and general text, in the rows of
        the steps after which they were measured; step 0 is the base model.

        Raises:
            UserError: If there is no log: the method does not train, or the folder was moved.
        """
        rows: dict[int, dict[str, Any]] = {}
        for line in read_log(self.out / LOG_FILE):
            measured = {text: line.pop(text) for text in ("heldout", "general") if text in line}
            terms = line.pop("terms", {})
            row = rows.setdefault(line["step"], {})
            row |= {**line, **terms}
            for text, found in measured.items():
                row |= {f"{text}_{name}": value for name, value in {"loss": found["loss"], **found["terms"]}.items()}
        if not rows:
            raise UserError(f"There is no log in '{self.out}': the method did not train, or the folder was moved.")
        return data_frame([rows[step] for step in sorted(rows)])

    def take(self, trainer: StepTrainer) -> None:
        """Copy steps, tokens, seconds and losses from a trainer, at its current step."""
        self.steps, self.tokens = trainer.state.global_step, trainer.tokens
        self.seconds, self.losses = round(trainer.clock.seconds, 1), trainer.last_terms
        self.mix = trainer.data.mix(self.steps)
        self.kept_step = trainer.kept_step

    def add_similarity(self, changes: list[SimilarityChange]) -> None:
        """Add how far a sentence encoder shows similarity, and a warning if that dropped."""
        self.similarity = changes
        self.warning = " ".join(filter(None, (self.warning, similarity_warning(changes))))

    def measured(self) -> dict[str, Any]:
        """Return what was measured, as the manifest contains it."""
        numbers = {"steps": self.steps, "tokens": self.tokens, "seconds": self.seconds, "losses": self.losses}
        if self.batch_size:
            numbers["batch_size"] = self.batch_size
        if self.kept_step is not None:
            numbers["kept_step"] = self.kept_step
        if self.mix:
            numbers["mix"] = self.mix
        if self.warning:
            numbers["warning"] = self.warning
        if self.adapter:
            numbers["adapter"] = self.adapter
        if self.changes:
            numbers["changes"] = [change.to_dict() for change in self.changes]
        if self.similarity:
            numbers["similarity"] = [change.to_dict() for change in self.similarity]
        return {**numbers, "preparation": sorted(self.preparation)} if self.preparation else numbers


def _name_steps(first: int, last: int) -> str:
    return f"step {last:,}" if first >= last else f"steps {first:,} to {last:,}"


def _join(terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in terms.items())


def open_work_folder(work: Path, config: dict[str, Any], group: ProcessGroup) -> None:
    """Create the working folder of a run, or keep the one of a killed run of the same configuration.

    The folder of another run is kept next to it, in case its command is run again.
    """
    if group.first:
        if work.is_dir() and read_manifest(work) != roundtrip_json(config):  # also if the manifest is damaged
            _set_aside(work, config)
        work.mkdir(parents=True, exist_ok=True)
        write_json(work / MANIFEST_FILE, config)
    group.wait()


def _set_aside(work: Path, config: dict[str, Any]) -> None:
    """Exchange the working folder of another run for the one of this run, if that was set aside before."""
    aside, mine = (work.with_name(f"{work.name}.{ending}") for ending in ("aside", "mine"))
    shutil.rmtree(mine, ignore_errors=True)
    if read_manifest(aside) == roundtrip_json(config):
        aside.rename(mine)
    if any(path.is_file() and path.name != MANIFEST_FILE for path in work.rglob("*")):
        shutil.rmtree(aside, ignore_errors=True)
        work.rename(aside)
        log.warning(
            "'%s' keeps the checkpoints of an interrupted run with other settings, in case it is run again.", aside
        )
    else:
        shutil.rmtree(work)
    if mine.is_dir():
        mine.rename(work)


def remove_work_folder(work: Path, config: dict[str, Any], group: ProcessGroup) -> None:
    """Remove the working folder of a finished run, in case the run was killed before it did so itself."""
    if group.first and read_manifest(work) in (None, roundtrip_json(config)):
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(work.with_name(f"{work.name}.aside"), ignore_errors=True)


def load_finished(out: Path, config: dict[str, Any], overwrite: bool) -> AdaptResult | None:
    """Return the result in ``out`` if it is that of the same run.

    Returns:
        None if ``out`` is empty or may be overwritten, or if files of the result are missing.

    Raises:
        UserError: If it contains something else, or the result is damaged.
    """
    if out.is_file():
        raise UserError(f"'{out}' is a file; give a directory.")
    foreign = f"The directory '{out}' is not empty and has no adapted model; give another."
    other = f"The directory '{out}' holds another adaptation; give another, or replace it with --overwrite."
    card = find_result(out, MANIFEST_FILE, config, overwrite, foreign, other, read=read_manifest)
    if card is None:
        return None
    try:
        measured = card["result"]
        files = [
            name for name in measured.get("preparation", []) if Path(name).name == name and (out / name).is_file()
        ]
        preparation = {name: read_json(out / name) for name in files}
        steps, tokens, seconds = int(measured["steps"]), int(measured["tokens"]), float(measured["seconds"])
        losses = {name: float(value) for name, value in measured["losses"].items()}
        warning, batch_size = str(measured.get("warning", "")), int(measured.get("batch_size", 0))
        kept_step = build_value(int | None, measured.get("kept_step"), "kept_step")
        mix = build_value(list[dict[str, Any]] | None, measured.get("mix"), "mix") or []
        adapter = build_value(dict[str, Any] | None, measured.get("adapter"), "adapter")
        similarity = [SimilarityChange.from_dict(entry) for entry in measured.get("similarity") or []]
        changes = [Change.from_dict(entry) for entry in measured.get("changes") or []]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, UserError) as error:
        raise UserError(f"'{out / MANIFEST_FILE}' is damaged ({first_line(error)}); {_remedy(out)}.") from error
    if warning:
        log.warning("%s", warning)
    return AdaptResult(
        out,
        card["method"],
        steps,
        tokens,
        seconds,
        losses,
        config,
        preparation,
        mix=mix,
        warning=warning,
        adapter=adapter,
        similarity=similarity,
        changes=changes,
        batch_size=batch_size,
        kept_step=kept_step,
    )


def find_result(
    out: Path,
    manifest: str,
    config: Mapping[str, Any],
    overwrite: bool,
    foreign: str,
    other: str,
    read: Callable[[Path], dict[str, Any] | None] | None = None,
) -> dict[str, Any] | None:
    """Return the manifest of the result in ``out`` if it is that of the same configuration and complete.

    Args:
        out: The output directory.
        manifest: Name of the manifest.
        config: The configuration, which is part of the manifest.
        overwrite: Whether a result may be replaced.
        foreign: Message if ``out`` holds something that is no such result.
        other: Message if it holds the result of another configuration.
        read: Reads the manifest in a folder, if it is more than a JSON object.

    Returns:
        None if ``out`` is empty or may be replaced, or if files of the result are missing.

    Raises:
        UserError: If it holds something else, or the result is damaged.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / manifest).is_file():
        raise UserError(foreign)
    if overwrite:
        if read_json_object(out / manifest) is not None:
            check_replaceable(out, manifest, "a result")
        return None
    (out / manifest).open().close()  # a file that may not be read is not damaged
    found = read_json_object(out / manifest) if read is None else read(out)
    if found is None:
        raise UserError(f"'{out / manifest}' is damaged; {_remedy(out)}.")
    if {key: found.get(key) for key in config} != roundtrip_json(config):
        raise UserError(other)
    return found if is_intact(out, manifest, _remedy(out)) else None


def _remedy(out: Path) -> str:
    return f"choose another directory, or replace '{out}' with --overwrite"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in a folder, without the checksums; None if there is none, or if it is damaged."""
    found = read_json_object(folder / MANIFEST_FILE)
    return found and {name: value for name, value in found.items() if name != "checksums"}


def roundtrip_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as it is read back from JSON."""
    return json.loads(json.dumps(config, default=str))


SHOWN_TEXTS = 3
CANDIDATE_TEXTS = 300
"""Number of texts that the previews are chosen from."""
MIN_SHOWN_TOKENS, MAX_SHOWN_TOKENS = 12, 60
"""Preferred length of a preview, in tokens."""


def sample_masked_texts(rows: Sequence[np.ndarray], collator: Collator) -> list[list[MaskedToken]]:
    """Return previews of some texts, see :func:`acclimate.parts.masking.preview.preview_tokens`.

    Which texts are chosen depends on the rows alone, and all strategies get the same random numbers, so that methods
    can be compared. The generators of the training are not used.

    Args:
        rows: The texts as token ids.
        collator: The collator of the training.

    Returns:
        At most :data:`SHOWN_TEXTS` previews; none for a tokenizer whose word boundaries are unknown.
    """
    order = np.random.default_rng(0).permutation(len(rows))[:CANDIDATE_TEXTS].tolist()
    chosen = sorted(order, key=lambda index: not MIN_SHOWN_TOKENS <= len(rows[index]) <= MAX_SHOWN_TOKENS)[
        :SHOWN_TEXTS
    ]
    collator = replace(collator, rewritings=(), policy=MINIMAL_PADDING)  # a single text needs no padding
    marks, special = find_importance_store(collator.masking), collator.special.tolist()
    shown: list[list[MaskedToken]] = []
    try:
        for number, index in enumerate(chosen):
            (batch,) = collator([np.asarray(rows[index])], np.random.default_rng([0, number]))
            original, masked, labels = (value[0].numpy() for value in (batch.original, batch.masked, batch.labels))
            important = None if marks is None else marks.lookup(original) > 0
            shown.append(preview_tokens(original, masked, labels, special, collator.vocabulary, important))
    except UserError:  # the word boundaries of this tokenizer are unknown
        return []
    return [pieces for pieces in shown if pieces]


def preview_masking(rows: Sequence[np.ndarray], collator: Collator) -> MaskedTexts | None:
    """Return previews of masked texts for the report; None if the model is trained without masking of tokens."""
    if not collator.kind.uses_masking or collator.kind.pairs:
        return None
    return describe_masked_texts(sample_masked_texts(rows, collator), collator.masking)


def describe_masked_texts(texts: Sequence[Sequence[MaskedToken]], masking: Any) -> MaskedTexts:
    """Return the previews with the name of their masking strategy."""
    return {"masking": str(getattr(masking, "name", "") or _wrapped_name(masking)), "texts": [list(t) for t in texts]}


def _wrapped_name(masking: Any) -> str:
    inner = getattr(masking, "of", None)
    return str(getattr(inner, "name", "")) if inner is not None else type(masking).__name__


def warn_of_explosion(
    lines: Sequence[Mapping[str, Any]], learning_rate: float, term: str = "", classes: int = 2
) -> str:
    """Warn if a training ended with a loss that is finite, but so high that the model is probably useless.

    Args:
        lines: The lines of the log; those without a loss are ignored.
        learning_rate: The peak learning rate.
        term: The term that is a cross-entropy over ``classes``; empty if there is none.
        classes: Number of classes, such as the size of the vocabulary.

    Returns:
        The warning; empty if there is none.
    """
    losses = [line for line in lines if "loss" in line]
    if not losses:
        return ""
    first, last = losses[0]["loss"], losses[-1]["loss"]
    found, guess = losses[-1].get("terms", {}).get(term, -math.inf), math.log(max(2, classes))
    if found > guess + EXPLOSION_MARGIN:
        what = f"The {term} loss ended at {found:,.1f} nats, and guessing at random gives {guess:.1f}"
    elif last > 2 * max(0.0, first) + EXPLOSION_MARGIN:
        what = f"The loss rose from {first:,.2f} to {last:,.2f} nats"
    else:
        return ""
    warning = f"{what}: the training probably diverged. Lower the learning rate (now {learning_rate:g})."
    log.warning("%s", warning)
    return warning


def describe_kept_steps(result: AdaptResult, kept: Iterable[int]) -> Iterator[str]:
    """Yield where the models of intermediate steps are."""
    for step in kept:
        folder = result.out / f"step-{step:06d}"
        yield str(folder) if folder.is_dir() else f"Training ended before step {step:,}, so there is no model of it."
