"""Task-guided pre-training with selective masking (Gu et al., EMNLP 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from acclimate.api import (
    AdaptContext,
    Masking,
    Method,
    Published,
    RandomSameCount,
    SelectiveMasking,
    StaticMasking,
    TokenImportanceStore,
    UserError,
    build,
    check_cap,
    read_stop_words,
    register_method,
    with_presets,
)
from acclimate.papers.selective.command_options import AnnotatorOptions
from acclimate.papers.selective.cost import SUMMARY_FILE
from acclimate.papers.selective.options import AnnotationOptions, TokenTrainingOptions, annotation_options
from acclimate.papers.selective.stages import SelectionOptions, find_important_tokens


@register_method(
    "selective",
    paper="Gu et al., EMNLP 2020",
    summary="MLM that masks the tokens that matter to the end task, as predicted by a token classifier",
)
@with_presets
@dataclass
class Selective(Method, AnnotationOptions):
    """Mask the tokens that matter to the end task.

    Four stages come first: fine-tune a classifier on the task, find the important tokens of the task's texts by its
    confidence, train a token classifier on these annotations, and predict the important tokens of the domain text.

    The model folder gets ``selective.json`` with the share of important tokens, the quality of the token classifier
    and the minutes of every stage.

    Attributes:
        preset: ``"paper"`` or ``"released-code"``: the source of values on which the two differ.
        finetune_epochs: Epochs of the fine-tuned classifier; the best accuracy on dev is kept.
        finetune_learning_rate: Peak learning rate of the fine-tuned classifier.
        finetune_batch_size: Texts per optimizer step of the fine-tuned classifier.
        finetune_length: Maximum tokens per text of the fine-tuned classifier.
        token_epochs: Epochs of the token classifier; the best F1 on held-out texts is kept.
        token_learning_rate: Peak learning rate of the token classifier.
        token_batch_size: Texts per optimizer step of the token classifier.
        token_length: Maximum tokens per training text of the token classifier.
        class_weight: Weight of important tokens in the token classifier's loss.
        special_tokens: Whether special tokens count in the token classifier's loss.
        cap: Maximum share of a row that is masked, with the highest scores first; 1 masks all important tokens. The
            released code applies it to each sentence.
        replacement: Whether a selected token becomes the mask token, a random token or stays unchanged is drawn once
            per text (``"static"``, as in the paper's masked corpora) or at each epoch (``"dynamic"``).
        choice: ``"important"``, or the control ``"random-same-count"``, which masks as many random tokens of each
            text.
        annotator_seed: Random seed of the four stages, so that adaptations with different seeds share them; None for
            the seed of the run.
    """

    purpose: ClassVar[str] = "Use the end task"
    preparation: ClassVar[str] = "four stages on the task and the text"
    needs_task: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "chooses the tokens to mask"
    sets_mask_rate: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]] = ("stop_words",)
    paper_options: ClassVar[Mapping[str, Any]] = {"steps": 200_000, "batch_size": 256, "max_length": 256}

    preset: Literal["paper", "released-code"] = "paper"
    # Fine-tuned classifier
    finetune_epochs: int = AnnotatorOptions.epochs
    finetune_learning_rate: float = AnnotatorOptions.learning_rate
    finetune_batch_size: int = AnnotatorOptions.batch_size
    finetune_length: int = AnnotatorOptions.max_length
    # Token classifier
    token_epochs: int = TokenTrainingOptions.epochs
    token_learning_rate: float = TokenTrainingOptions.learning_rate
    token_batch_size: Annotated[int, Published({"released-code": 32})] = TokenTrainingOptions.batch_size
    token_length: int = TokenTrainingOptions.max_length
    class_weight: Annotated[float, Published({"released-code": 3.0})] = TokenTrainingOptions.class_weight
    special_tokens: Annotated[bool, Published({"released-code": True})] = TokenTrainingOptions.special_tokens
    # Masking of the domain text
    cap: Annotated[float, Published({"released-code": 0.15})] = 1.0
    replacement: Literal["static", "dynamic"] = "static"
    choice: Literal["important", "random-same-count"] = "important"
    annotator_seed: int | None = 42

    def __post_init__(self) -> None:
        """Validate all values before any stage runs."""
        check_cap(self.cap)
        self.selection_options(seed=0)
        self._masking: Masking | None = None  # set by `prepare`

    def selection_options(self, seed: int) -> SelectionOptions:
        """Return the options of the four stages.

        Raises:
            UserError: If a value is out of range.
        """
        rule = {field.name: getattr(self, field.name) for field in dataclasses.fields(AnnotationOptions)}
        try:
            tuning = build(AnnotatorOptions, **self._with_prefix("finetune_"))
        except UserError as error:
            raise UserError(f"Fine-tuned classifier: {error}") from error
        return SelectionOptions(
            tuning,
            annotation_options(**rule),
            TokenTrainingOptions(
                **self._with_prefix("token_"), class_weight=self.class_weight, special_tokens=self.special_tokens
            ),
            seed,
        )

    def _with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return the parameters of one classifier under the names of its options."""
        return {
            name.removeprefix(prefix).replace("length", "max_length"): value
            for name, value in self.settings().items()
            if name.startswith(prefix)
        }

    def check(self, run: AdaptContext) -> None:
        """Check that there are stop words."""
        super().check(run)
        read_stop_words(self.stop_words, run.tokenizer)

    def prepare(self, run: AdaptContext) -> None:
        """Find the important tokens of the text, or read them from the cache."""
        seed = run.seed if self.annotator_seed is None else self.annotator_seed
        marks, summary = find_important_tokens(run, self.selection_options(seed))
        run.preparation[SUMMARY_FILE] = {**summary, "masking": self._summarize_masking(marks, run)}
        masking: Masking = SelectiveMasking(store=marks, cap=self.cap)
        masking = masking if self.choice == "important" else RandomSameCount.matching(masking)
        self._masking = masking if self.replacement == "dynamic" else StaticMasking(masking, run.seed)

    def _summarize_masking(self, marks: TokenImportanceStore, run: AdaptContext) -> dict[str, Any]:
        """Count and report what is masked. Texts without an important token are read but contribute no loss."""
        masked, tokens = marks.masked_counts(self.cap), int(marks.texts[3].sum())
        total, without, texts = int(masked.sum()), int((masked == 0).sum()), len(masked)
        share = total / max(1, tokens)
        run.say(
            f"Selective masking: {total:,} of {tokens:,} tokens are masked ({share:.1%}); "
            f"{without:,} of {texts:,} texts have no important token and contribute no loss."
        )
        return {"texts": texts, "tokens": tokens, "masked": total, "share": share, "texts_without": without}

    def masking(self, rate: float) -> Masking | None:
        """Return the masking of important tokens; it does not depend on ``rate``."""
        return self._masking
