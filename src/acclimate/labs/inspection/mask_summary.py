"""Statistics of masked text, and their presentation as a page and in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.parts.masking import Vocabulary
from acclimate.parts.masking.words import Words, is_punctuation
from acclimate.parts.objectives import Batch
from acclimate.report.masked_text import IMPORTANT, REPLACEMENTS, as_html, as_rich
from acclimate.report.page import render_template

if TYPE_CHECKING:
    from rich.console import RenderableType

MIN_OCCURRENCES = 20
"""Minimum frequency of a word for its masking rate to be listed."""
LISTED = 12
"""Length of each list of words."""
COLUMNS = {
    "rate": ("masked", "Share of the maskable tokens that are masked."),
    "first_rate": ("first", "Share masked of the tokens that start a word."),
    "later_rate": ("later", "Share masked of the tokens that continue a word."),
    "whole": ("whole", "Share of multi-token words with a mask that are masked completely."),
    "stop_words": ("stop words", "Share of stop words among the words with a mask."),
    "punctuation": ("punct.", "Share of punctuation among the words with a mask."),
    "run": ("run", "Mean length of a masked span in tokens."),
    "untouched": ("unmasked", "Share of texts without any mask."),
}
TERMINAL_COLUMNS = ("rate", "first_rate", "later_rate", "whole", "stop_words", "run")
TERMINAL_SAMPLES = 2
"""Samples shown in the terminal; the page has all of them."""


def count_masks(
    batches: Iterable[Batch], vocabulary: Vocabulary, special: np.ndarray, stop_words: Collection[str]
) -> dict[str, Any]:
    """Compute statistics of masked texts.

    Args:
        batches: Masked texts.
        vocabulary: Surface forms of the token ids.
        special: Ids that are never masked.
        stop_words: Lower-case stop words.

    Returns:
        JSON values. ``tokens``: maskable tokens; ``masked``: masked ones; ``rate``: their ratio; ``first_rate`` and
        ``later_rate``: the rate of tokens that start and that continue a word; ``replacements``: shares of the masked
        tokens by replacement (``mask``, ``random``, ``unchanged``); ``run``: mean length of a masked span in tokens;
        ``untouched``: share of texts without a mask; ``whole``: among the multi-token words with a masked token, the
        share in which all tokens are masked; ``stop_words`` and ``punctuation``: their share among the words with a
        masked token; ``all_stop_words`` and ``all_punctuation``: their share among all words; ``often`` and
        ``mostly``: the words masked most often, and those with the highest masking rate, each as word, times masked,
        and occurrences. A ratio is None if its denominator is zero.
    """
    total: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    for batch in batches:
        original, masked, text = batch.original.numpy(), batch.masked.numpy(), batch.text.numpy()
        chosen = batch.labels.numpy() >= 0
        words = Words.of(original, text, (text >= 0) & ~np.isin(original, special), vocabulary.subwords)
        is_masked = chosen.ravel()[words.positions]
        starts = np.zeros(len(is_masked), dtype=bool)
        starts[words.starts[:-1]] = True
        masked_per_word = np.add.reduceat(is_masked, words.starts[:-1]) if len(words) else np.zeros(0, int)
        touched, several = masked_per_word > 0, words.lengths > 1
        spelled = words.surface_forms(original, vocabulary.subwords, lowercase=True)
        seen.update(spelled)
        hit.update(word for word, one in zip(spelled, touched, strict=True) if one)
        continues_span = np.zeros(text.size, dtype=bool)
        flat, text_of = chosen.ravel(), text.ravel()
        continues_span[1:] = flat[1:] & flat[:-1] & (text_of[1:] == text_of[:-1])
        total.update(
            tokens=len(is_masked),
            masked=int(is_masked.sum()),
            first=int(starts.sum()),
            first_masked=int((is_masked & starts).sum()),
            mask=int((chosen & (masked == vocabulary.mask_id)).sum()),
            unchanged=int((chosen & (masked == original)).sum()),
            runs=int((flat & ~continues_span).sum()),
            texts=batch.texts,
            touched=len(np.unique(text[chosen])),
            several=int((touched & several).sum()),
            whole=int((several & (masked_per_word == words.lengths)).sum()),
        )
    stops = {word for word in seen if word in stop_words}
    signs = {word for word in seen if word and all(map(is_punctuation, word))}
    later, later_masked = total["tokens"] - total["first"], total["masked"] - total["first_masked"]
    listable = [word for word in seen if word and not word.startswith("\0") and word not in signs]
    rates = {word: hit[word] / seen[word] for word in listable if seen[word] >= MIN_OCCURRENCES and hit[word]}
    return {
        "tokens": total["tokens"],
        "masked": total["masked"],
        "rate": _ratio(total["masked"], total["tokens"]),
        "first_rate": _ratio(total["first_masked"], total["first"]),
        "later_rate": _ratio(later_masked, later),
        "replacements": {
            "mask": _ratio(total["mask"], total["masked"]),
            "random": _ratio(total["masked"] - total["mask"] - total["unchanged"], total["masked"]),
            "unchanged": _ratio(total["unchanged"], total["masked"]),
        },
        "run": _ratio(total["masked"], total["runs"]),
        "untouched": 1 - (_ratio(total["touched"], total["texts"]) or 0),
        "whole": _ratio(total["whole"], total["several"]),
        "stop_words": _ratio(sum(hit[word] for word in stops), hit.total()),
        "all_stop_words": _ratio(sum(seen[word] for word in stops), seen.total()),
        "punctuation": _ratio(sum(hit[word] for word in signs), hit.total()),
        "all_punctuation": _ratio(sum(seen[word] for word in signs), seen.total()),
        "often": _word_list(
            sorted((word for word in listable if hit[word]), key=lambda word: (-hit[word], word)), hit, seen
        ),
        "mostly": _word_list(sorted(rates, key=lambda word: (-rates[word], -seen[word], word)), hit, seen),
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _word_list(words: list[str], hit: Counter[str], seen: Counter[str]) -> list[list[Any]]:
    return [[word, hit[word], seen[word]] for word in words[:LISTED]]


def render_page(report: dict[str, Any]) -> str:
    """Return the preview as a self-contained HTML page. All text from data is escaped."""
    return render_template(
        "acclimate.labs.inspection",
        "masks.html.j2",
        report=report,
        columns=COLUMNS,
        format_count=_format,
        all_words=_all_words(report),
        as_html=as_html,
        replacements=REPLACEMENTS,
        important=IMPORTANT if "selective" in report else "",
        min_occurrences=MIN_OCCURRENCES,
    )


def _format(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if name == "run" else f"{100 * value:.1f} %"


def _all_words(report: dict[str, Any]) -> dict[str, str]:
    """Return the reference row: the shares among all words."""
    counts = report["maskings"][0]["counts"]
    return {name: _format(name, counts[f"all_{name}"]) for name in ("stop_words", "punctuation")}


def mask_tables(report: dict[str, Any]) -> list[RenderableType]:
    """Return the output for a terminal of 80 columns: statistics, the most masked words, and samples."""
    import rich.box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in TERMINAL_COLUMNS:
        table.add_column(COLUMNS[name][0], justify="right", no_wrap=True)
    for masking in report["maskings"]:
        table.add_row(Text(masking["label"]), *(_format(name, masking["counts"][name]) for name in TERMINAL_COLUMNS))
    all_words = _all_words(report)
    table.add_row("all words", *(all_words.get(name, "") for name in TERMINAL_COLUMNS), style="dim")
    notes = "; ".join(
        f"{COLUMNS[name][0]}: {COLUMNS[name][1][:1].lower()}{COLUMNS[name][1][1:-1]}" for name in TERMINAL_COLUMNS
    )
    shown: list[RenderableType] = [table, Text(f"{notes}.\n", style="dim")]
    for masking in report["maskings"]:
        words = ", ".join(f"{word} {hit / seen:.0%}" for word, hit, seen in masking["counts"]["mostly"][:8])
        shown.append(Text.assemble((masking["label"], "bold"), f", highest masking rate: {words or '–'}"))
    shown.append(Text("\n[replaced by the mask token] [replaced→by another token] [unchanged but predicted=]", "dim"))
    if "selective" in report:
        shown.append(Text(f"*{IMPORTANT}*", "dim"))
    for number, sample in enumerate(report["samples"][:TERMINAL_SAMPLES], start=1):
        shown.append(Text(f"\nText {number}, {sample['tokens']} tokens", style="bold"))
        for label, pieces in sample["maskings"].items():
            shown.append(Text.assemble((f"{label}: ", "cyan"), as_rich(pieces)))
    return shown
