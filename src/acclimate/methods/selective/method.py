"""Task-guided pre-training with selective masking (Gu et al., EMNLP 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from acclimate.masking import Masking
from acclimate.masking.selective import SelectiveMasking, check_cap
from acclimate.masking.token_importance_store import TokenImportanceStore
from acclimate.masking.wrappers import RandomSameCount, StaticMasking
from acclimate.methods import Method, register
from acclimate.methods.selective.annotator import FineTuningOptions
from acclimate.methods.selective.cost import ACCOUNT_FILE
from acclimate.methods.selective.options import TokenTrainingOptions, annotation_options, get_preset
from acclimate.methods.selective.stages import SelectionOptions, find_important_tokens
from acclimate.training.method import AdaptContext


@register(
    "selective",
    paper="Gu et al., EMNLP 2020",
    summary="MLM that masks the tokens that matter to the end task, as predicted by a token classifier",
)
@dataclass
class Selective(Method):
    """Mask the tokens that matter to the end task.

    Four stages come first: fine-tune a classifier on the task, find the important tokens of the task's texts by its
    confidence, train a token classifier on these annotations, and predict the important tokens of the domain text.

    Parameters with the default None take their value from the preset. :mod:`acclimate.methods.selective.options`
    explains them in detail. The model folder gets ``selective.json`` with the share of important tokens, the quality
    of the token classifier and the minutes of every stage.

    Attributes:
        preset: ``"paper"`` or ``"released-code"``: the source of values on which the two differ.
        delta: Threshold of the paper's criterion. Preset: 0.05; code 0.01.
        criterion: Criterion of importance: ``"paper"``, or ``"marginal"``, which is not in the paper.
        epsilon: Threshold of the marginal criterion.
        unit: What is annotated: each ``"text"`` or each ``"sentence"``. Preset: text; code sentence.
        stop_words: Words that are never important: ``none``, ``english``, a file, or another language. Preset: none;
            code english.
        misclassified: What to do with misclassified texts: ``"annotate"``, ``"negative"`` or ``"drop"``. Preset:
            annotate; code negative.
        same_text: Rows that differ only in their second text: merge them (``"union"``) or not (``"each"``).
        finetune_epochs: Epochs of the fine-tuned classifier; the best accuracy on dev is kept.
        finetune_learning_rate: Peak learning rate of the fine-tuned classifier.
        finetune_batch_size: Texts per optimizer step of the fine-tuned classifier.
        finetune_length: Maximum tokens per text of the fine-tuned classifier.
        token_epochs: Epochs of the token classifier; the best F1 on held-out texts is kept.
        token_learning_rate: Peak learning rate of the token classifier.
        token_batch_size: Texts per optimizer step of the token classifier. Preset: 64; code 32.
        token_length: Maximum tokens per training text of the token classifier.
        class_weight: Weight of important tokens in the token classifier's loss. Preset: 1.5; code 3.
        special_tokens: Whether special tokens count in the token classifier's loss. Preset: no; code yes.
        cap: Maximum share of a text that is masked. Preset: 1, which masks all important tokens; code 0.15.
        fate: Whether a selected token becomes the mask token, a random token or stays unchanged is drawn once per text
            (``"static"``, as in the paper's masked corpora) or at each epoch (``"dynamic"``).
        choice: ``"important"``, or the control ``"random-same-count"``, which masks as many random tokens of each
            text.
        annotator_seed: Random seed of the four stages, so that adaptations with different seeds share them; None for
            the seed of the run.
    """

    needs_task: ClassVar[bool] = True
    sets_mask_rate: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]] = ("stop_words",)

    preset: Literal["paper", "released-code"] = "paper"
    # Annotation of the task's texts
    delta: float | None = None
    criterion: Literal["paper", "marginal"] = "paper"
    epsilon: float = 0.05
    unit: Literal["text", "sentence"] | None = None
    stop_words: str | None = None
    misclassified: Literal["annotate", "negative", "drop"] | None = None
    same_text: Literal["union", "each"] = "union"
    # Fine-tuned classifier
    finetune_epochs: int = 10
    finetune_learning_rate: float = 2e-5
    finetune_batch_size: int = 64
    finetune_length: int = 256
    # Token classifier
    token_epochs: int = 10
    token_learning_rate: float = 1e-5
    token_batch_size: int | None = None
    token_length: int = 128
    class_weight: float | None = None
    special_tokens: bool | None = None
    # Masking of the domain text
    cap: float | None = None
    fate: Literal["static", "dynamic"] = "static"
    choice: Literal["important", "random-same-count"] = "important"
    annotator_seed: int | None = 42

    def __post_init__(self) -> None:
        """Replace None by the values of the preset, and validate all values before any stage runs."""
        for name, value in get_preset(self.preset).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        check_cap(self.cap)
        self.selection_options(seed=0)
        self._masking: Masking | None = None  # set by `prepare`

    def selection_options(self, seed: int) -> SelectionOptions:
        """Return the options of the four stages.

        Raises:
            UserError: If a value is out of range.
        """
        given: Any = self  # no value is None any more, which mypy cannot know
        return SelectionOptions(
            FineTuningOptions(
                epochs=given.finetune_epochs,
                learning_rate=given.finetune_learning_rate,
                batch_size=given.finetune_batch_size,
                max_length=given.finetune_length,
            ),
            annotation_options(
                delta=given.delta,
                criterion=given.criterion,
                epsilon=given.epsilon,
                unit=given.unit,
                stop_words=given.stop_words,
                misclassified=given.misclassified,
                same_text=given.same_text,
            ),
            TokenTrainingOptions(
                epochs=given.token_epochs,
                learning_rate=given.token_learning_rate,
                batch_size=given.token_batch_size,
                max_length=given.token_length,
                class_weight=given.class_weight,
                special_tokens=given.special_tokens,
            ),
            seed,
        )

    def prepare(self, run: AdaptContext) -> None:
        """Find the important tokens of the text, or read them from the cache."""
        seed = run.seed if self.annotator_seed is None else self.annotator_seed
        marks, account = find_important_tokens(run, self.selection_options(seed))
        run.accounts[ACCOUNT_FILE] = {**account, "masking": self._summarize_masking(marks, run)}
        masking: Masking = SelectiveMasking(store=marks, cap=self.cap)
        masking = masking if self.choice == "important" else RandomSameCount.matching(masking)
        self._masking = masking if self.fate == "dynamic" else StaticMasking(masking, run.seed)

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
