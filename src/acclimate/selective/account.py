"""What selective masking found and cost, for people: what a run says, and the cost table of the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from acclimate.errors import UserError
from acclimate.masking.marks import Marks

ROWS = {
    "finetune": "Finetune BERT",
    "annotate": "Downstream Mask",
    "train": "Train NN",
    "mark": "In-domain Mask",
}
"""The stages and what the paper's Table 3 calls them."""


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


def cost_table(accounts: Mapping[str, Mapping[str, Any]], saved: Mapping[str, float] | None = None) -> str:
    """Render the cost of selective masking as the paper's Table 3 does, in Markdown.

    Args:
        accounts: For each column its account, the content of ``selective.json``.
        saved: For each column the minutes of training that selective masking saved, such as those by which plain
            masking took longer to come to the same score; columns that are not known stay empty.

    Returns:
        A row for each stage, their sum, and what was saved, in minutes.

    Raises:
        UserError: If an account lacks a stage.
    """
    for column, account in accounts.items():
        if missing := [stage for stage in ROWS if "minutes" not in account.get(stage, {})]:
            raise UserError(f"The account of '{column}' has no minutes of: {', '.join(missing)}.")
    lines = [["Minutes", *accounts]]
    for stage, title in ROWS.items():
        lines.append([title, *(_minutes(account[stage]["minutes"]) for account in accounts.values())])
    sums = {name: sum(account[stage]["minutes"] for stage in ROWS) for name, account in accounts.items()}
    lines.append(["**Sum**", *map(_minutes, sums.values())])
    if saved is not None:
        lines.append(["Saved cost", *(_minutes(saved[name]) if name in saved else "" for name in accounts)])
    rule = "|---|" + "--:|" * len(accounts)
    head, *body = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([head, rule, *body])


def _minutes(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
