"""The card of a model that was adapted, or trained from scratch: made from the account in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acclimate.cards.card import Card, hub_name, settings_table, shown_name, size, table
from acclimate.cards.measured import eval_results, measured_sections
from acclimate.files import read_json

ACCOUNT = "acclimate.json"
TRAINING = (
    *("seed", "batch_size", "max_length", "learning_rate", "warmup", "weight_decay", "mask_rate", "precision"),
    "layout",
)
NOT_MEASURED = (
    "Not measured. `acclimate compare` fine-tunes this model and the one it came from on end tasks with several "
    "seeds, and writes differences with intervals here, and what was lost on general text."
)
LIMITS = (
    "The model knows what its training text says, true or not, with whatever bias that text has. It was not checked "
    "for anything but what stands above."
)


def write_adapted_card(folder: str | Path, name: str, measured: Mapping[str, Any] | None = None) -> Path:
    """Write ``README.md`` into the folder of a model of ``adapt`` or ``pretrain``.

    Args:
        folder: The model, with its ``acclimate.json``.
        name: What to call it.
        measured: What a study measured, see :func:`acclimate.cards.measured.measured_sections`; None: nothing yet.

    Returns:
        The path of the card.
    """
    folder = Path(folder)
    account = read_json(folder / ACCOUNT)
    method, about = account["method"], account.get("about", {})
    scratch = method == "pretrain"
    base = None if scratch else str(account["model"])
    paper = f" ({about['paper']})" if about.get("paper") else ""
    if scratch:
        summary = "A masked language model that was trained from scratch."
    else:
        done = "left as it is" if method == "none" else f"adapted to the text below with the method `{method}`{paper}"
        summary = f"`{shown_name(str(base))}`, {done}."
    if about.get("summary") and not scratch:
        summary += f" In short: {about['summary']}."
    card = Card(
        name,
        "fill-mask",
        summary,
        base=hub_name(base) if base else None,
        tags=[method],
        results=eval_results(measured) if measured else [],
    )
    card.sections = [
        *(measured_sections(measured) if measured else [("Results", NOT_MEASURED)]),
        ("Method", settings_table({"method": method + paper, **_settings(account.get("settings", {}))})),
        ("Training", settings_table(_training(account))),
        ("Data", _data(account)),
        ("Limits", LIMITS),
    ]
    return card.write(folder)


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method: of paths of the machine only the last part."""
    return {name: _without_folders(value) if isinstance(value, str) else value for name, value in given.items()}


def _without_folders(name: str) -> str:
    return name if name.startswith("hf:") else Path(name).name or name


def _training(account: Mapping[str, Any]) -> dict[str, Any]:
    result = account["result"]
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.get("losses", {}).items() if name != "loss")
    masking = account.get("masking") or {}
    return {
        "steps": f"{result['steps']:,}",
        "tokens read": f"{result['tokens']:,}",
        **{name.replace("_", " "): account.get(name) for name in TRAINING},
        "masking": masking.get("name") if isinstance(masking, dict) else masking,
        "loss at the end, nats": losses or None,
        "acclimate": account.get("acclimate"),
    }


def _data(account: Mapping[str, Any]) -> str:
    """List what was read: of paths of the machine only the last part, which is all that others can know."""
    rows, totals = [], []
    for part in account.get("stages") or [account]:
        text = part.get("text") or {}
        sources = text.get("contents") or [{"name": name} for name in text.get("sources", [])]
        for source in sources:
            row = (_without_folders(source["name"]), size(source.get("bytes")), source.get("hash"))
            if row not in rows:
                rows.append(row)
        counts = [f"{text.get('documents', 0):,} documents"]
        counts += [f"{text[name]:,} {word}" for name, word in _LEFT_OUT.items() if text.get(name)]
        totals.append(f"{', '.join(counts)}; hash of all: `{part.get('corpus')}`.")
    shown = table(("source", "size", "hash"), rows[:MOST])
    more = f"\n\nand {len(rows) - MOST:,} more" if len(rows) > MOST else ""
    return shown + more + "\n\n" + "\n\n".join(dict.fromkeys(totals))


MOST = 50
"""Sources that are listed."""
_LEFT_OUT = {
    "duplicates": "duplicates left out",
    "empty": "empty records left out",
    "broken": "broken records left out",
    "elsewhere": "in the other part of a split",
}
