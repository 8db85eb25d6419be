"""What selective masking hides of a text, for people: what a run says, and what goes beside the model.

Task-guided pre-training with selective masking (Gu et al., EMNLP 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from acclimate.masking import Masking
from acclimate.masking.selective import SelectiveMasking, check_cap
from acclimate.masking.token_importance_store import TokenImportanceStore
from acclimate.masking.wrappers import RandomSameCount, StaticMasking
from acclimate.methods import Method, register
from acclimate.methods.selective.cost import ACCOUNT_FILE
from acclimate.methods.selective.options import get_preset
from acclimate.methods.selective.stages import SelectionOptions, find_important_tokens
from acclimate.training.method import AdaptContext


def summarize_masking(marks: TokenImportanceStore, cap: float | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what is masked of the text under a cap, and tell it.

    Texts in which nothing is important are read and give no loss; how many they are is part of the account.

    Args:
        marks: The important tokens of the text.
        cap: Of :class:`acclimate.masking.selective.SelectiveMasking`.
        say: Where to tell it.
    """
    masked, tokens = marks.masked_counts(cap), int(marks.texts[3].sum())
    total, without, texts = int(masked.sum()), int((masked == 0).sum()), len(masked)
    share = total / max(1, tokens)
    say(
        f"Selective masking: {total:,} of {tokens:,} tokens are masked ({share:.1%}); "
        f"{without:,} of {texts:,} texts have no important token and give no loss."
    )
    return {
        "masking": {"texts": texts, "tokens": tokens, "masked": total, "share": share, "texts_without": without},
    }


@register(
    "selective",
    paper="Gu et al., EMNLP 2020",
    summary="MLM that masks the tokens that matter to the end task, found by a classifier of tokens",
)
@dataclass
class Selective(Method):
    """Fine-tune on the task, annotate its important tokens, train a classifier of tokens on them, mask what it finds.

    What is None comes from the preset; each choice is explained in :mod:`acclimate.methods.selective.options`. The
    folder of
    the model gets ``selective.json``: shares, quality of the token classifier, minutes of every stage.

    Attributes:
        preset: Where paper and released code part: ``"paper"`` or ``"released-code"``.
        delta: Threshold of the paper's criterion (0.05; code 0.01).
        criterion: ``"paper"``, or ``"marginal"``, which is ours.
        epsilon: Threshold of the marginal criterion.
        unit: ``"text"`` (paper) or ``"sentence"`` (code).
        stop_words: Words that are never important: ``none`` (paper), ``english`` (code), a file, or another language.
        misclassified: ``"annotate"`` (paper), ``"negative"`` (code) or ``"drop"``.
        same_text: Rows that differ in their second text only: ``"union"`` or ``"each"``.
        finetune_epochs: Of the classifier whose confidence decides; best accuracy on dev.
        finetune_learning_rate: Its peak.
        finetune_batch_size: Its texts a step.
        finetune_length: Tokens that it reads of a text.
        token_epochs: Of the token classifier; best F1 on held-out texts.
        token_learning_rate: Its peak.
        token_batch_size: Its texts a step (64; code 32).
        token_length: Tokens of a text that it is trained on.
        class_weight: Weight of the important tokens in its loss (1.5; code 3).
        special_tokens: Whether special tokens count in its loss (code).
        cap: Largest share of a text that is masked (1: all that is found; code 0.15).
        fate: Whether a chosen token becomes the mask, a random token or stays is drawn once a text (``"static"``, as
            in the paper's masked corpora) or at each reading (``"dynamic"``).
        choice: ``"important"``, or the control ``"random-same-count"``: as many tokens of each text at random.
        annotator_seed: Of the models before the adaptation, so that all its seeds share them; None: that of the run.
    """

    needs_task: ClassVar[bool] = True
    sets_mask_rate: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]] = ("stop_words",)

    preset: Literal["paper", "released-code"] = "paper"
    delta: float | None = None
    criterion: Literal["paper", "marginal"] = "paper"
    epsilon: float = 0.05
    unit: Literal["text", "sentence"] | None = None
    stop_words: str | None = None
    misclassified: Literal["annotate", "negative", "drop"] | None = None
    same_text: Literal["union", "each"] = "union"
    finetune_epochs: int = 10
    finetune_learning_rate: float = 2e-5
    finetune_batch_size: int = 64
    finetune_length: int = 256
    token_epochs: int = 10
    token_learning_rate: float = 1e-5
    token_batch_size: int | None = None
    token_length: int = 128
    class_weight: float | None = None
    special_tokens: bool | None = None
    cap: float | None = None
    fate: Literal["static", "dynamic"] = "static"
    choice: Literal["important", "random-same-count"] = "important"
    annotator_seed: int | None = 42

    def __post_init__(self) -> None:
        """Fill in what the preset says, and check the cap now instead of when the stages are done."""
        for name, value in get_preset(self.preset).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        check_cap(self.cap)
        self._masking: Masking | None = None

    def prepare(self, run: AdaptContext) -> None:
        """Find the important tokens of the text, or take them from the cache."""
        seed = run.seed if self.annotator_seed is None else self.annotator_seed
        marks, account = find_important_tokens(run, SelectionOptions.of(self.settings(), seed))
        run.accounts[ACCOUNT_FILE] = account | summarize_masking(marks, self.cap, run.say)
        masking: Masking = SelectiveMasking(store=marks, cap=self.cap)
        masking = masking if self.choice == "important" else RandomSameCount.matching(masking)
        self._masking = masking if self.fate == "dynamic" else StaticMasking(masking, run.seed)

    def masking(self, rate: float) -> Masking | None:
        """Return the masking of important tokens, whatever the rate."""
        return self._masking
