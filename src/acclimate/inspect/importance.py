"""`acclimate inspect importance`: importance of heads and units on several domains, compared with chance and seeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from acclimate.corpus import Corpus, tokenize
from acclimate.device import choose_precision, default_device, to_device
from acclimate.errors import UserError, check_not_negative, check_positive, unknown_name_error
from acclimate.files import atomic_folder, check_replaceable, record_files, write_json
from acclimate.inspect.importance_plots import draw_importance
from acclimate.inspect.similarity import EDGES, correlations, cosines, random_similarity, shares
from acclimate.locks import with_output_lock
from acclimate.masking import RandomMasking
from acclimate.models import attach, dropout_rates, load_language_model
from acclimate.models.gates import PARTS, parse_parts
from acclimate.modules import virtual_ids
from acclimate.training.importance import MeasuredImportance, measure_importance
from acclimate.training.method import AdaptContext, cache_folder
from acclimate.training.options import check_length
from acclimate.updates import normalise_importance
from acclimate.version import __version__

REPORT, TENSORS = "importance.json", "importance.safetensors"
Text = str | Path | Sequence[str | Path] | Corpus


@dataclass(frozen=True)
class ImportanceResult:
    """Result of an inspection of importance.

    Attributes:
        report: JSON values, as in ``importance.json``.
        raw: Measured scores of each domain and part, (seeds, layers, units).
        normalised: The same scores after normalisation (Eq. 10).
    """

    report: dict[str, Any]
    raw: dict[str, dict[str, Tensor]]
    normalised: dict[str, dict[str, Tensor]]


@with_output_lock
def inspect_importance(
    model: str | Path,
    corpora: Mapping[str, Text],
    out: str | Path | None = None,
    *,
    parts: str | Iterable[str] = "H",
    tokens: int = 1_640_000,
    error: float = 0.03,
    seeds: Iterable[int] = (0,),
    reads: Literal["hidden", "logits"] = "hidden",
    protect: Literal["unusual", "important"] = "unusual",
    max_length: int = 128,
    dropout: float | None = None,
    precision: str = "auto",
    text_column: str = "text",
    progress: bool = True,
) -> ImportanceResult:
    """Measure importance for general knowledge on several domains and compare the domains (DGA, Section 4.3).

    The cache is shared with ``adapt --method dga``: scores for the same model, text, seed and settings are measured
    once. Similarities are reported next to those of random scores after the same normalisation
    (:func:`acclimate.inspect.random_similarity`) and, with several seeds, next to those between seeds of one domain.

    Args:
        model: Model folder or hub name.
        corpora: Text of each domain, by name.
        out: Output directory for ``importance.json``, ``importance.safetensors`` (``DOMAIN/SEED/PART/raw`` and
            ``.../normalised``) and the figures; None writes nothing.
        parts: Letters of the parts: H attention heads, I intermediate and O output units of the feed-forward layers,
            E embedding units.
        tokens: Maximum number of tokens to measure on, per domain.
        error: Standard error of the normalised scores at which measuring stops
            (:func:`acclimate.updates.estimate_sampling_error`); 0 reads all ``tokens``.
        seeds: Random seeds of the text sample and the dropout masks.
        reads: See :func:`acclimate.updates.summed_importance`.
        protect: See :func:`acclimate.updates.normalise_importance`.
        max_length: Maximum tokens per text.
        dropout: Dropout rate of all encoder layers, instead of the rate in the model's configuration.
        precision: ``fp32``, ``bf16``, or ``auto``.
        text_column: Column that holds the text in tables and JSON lines.
        progress: Show progress bars.

    Raises:
        UserError: If the model has no dropout, or an argument is invalid.
    """
    letters = [letter.strip() for letter in parse_parts(parts)]
    seed_list = list(seeds)
    _check(corpora, letters, seed_list, reads, protect, out)
    check_positive(tokens=tokens, max_length=max_length)
    check_not_negative(error=error)
    resolved_precision = choose_precision(precision, default_device())
    texts = {
        name: text if isinstance(text, Corpus) else Corpus(text, text_column=text_column)
        for name, text in corpora.items()
    }
    loaded = load_language_model(model, dropout=dropout)
    if loaded.absent_head and reads == "logits":
        raise UserError(
            "This model has no masked-LM head and therefore no logits. Use reads='hidden', or train a head first: "
            "acclimate adapt --method none."
        )
    layers = attach(to_device(loaded.model))
    max_length += len(virtual_ids(loaded.tokenizer))
    check_length(loaded, max_length)
    rows = {
        name: tokenize(text, loaded.tokenizer, max_length, cache=cache_folder() / "rows", progress=progress)
        for name, text in texts.items()
    }
    raw: dict[str, dict[str, Tensor]] = {}
    measured: dict[str, list[MeasuredImportance]] = {}
    for name in rows:
        found: list[MeasuredImportance] = []
        for seed in seed_list:
            context = AdaptContext(
                loaded.model, layers, loaded.tokenizer, rows[name], RandomMasking(), seed, resolved_precision, progress
            )
            title = f"Importance on {name}" + (f", seed {seed}" if len(seed_list) > 1 else "")
            found.append(measure_importance(context, context.units(letters), tokens, reads, error, title))
        raw[name] = {part: torch.stack([one.raw[part].cpu() for one in found]) for part in letters}
        measured[name] = found
    normalised = {
        name: {part: torch.stack([normalise_importance(one, protect) for one in raw[name][part]]) for part in letters}
        for name in raw
    }
    report = {
        "acclimate": __version__,
        "model": str(model),
        "settings": {
            "tokens": tokens,
            "error": error,
            "seeds": seed_list,
            "reads": reads,
            "protect": protect,
            "max_length": max_length,
            "dropout": dropout_rates(loaded.model),
            "precision": resolved_precision,
        },
        "domains": {
            name: {
                "sources": texts[name].report.sources,
                "documents": texts[name].report.documents,
                "tokens": found_rows.tokens,
                "read": [one.read for one in measured[name]],
                "standard_error": [one.error for one in measured[name]],
            }
            for name, found_rows in rows.items()
        },
        "bins": list(EDGES),
        "parts": {part: _compare_domains(part, raw, normalised, protect) for part in letters},
    }
    result = ImportanceResult(report, raw, normalised)
    if out is not None:
        _write(Path(out), result)
    return result


def _check(
    corpora: Mapping[str, Text],
    parts: list[str],
    seeds: list[int],
    reads: str,
    protect: str,
    out: str | Path | None,
) -> None:
    if not corpora:
        raise UserError("Give the text of at least one domain, by name.")
    for name in corpora:
        if not re.fullmatch(r"\w[\w .-]*", name):  # names become file names
            raise UserError(f"The domain name '{name}' is invalid; use letters, digits, spaces and . _ - only.")
    _check_list("part", parts)
    _check_list("seed", [str(seed) for seed in seeds])
    if min(seeds) < 0:
        raise UserError(f"A seed must be 0 or more, not {min(seeds)}.")
    choices: list[tuple[str, str, list[str]]] = [("part", part, [*PARTS]) for part in parts]
    choices += [("value of reads", reads, ["hidden", "logits"])]
    choices += [("value of protect", protect, ["unusual", "important"])]
    for what, value, known in choices:
        if value not in known:
            raise unknown_name_error(what, value, known)
    check_replaceable(out, REPORT, "importances")


def _check_list(what: str, given: list[str]) -> None:
    if not given:
        raise UserError(f"Give at least one {what}.")
    if repeated := [value for value, count in Counter(given).items() if count > 1]:
        raise UserError(f"The {what} '{repeated[0]}' is given twice; give it once.")


def _compare_domains(
    part: str,
    raw: dict[str, dict[str, Tensor]],
    normalised: dict[str, dict[str, Tensor]],
    protect: Literal["unusual", "important"],
) -> dict[str, Any]:
    """Return the similarity between domains for one part, and the similarity expected by chance."""
    names = list(raw)
    _, layers, units = raw[names[0]][part].shape
    if units < 2:
        raise UserError(f"Part {part} of this model has one unit per layer, so there is nothing to compare; omit it.")
    values = {
        "cosine": {a: {b: cosines(normalised[a][part], normalised[b][part]) for b in names} for a in names},
        "correlation": {a: {b: correlations(raw[a][part], raw[b][part]) for b in names} for a in names},
    }
    return {
        "name": PARTS[part],  # type: ignore[index]
        "layers": layers,
        "units": units,
        **{kind: _average(matrix) for kind, matrix in values.items()},
        "shares": {name: shares(normalised[name][part]).mean(0).tolist() for name in names},
        "random": random_similarity(layers, units, protect),
    }


def _average(matrix: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Average the similarities between domains (over all pairs of seeds) and between seeds of one domain."""
    between = {a: {b: float(row[b].mean()) for b in row if b != a} for a, row in matrix.items()}
    others = {a: sum(row.values()) / len(row) if row else None for a, row in between.items()}
    seeds: dict[str, float | None] = {}
    for name, row in matrix.items():
        count = len(row[name])
        pairs = row[name][~torch.eye(count, dtype=torch.bool)]
        seeds[name] = float(pairs.mean()) if count > 1 else None
    return {"between": between, "to_others": others, "between_seeds": seeds}


def _write(out: Path, result: ImportanceResult) -> None:
    seeds = result.report["settings"]["seeds"]
    tensors = {
        f"{name}/{seed}/{part}/{kind}": values[name][part][index].contiguous()
        for kind, values in (("raw", result.raw), ("normalised", result.normalised))
        for name in values
        for part in values[name]
        for index, seed in enumerate(seeds)
    }
    with atomic_folder(out) as folder:
        save_file(tensors, folder / TENSORS)
        draw_importance(result.report, result.raw, result.normalised, folder)
        write_json(folder / REPORT, result.report)
        record_files(folder, REPORT)
