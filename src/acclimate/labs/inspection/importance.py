"""`acclimate inspect importance`: importance of heads and units on several domains, compared with chance and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from acclimate.adaptation.importance_measures import MeasuredImportance, measure_importance
from acclimate.adaptation.inputs import check_length
from acclimate.adaptation.method import AdaptContext
from acclimate.base.device import choose_precision, default_device, to_device
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.files import (
    atomic_folder,
    cache_folder,
    check_replaceable,
    check_writable,
    record_files,
    write_json,
)
from acclimate.base.locks import with_output_lock
from acclimate.base.options import verb
from acclimate.base.verbs import Next, show_place
from acclimate.base.version import __version__
from acclimate.data.documents import as_corpus
from acclimate.data.tokenizing import tokenize
from acclimate.labs.inspection.importance_plots import draw_importance
from acclimate.labs.inspection.options import InspectImportanceOptions
from acclimate.labs.inspection.similarity import EDGES, correlations, cosines, random_similarity, shares
from acclimate.models.gates import PARTS, parse_parts
from acclimate.models.loading import dropout_rates, load_language_model, virtual_ids
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.updates import normalize_importance
from acclimate.results.display import Displayed, data_frame
from acclimate.results.study import StudyResults, table_results

if TYPE_CHECKING:
    import pandas

REPORT, TENSORS = "importance.json", "importance.safetensors"


@dataclass(frozen=True, repr=False)
class ImportanceResult(Displayed):
    """Result of an inspection of importance.

    Attributes:
        report: JSON values, as in ``importance.json``.
        raw: Measured scores of each domain and part, (seeds, layers, units).
        normalized: The same scores after normalization (Eq. 10).
    """

    report: dict[str, Any]
    raw: dict[str, dict[str, Tensor]]
    normalized: dict[str, dict[str, Tensor]]

    def describe(self) -> list[str]:
        """Return what was measured on each domain, in a few lines."""
        return [
            f"{name}: {row['documents']:,} documents, {', '.join(f'{read:,}' for read in row['read'])} tokens read"
            for name, row in self.report["domains"].items()
        ]

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: the report."""
        return self.report

    def as_results(self) -> StudyResults:
        """Return the importance of each layer as a table."""
        frame = self.to_pandas().groupby(["domain", "part", "layer"], sort=False).mean().reset_index()
        rows = frame.drop(columns="unit").to_dict("records")
        return table_results("Importance", {"Mean importance of each layer": rows})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the importance of each unit, as measured and normalized, as the mean over seeds."""
        return data_frame(
            [
                {"domain": name, "part": part, "layer": layer, "unit": unit, "raw": value, "normalized": normal}
                for name, parts in self.raw.items()
                for part, raw in parts.items()
                for layer, layers in enumerate(
                    zip(raw.mean(0).tolist(), self.normalized[name][part].mean(0).tolist(), strict=True)
                )
                for unit, (value, normal) in enumerate(zip(*layers, strict=True))
            ]
        )


@verb(InspectImportanceOptions)
@with_output_lock
def inspect_importance(options: InspectImportanceOptions) -> ImportanceResult:
    """Measure importance for general knowledge on several domains and compare the domains (DGA, Section 4.3).

    The cache is shared with ``adapt --method dga``: scores for the same model, text, seed and settings are measured
    once. Similarities are reported next to similarities of random scores after the same normalization
    (:func:`acclimate.labs.inspection.similarity.random_similarity`) and, with several seeds, next to those between
    seeds of one domain.
    The output directory gets ``importance.json``, ``importance.safetensors`` (``DOMAIN/SEED/PART/raw`` and
    ``.../normalized``) and the figures.

    Raises:
        UserError: If the model has no dropout, or an argument is invalid.
    """
    letters = [letter.strip() for letter in parse_parts(options.parts)]
    seeds, reads, protect = list(options.seeds), options.reads, options.protect
    _check(options.corpora, letters)
    check_replaceable(options.out, REPORT, "importances")
    check_writable(options.out)
    precision = choose_precision(options.precision, default_device())
    texts = {name: as_corpus(text, options) for name, text in options.corpora.items()}
    loaded = load_language_model(options.model, dropout=options.dropout)
    if loaded.absent_head and reads == "logits":
        raise UserError(
            "This model has no language-model head and therefore no logits. Use reads='hidden', or train a head "
            "first: acclimate adapt --method none."
        )
    layers = attach(to_device(loaded.model))
    max_length = options.max_length + len(virtual_ids(loaded.tokenizer))
    check_length(loaded, max_length)
    rows = {
        name: tokenize(text, loaded.tokenizer, max_length, cache=cache_folder() / "rows", progress=options.progress)
        for name, text in texts.items()
    }
    raw: dict[str, dict[str, Tensor]] = {}
    measured: dict[str, list[MeasuredImportance]] = {}
    for name in rows:
        found: list[MeasuredImportance] = []
        for seed in seeds:
            context = AdaptContext(
                *(loaded.model, layers, loaded.tokenizer, rows[name], RandomMasking(), seed, precision),
                options.progress,
            )
            title = f"Importance on {name}" + (f", seed {seed}" if len(seeds) > 1 else "")
            units = context.units(letters)
            found.append(measure_importance(context, units, options.tokens, reads, options.error, title))
        raw[name] = {part: torch.stack([one.raw[part].cpu() for one in found]) for part in letters}
        measured[name] = found
    normalized = {
        name: {part: torch.stack([normalize_importance(one, protect) for one in raw[name][part]]) for part in letters}
        for name in raw
    }
    report = {
        "acclimate": __version__,
        "model": str(options.model),
        "settings": {
            "tokens": options.tokens,
            "error": options.error,
            "seeds": seeds,
            "reads": reads,
            "protect": protect,
            "max_length": max_length,
            "dropout": dropout_rates(loaded.model),
            "precision": precision,
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
        "parts": {part: _compare_domains(part, raw, normalized, protect) for part in letters},
    }
    result = ImportanceResult(report, raw, normalized)
    if options.out is not None:
        _write(Path(options.out), result)
    return result


def show_importance(result: ImportanceResult, options: InspectImportanceOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect importance`` prints."""
    from acclimate.labs.inspection.importance_plots import importance_tables

    yield from importance_tables(result.report)
    yield from show_place("Figures and numbers", options.out)
    words = ["--model", options.model, "--corpus", "TEXT", "--method", "dga", "--out", "adapted"]
    yield Next(["adapt", *words], "to protect what is important")


def _check(corpora: Iterable[str], parts: list[str]) -> None:
    for name in corpora:
        if not re.fullmatch(r"\w[\w .-]*", name):  # names become file names
            raise UserError(f"The domain name '{name}' is invalid; use letters, digits, spaces and . _ - only.")
    if not parts:
        raise UserError("Give at least one part.")
    for part in parts:
        if part not in PARTS:
            raise unknown_name_error("part", part, PARTS)
        if parts.count(part) > 1:
            raise UserError(f"The part '{part}' is given twice; give it once.")


def _compare_domains(
    part: str,
    raw: dict[str, dict[str, Tensor]],
    normalized: dict[str, dict[str, Tensor]],
    protect: Literal["unusual", "important"],
) -> dict[str, Any]:
    """Return the similarity between domains for one part, and the similarity expected by chance."""
    names = list(raw)
    _, layers, units = raw[names[0]][part].shape
    if units < 2:
        raise UserError(f"Part {part} of this model has one unit per layer, so there is nothing to compare; omit it.")
    values = {
        "cosine": {a: {b: cosines(normalized[a][part], normalized[b][part]) for b in names} for a in names},
        "correlation": {a: {b: correlations(raw[a][part], raw[b][part]) for b in names} for a in names},
    }
    return {
        "name": PARTS[part],  # type: ignore[index]
        "layers": layers,
        "units": units,
        **{kind: _average(matrix) for kind, matrix in values.items()},
        "shares": {name: shares(normalized[name][part]).mean(0).tolist() for name in names},
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
        for kind, values in (("raw", result.raw), ("normalized", result.normalized))
        for name in values
        for part in values[name]
        for index, seed in enumerate(seeds)
    }
    with atomic_folder(out) as folder:
        save_file(tensors, folder / TENSORS)
        draw_importance(result.report, result.raw, result.normalized, folder)
        write_json(folder / REPORT, result.report)
        record_files(folder, REPORT)
