"""Where the paper and its released code part: every such choice is an option, and each side a preset."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from acclimate.errors import UserError, unknown_name_error
from acclimate.registry import build_dataclass

Criterion = Literal["paper", "marginal"]
UnitKind = Literal["text", "sentence"]
Misclassified = Literal["annotate", "negative", "drop"]


@dataclass(frozen=True)
class AnnotationOptions:
    """How important tokens are found (Gu et al., EMNLP 2020, section 2.2). The defaults are the paper's.

    Attributes:
        delta: A token is important if S = P(y|s) - P(y|s'w) is below it (Eq. 1). Paper: 0.05 in all circumstances;
            the released configurations say 0.01. In probability, so between -1 and 1.
        criterion: ``"paper"`` is Eq. 1. It does not ask what a token adds: where s' is nearly as confident as the
            text, every further token that adds a little is important, and where the class is likely without any
            text, the first tokens are, whatever they say. ``"marginal"`` is ours, not the paper's: a token is
            important if it raises the confidence, P(y|s'w) - P(y|s') > epsilon.
        epsilon: Threshold of the marginal criterion.
        unit: What s is: the whole ``"text"`` (paper), or each ``"sentence"`` of it, scored against the label of the
            text (code). Texts of pairs are never cut.
        stop_words: Words that are never important, though they stand in s' as any other: ``"none"`` (paper),
            ``"english"`` (code; the lists of the two libraries differ a little), a file with a word a line, or another
            language, as ``"german"``.
        misclassified: What becomes of a unit whose most likely class is not its label. ``"annotate"``: as any other,
            P is that of the label all the same (paper, which says nothing of them); ``"negative"``: kept, with no
            token important (code); ``"drop"``: left out.
        same_text: Rows that differ only in their second text, such as the aspects of a sentence: ``"union"`` makes
            one annotated text, a token of which is important if it is for any row (code; the token classifier sees no
            aspect, so the others would contradict each other); ``"each"`` leaves them apart.
    """

    delta: float = 0.05
    criterion: Criterion = "paper"
    epsilon: float = 0.05
    unit: UnitKind = "text"
    stop_words: str = "none"
    misclassified: Misclassified = "annotate"
    same_text: Literal["union", "each"] = "union"


@dataclass(frozen=True)
class TokenTrainingOptions:
    """How the token classifier is trained (appendix B.2, "Train NN"). The defaults are the paper's.

    Attributes:
        epochs: Passes; the weights of the best F1 on the held-out texts are kept (code; the paper does not say), of
            equals those of the lowest loss.
        learning_rate: The peak, after a warm-up over a tenth of the steps; linear to zero.
        batch_size: Texts a step. Paper 64, code 32.
        max_length: Tokens of a text, special ones included; the rest is not trained on.
        class_weight: Weight of the important tokens in the loss. Paper 1.5, code 3.
        special_tokens: Whether special tokens count in the loss, as unimportant (code).
        held_out: Share of the annotated texts that only measure.
    """

    epochs: int = 10
    learning_rate: float = 1e-5
    batch_size: int = 64
    max_length: int = 128
    class_weight: float = 1.5
    special_tokens: bool = False
    held_out: float = 0.1


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "delta": 0.05,
        "unit": "text",
        "stop_words": "none",
        "misclassified": "annotate",
        "cap": 1.0,
        "class_weight": 1.5,
        "token_batch_size": 64,
        "special_tokens": False,
    },
    "released-code": {
        "delta": 0.01,
        "unit": "sentence",
        "stop_words": "english",
        "misclassified": "negative",
        "cap": 0.15,
        "class_weight": 3.0,
        "token_batch_size": 32,
        "special_tokens": True,
    },
}
"""What the paper and the code at thunlp/SelectiveMasking do where they differ.

``cap`` is the largest share of a text that is masked: the best by the score of the token classifier, at least one of
those that it finds. The code caps each sentence, here it is each row of the corpus.
"""


def get_preset(name: str) -> dict[str, Any]:
    """Return the values of a preset.

    Raises:
        UserError: If there is none of that name.
    """
    if name not in PRESETS:
        raise unknown_name_error("preset", name, PRESETS)
    return dict(PRESETS[name])


def annotation_options(preset_name: str = "paper", **given: Any) -> AnnotationOptions:
    """Make options from a preset and what departs from it; strings are converted.

    Raises:
        UserError: If a name is unknown or a value does not fit.
    """
    names = {field.name for field in fields(AnnotationOptions)}
    values = {name: value for name, value in get_preset(preset_name).items() if name in names}
    options = build_dataclass(AnnotationOptions, "annotation", preset_name, {**values, **given})
    for name in ("delta", "epsilon"):
        if not -1 <= getattr(options, name) <= 1:
            raise UserError(f"{name}={getattr(options, name)} is a difference of probabilities: between -1 and 1.")
    return options
