"""`acclimate inspect importance`: what a model holds important on several domains, against chance and other seeds."""

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
from acclimate.files import atomic_folder, check_replaceable, write_json
from acclimate.inspect.similarity import EDGES, correlations, cosines, random_similarity, shares
from acclimate.kernels.dropout import dropout_rates
from acclimate.locks import with_output_lock
from acclimate.masking import RandomMasking
from acclimate.models import attach, load_language_model
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
    """What an inspection found.

    Attributes:
        report: Plain values, as in ``importance.json``.
        raw: For each domain and part (seeds, layers, units), as measured.
        normalised: The same through Eq. 10.
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
    """Measure importance to general knowledge on several domains, and how alike it is (DGA, Section 4.3).

    What ``adapt`` with the method ``dga`` measured with the same model, text, seed and settings is found in the cache,
    and the other way round. Beside the cosines stand those of random importances through the same normalisation
    (:func:`acclimate.inspect.random_similarity`); with several seeds, also those of a domain with itself.

    Args:
        model: A model folder or a name on the hub.
        corpora: Text of each domain, by name.
        out: Folder for ``importance.json``, ``importance.safetensors`` (``DOMAIN/SEED/PART/raw`` and
            ``.../normalised``) and the figures; None writes nothing.
        parts: Letters: H attention heads, I intermediate and O output units of the feed-forward, E embedding.
        tokens: Tokens of each domain's text to measure on, at most; the whole text if it has fewer.
        error: Standard error of the normalised importances at which measuring stops
            (:func:`acclimate.updates.estimate_sampling_error`); 0 reads all ``tokens``.
        seeds: Each chooses its part of the text and its dropout.
        reads: See :func:`acclimate.updates.summed_importance`.
        protect: See :func:`acclimate.updates.normalise_importance`.
        max_length: Tokens of a text at most.
        dropout: Of every layer of the encoder, in place of what its configuration says.
        precision: ``fp32``, ``bf16``, or ``auto``.
        text_column: Where the text is in tables and JSON lines.
        progress: Show bars.

    Raises:
        UserError: If the model has no dropout, or anything that was given cannot be used.
    """
    letters = [letter.strip() for letter in parse_parts(parts)]
    chosen_seeds = list(seeds)
    _check(corpora, letters, chosen_seeds, reads, protect, out)
    check_positive(tokens=tokens, max_length=max_length)
    check_not_negative(error=error)
    chosen = choose_precision(precision, default_device())
    texts = {
        name: text if isinstance(text, Corpus) else Corpus(text, text_column=text_column)
        for name, text in corpora.items()
    }
    loaded = load_language_model(model, dropout=dropout)
    if loaded.absent_head and reads == "logits":
        raise UserError(
            "This model has no masked-LM head, so there are no logits to read; read 'hidden', or make a head first: "
            "acclimate adapt --method none."
        )
    layers = attach(loaded.model)
    max_length += len(virtual_ids(loaded.tokenizer))
    check_length(loaded, max_length)
    rows = {
        name: tokenize(text, loaded.tokenizer, max_length, cache=cache_folder() / "rows", progress=progress)
        for name, text in texts.items()
    }
    to_device(loaded.model)
    raw: dict[str, dict[str, Tensor]] = {}
    measured: dict[str, list[MeasuredImportance]] = {}
    for name in rows:
        found: list[MeasuredImportance] = []
        for seed in chosen_seeds:
            run = AdaptContext(
                loaded.model, layers, loaded.tokenizer, rows[name], RandomMasking(), seed, chosen, progress
            )
            title = f"Importance on {name}" + (f", seed {seed}" if len(chosen_seeds) > 1 else "")
            found.append(measure_importance(run, run.units(letters), tokens, reads, error, title))
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
            "seeds": chosen_seeds,
            "reads": reads,
            "protect": protect,
            "max_length": max_length,
            "dropout": dropout_rates(loaded.model),
            "precision": chosen,
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
        "parts": {part: _compare(part, raw, normalised, protect) for part in letters},
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
        if not re.fullmatch(r"\w[\w .-]*", name):  # names become names of files
            raise UserError(f"The name '{name}' of a domain may hold letters, digits, spaces and . _ - only.")
    _check_list("part", parts)
    _check_list("seed", [str(seed) for seed in seeds])
    if min(seeds) < 0:
        raise UserError(f"A seed must be 0 or more, not {min(seeds)}.")
    choices: list[tuple[str, str, list[str]]] = [("part", part, [*PARTS]) for part in parts]
    choices += [("reading", reads, ["hidden", "logits"]), ("kind of protection", protect, ["unusual", "important"])]
    for what, value, known in choices:
        if value not in known:
            raise unknown_name_error(what, value, known)
    check_replaceable(out, REPORT, "importances")


def _check_list(what: str, given: list[str]) -> None:
    if not given:
        raise UserError(f"Give at least one {what}.")
    if twice := [value for value, count in Counter(given).items() if count > 1]:
        raise UserError(f"The {what} '{twice[0]}' is given twice; give it once.")


def _compare(
    part: str,
    raw: dict[str, dict[str, Tensor]],
    normalised: dict[str, dict[str, Tensor]],
    protect: Literal["unusual", "important"],
) -> dict[str, Any]:
    """Return, for one part, how alike the domains are, and what chance gives."""
    names = list(raw)
    _, layers, units = raw[names[0]][part].shape
    if units < 2:
        raise UserError(f"The part {part} of this model has one unit a layer, so its importance compares to nothing.")
    values = {
        "cosine": {a: {b: cosines(normalised[a][part], normalised[b][part]) for b in names} for a in names},
        "correlation": {a: {b: correlations(raw[a][part], raw[b][part]) for b in names} for a in names},
    }
    return {
        "name": PARTS[part],  # type: ignore[index]
        "layers": layers,
        "units": units,
        **{kind: _summary(matrix) for kind, matrix in values.items()},
        "shares": {name: shares(normalised[name][part]).mean(0).tolist() for name in names},
        "random": random_similarity(layers, units, protect),
    }


def _summary(matrix: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Average what was found between domains (over all pairs of seeds) and between the seeds of one domain."""
    between = {a: {b: float(row[b].mean()) for b in row if b != a} for a, row in matrix.items()}
    others = {a: sum(row.values()) / len(row) if row else None for a, row in between.items()}
    seeds: dict[str, float | None] = {}
    for name, row in matrix.items():
        count = len(row[name])
        pairs = row[name][~torch.eye(count, dtype=torch.bool)]
        seeds[name] = float(pairs.mean()) if count > 1 else None
    return {"between": between, "to_others": others, "between_seeds": seeds}


def _write(out: Path, result: ImportanceResult) -> None:
    from acclimate.inspect.plots import draw

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
        draw(result, folder)
        write_json(folder / REPORT, result.report)
