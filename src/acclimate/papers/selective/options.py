"""Options of selective masking, with presets for the paper and for its released code where the two differ.

The released code is from thunlp/SelectiveMasking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from acclimate.api import MIN_LENGTH, Published, UserError, build_dataclass, preset_values


@dataclass
class AnnotationOptions:
    """How important tokens are found (Gu et al., EMNLP 2020, section 2.2). The defaults are the paper's.

    Attributes:
        delta: A token w is important if S = P(y|s) - P(y|s'w) is below this value (Eq. 1); s is the text, s' the
            buffer, y the label. The paper always uses 0.05, the released configurations 0.01. Between -1 and 1.
        criterion: ``"paper"`` is Eq. 1. It does not measure what a token adds: once s' is nearly as confident as the
            text, every further token that adds a little is important; and if the class is likely without any text, the
            first tokens are important whatever they are. ``"marginal"`` is not in the paper: a token is important if
            it raises the confidence, P(y|s'w) - P(y|s') > epsilon.
        epsilon: Threshold of the marginal criterion.
        unit: What s is: the whole ``"text"`` (paper), or each ``"sentence"`` of it, scored against the label of the
            text (code). Texts of a pair are never split.
        stop_words: Words that are never important but still enter the buffer: ``"none"`` (paper), ``"english"`` (code;
            its list differs slightly), a file with one word per line, or another language such as ``"german"``.
        misclassified: What to do with units that the classifier misclassifies: ``"annotate"`` them with P of the
            correct label (the paper does not mention them), keep them as ``"negative"`` examples without important
            tokens (code), or ``"drop"`` them.
        same_text: Rows that differ only in their second text, such as several aspects of a sentence: ``"union"``
            merges them into one annotated text, in which a token is important if it is important in any of the rows
            (code; the token classifier does not see the aspect, so separate rows would contradict each other).
            ``"each"`` keeps the rows separate.

    Raises:
        UserError: If a threshold is not between -1 and 1.
    """

    delta: Annotated[float, Published({"released-code": 0.01})] = 0.05
    criterion: Literal["paper", "marginal"] = "paper"
    epsilon: float = 0.05
    unit: Annotated[Literal["text", "sentence"], Published({"released-code": "sentence"})] = "text"
    stop_words: Annotated[str, Published({"released-code": "english"})] = "none"
    misclassified: Annotated[Literal["annotate", "negative", "drop"], Published({"released-code": "negative"})] = (
        "annotate"
    )
    same_text: Literal["union", "each"] = "union"

    def __post_init__(self) -> None:
        """Validate the thresholds."""
        for name in ("delta", "epsilon"):
            if not -1 <= getattr(self, name) <= 1:
                raise UserError(
                    f"{name} is a difference of probabilities, so between -1 and 1, not {getattr(self, name)}."
                )


@dataclass(frozen=True)
class TokenTrainingOptions:
    """How the token classifier is trained (appendix B.2, "Train NN"). The defaults are the paper's.

    Attributes:
        epochs: Epochs. The weights with the best F1 on the held-out texts are kept (code; the paper does not say), and
            among equal F1 those with the lowest loss.
        learning_rate: Peak learning rate, after a warm-up over a tenth of the steps; it then decays linearly to zero.
        batch_size: Texts per optimizer step. Paper 64, code 32.
        max_length: Maximum tokens per text, special tokens included; the rest is ignored.
        class_weight: Weight of the important tokens in the loss. Paper 1.5, code 3.
        special_tokens: Whether special tokens count in the loss, as unimportant (code).
        held_out: Share of the annotated texts that is held out for evaluation.

    Raises:
        UserError: If a value is out of range.
    """

    epochs: int = 10
    learning_rate: float = 1e-5
    batch_size: int = 64
    max_length: int = 128
    class_weight: float = 1.5
    special_tokens: bool = False
    held_out: float = 0.1

    def __post_init__(self) -> None:
        """Validate the numbers."""
        for name in ("epochs", "batch_size", "learning_rate", "class_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"Token classifier: {name} must be positive and finite, not {getattr(self, name)}.")
        if self.max_length < MIN_LENGTH:
            raise UserError(
                f"Token classifier: max_length={self.max_length} leaves no room for text; give at least {MIN_LENGTH}."
            )
        if not 0 < self.held_out < 1:
            raise UserError(
                f"Token classifier: held_out is a share of the texts, so between 0 and 1, not {self.held_out}."
            )


def annotation_options(preset_name: str = "paper", /, **given: Any) -> AnnotationOptions:
    """Return the options of a preset with the ``given`` changes; strings are converted.

    Raises:
        UserError: If a name is unknown or a value is invalid.
    """
    values = {**preset_values(AnnotationOptions, preset_name), **given}
    return build_dataclass(AnnotationOptions, "annotation", preset_name, values)
