"""A run of ``adapt``, and its features: what it does besides training on its text, because options ask for it.

A feature is an object with hooks, in a module of its own. ``adapt`` calls the hooks of the features that are on; a
feature that is off is not even imported.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from acclimate.adaptation.carried import Carried
from acclimate.adaptation.inputs import Budget, choose_batch_size
from acclimate.adaptation.method import AdaptContext, Method
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.result import AdaptResult
from acclimate.base.bounds import AUTO
from acclimate.base.device import Precision
from acclimate.base.files import MANIFEST_FILE, atomic_folder, record_files, safe_join, write_json
from acclimate.cards.writers import load_name, summarize_text, write_adapted_card
from acclimate.data.documents import Corpus, CorpusReport
from acclimate.data.mix.base import DOMAIN
from acclimate.data.token_dataset import TokenDataset
from acclimate.data.tokenizing import Framing
from acclimate.engine.batches import Collator
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.row_options import Documents, Layout
from acclimate.engine.schedules import Schedule
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import LOG_FILE, CallbackFactory
from acclimate.models.adapters import Adapter, warn_of_export
from acclimate.models.kinds import ModelKind
from acclimate.models.loading import LanguageModel
from acclimate.models.saving import save_model, save_tokenizer, write_pooling
from acclimate.parts.masking import RandomMasking, Strategy
from acclimate.parts.updates import UpdateRule

if TYPE_CHECKING:
    from acclimate.adaptation.mixture import Mixture

log = logging.getLogger(__name__)


class Feature:
    """Base of all features. It is made from the options, before a model is loaded, and refuses what does not fit.

    The hooks are in the order in which they are called; by default each does nothing.
    """

    def __init__(self, run: Run) -> None:
        """Check the options of the feature."""

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """Return the feature of a run; None if it turns out to have nothing to do."""
        return cls(run)

    def identity(self) -> dict[str, Any]:
        """Return entries of the recorded configuration, instead of the options of these names or in addition."""
        return {}

    def prepare(self, run: Run) -> None:
        """Check the loaded model, and add to it what the feature adds; nothing is tokenized yet."""

    def read(self, run: Run) -> None:
        """Read other texts, after the domain text; called in the first process before the others."""

    def warm_up(self, run: Run) -> None:
        """Train parts of the model before the method prepares."""

    def rule(self, run: Run, rule: UpdateRule | None) -> UpdateRule | None:
        """Return the update rule of the training, given that of the method and of features before this one."""
        return rule

    def callbacks(self, run: Run) -> list[CallbackFactory]:
        """Return functions that make callbacks for a trainer."""
        return []

    def around(self, run: Run) -> AbstractContextManager[Any]:
        """Return a context in which the training runs."""
        return nullcontext()

    def arguments(self, run: Run) -> dict[str, Any]:
        """Return arguments of :func:`acclimate.engine.trainer.train`; called right before it."""
        return {}

    def close(self, run: Run) -> None:
        """Record what the training left, after the method has finished."""

    def finish(self, run: Run, folder: Path) -> None:
        """Add to the folder of the model, which is being written, by the first process."""


@dataclass
class Run:
    """An adaptation in progress: what it was asked for, and from then on what it has made so far.

    Attributes:
        options: The options.
        method: The method with its parameters.
        adapter: The adapter that trains instead of the weights, or None.
        group: The processes that share each step.
        progress: Whether this process shows progress.
        task: The loaded task, or None.
        texts: The texts that the method reads, the domain text or the text of the task.
        budget: How long to train.
        masking: The masking strategy of the user.
        precision: Precision of the forward pass.
        out: The output directory.
        learning_rate: The peak learning rate.
        schedule: The share of it at each step.
        layout: How texts are put into rows.
        max_length: Maximum tokens per text.
        documents: Whether documents are joined, for a causal model.
        features: The features that are on.
        config: The recorded configuration: all that decides the result.
        sharded: Whether the weights are divided among the processes.
        named_texts: Text with neighbouring sentences on which a sentence encoder may be measured, by name.
        carried: What earlier adaptations left next to the model, and what this one adds.
        sources: Names of the texts that are read, the domain text first.
        loaded: The model.
        appended: Virtual tokens per text.
        length: Maximum tokens per text, virtual tokens included.
        context: What the method sees.
        framing: Where special tokens are added to documents.
        rows: The domain text as token rows.
        mixture: The order of several texts; None if there is one.
        batch_size: Texts per step.
        mean_length: Mean tokens per text, of all that is read.
        steps: Number of optimizer steps.
        update_rule: What happens around each optimizer step.
        engine: Computes the gradients of a step.
        collator: Makes its micro-batches.
        result: The result.
        dry: Whether it is only planned, so that nothing is written that costs time.
    """

    options: AdaptOptions
    method: Method
    adapter: Adapter | None
    group: ProcessGroup
    progress: bool
    task: Any
    texts: dict[str, Corpus]
    budget: Budget
    masking: Strategy
    precision: Precision
    out: Path
    learning_rate: float
    schedule: Schedule
    layout: Layout
    max_length: int
    documents: Documents | None
    features: list[Feature] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    sharded: bool = False
    named_texts: dict[str, Corpus] = field(init=False)
    carried: Carried = field(default_factory=Carried)
    sources: Sequence[str] = (DOMAIN,)
    loaded: LanguageModel = field(init=False)
    appended: int = field(init=False)
    length: int = field(init=False)
    context: AdaptContext = field(init=False)
    framing: Framing = field(init=False)
    rows: TokenDataset = field(init=False)
    mixture: Mixture | None = None
    batch_size: int = 0
    mean_length: float = 0.0
    steps: int = 0
    update_rule: UpdateRule | None = None
    engine: Engine = field(init=False)
    collator: Collator = field(init=False)
    result: AdaptResult = field(init=False)
    dry: bool = False

    def __post_init__(self) -> None:
        """Name the domain text."""
        self.named_texts = {"domain text (read in training)": self.text}

    @property
    def text(self) -> Corpus:
        """The text that the training is planned by: the domain text, or that of the task."""
        return next(iter(self.texts.values()))

    @property
    def work(self) -> Path:
        """The working folder."""
        return self.out.parent / f".{self.out.name}.work"

    @property
    def kind(self) -> ModelKind:
        """The kind of the model."""
        return self.loaded.kind

    @property
    def alike(self) -> Collator:
        """The collator for text whose loss is measured: masked alike for all methods.

        A masking strategy of the method may only know the training text.
        """
        masking = self.masking if self.kind.uses_masking else RandomMasking()
        return replace(self.collator, masking=masking, maskings={})

    @property
    def about_warm_up(self) -> dict[str, Any]:
        """Arguments of :func:`acclimate.adaptation.mlm_head.train_parts`."""
        names = ("seed", "precision", "progress", "group", "appended")
        return dict(
            zip(names, (self.options.seed, self.precision, self.progress, self.group, self.appended), strict=True)
        )

    def choose_batch_size(self, mean_length: float, share: float = 1.0) -> int:
        """Return the texts per step, given the mean tokens per text and the share of the tokens of the domain text."""
        if self.options.batch_size != AUTO:
            return int(self.options.batch_size)
        return choose_batch_size(self.config["step_tokens"], self.budget, self.rows, mean_length, share)

    def write(self) -> None:
        """Write the model folder, then remove the working folder."""
        with atomic_folder(self.out) as folder:
            self.write_model(folder, self.features)
            if (self.work / "steps" / LOG_FILE).is_file():
                shutil.copy(self.work / "steps" / LOG_FILE, folder / LOG_FILE)
            record_files(folder, MANIFEST_FILE)
        shutil.rmtree(self.work, ignore_errors=True)

    def write_model(self, folder: Path, features: Sequence[Feature] = ()) -> None:
        """Write model, tokenizer, manifest and card into an existing folder, and what features add to it."""
        loaded, result = self.loaded, self.result
        if loaded.adapter is None:
            save_tokenizer(loaded.tokenizer, folder)
            save_model(loaded.model, folder, self.out)
        else:
            result.adapter = loaded.adapter.export(folder, loaded.tokenizer, self.out, self.config["model"])
            result.warning = " ".join(filter(None, (result.warning, warn_of_export(result.adapter))))
        written = [folder]
        for name in self.method.variants():
            written.append(safe_join(folder, name))
            written[-1].mkdir(parents=True)
            save_tokenizer(loaded.tokenizer, written[-1])
            save_model(loaded.model, written[-1], self.out / name)
        for place in written if loaded.pooling is not None else ():
            write_pooling(place, str(loaded.pooling), loaded.model.config.get_text_config().hidden_size)
        for feature in features:
            feature.finish(self, folder)
        text = summarize_text(self.text)
        if result.rows is not None:
            text["rows"] = result.rows.as_dict()
        manifest = {**self.config, "about": result.about, "text": text, "result": result.measured()}
        write_json(folder / MANIFEST_FILE, manifest)
        write_adapted_card(folder, self.out.name, load_name=load_name(self.out))
        for name, record in result.preparation.items():
            write_json(safe_join(folder, name), record)


def warn_of_cuts(report: CorpusReport) -> None:
    """Warn of files whose rest could not be read, at the end of a run, where the warning is seen."""
    if report.cut_off:
        log.warning("The rest of these files could not be read: %s.", report.list_cut_off())
