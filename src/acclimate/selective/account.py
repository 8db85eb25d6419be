"""What selective masking hides of a text, for people: what a run says, and what goes beside the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acclimate.masking.marks import Marks


def text_account(marks: Marks, cap: float | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what is masked of the text under a cap, and tell it.

    Texts in which nothing is important are read and give no loss; how many they are is part of the account.

    Args:
        marks: The important tokens of the text.
        cap: Of :class:`acclimate.masking.selective.SelectiveMasking`.
        say: Where to tell it.
    """
    masked, tokens = marks.masked(cap), int(marks.texts[3].sum())
    total, without, texts = int(masked.sum()), int((masked == 0).sum()), len(masked)
    share = total / max(1, tokens)
    say(
        f"Selective masking: {total:,} of {tokens:,} tokens are masked ({share:.1%}); "
        f"{without:,} of {texts:,} texts have no important token and give no loss."
    )
    return {
        "masking": {"texts": texts, "tokens": tokens, "masked": total, "share": share, "texts_without": without},
    }
