"""`acclimate inspect experts`: which adapted models fit a new domain (the selector of SaM)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.files import MANIFEST_FILE, check_report_file, read_json_object, write_json
from acclimate.base.options import verb
from acclimate.base.progress import Progress
from acclimate.base.ranking import best_first, content_ranks
from acclimate.base.verbs import Next, show_report
from acclimate.base.version import __version__
from acclimate.data.documents import as_corpus, subsample_documents
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.inspection.effect_options import InspectExpertsOptions
from acclimate.merging.experts import compare_domains
from acclimate.results.study import Measurements


@verb(InspectExpertsOptions)
def inspect_experts(options: InspectExpertsOptions) -> Measurements:
    """Rank models that were adapted to other domains by how well they fit a new one, to merge the best of them.

    By similarity: the cosine of the mean embeddings of the text that a model was adapted to and of the new domain.
    By sampled performance: the loss of the model on text of the new domain, which needs no labels; models with
    different tokenizers are compared by bits per byte. SaM merges the best experts by each of the two.

    Returns:
        ``experts``, a row per model with ``similarity``, ``nats`` per predicted token and ``bits_per_byte``; and the
        names of the best: ``by_similarity``, without texts empty, and ``by_performance``.

    Raises:
        UserError: If a model or text cannot be read, or a text names no expert.
    """
    check_report_file(options.out)
    experts = dict(cast(Mapping[str, Any], options.experts))  # the class of options makes it a mapping
    for name in options.corpora or {}:
        if name not in experts:
            raise unknown_name_error("expert", name, experts)
    if missing := [name for name in experts if options.corpora and name not in options.corpora]:
        raise UserError(f"The text of '{missing[0]}' is missing: give --corpus {missing[0]}=TEXT, or no text at all.")

    def read(text: Any) -> list[str]:
        return subsample_documents(as_corpus(text, options), options.documents)

    target = read(options.target)
    texts = {name: read(text) for name, text in (options.corpora or {}).items()}
    similarity = compare_domains(texts, target, options.encoder)
    rows = []
    with Progress("Measuring experts", len(experts), unit="models", enabled=options.progress) as bar:
        for name, model in experts.items():
            loss = language_model_loss(str(model), target, max_length=options.max_length)
            measured = {"nats": loss["nats"], "bits_per_byte": loss["bits_per_byte"]}
            rows.append({"expert": name, "similarity": similarity.get(name), **measured})
            bar.update(len(rows))
    by_similarity = _best(rows, "similarity", options.top) if similarity else []
    best = {"by_similarity": by_similarity, "by_performance": _best(rows, "bits_per_byte", options.top, lowest=True)}
    report = {"acclimate": __version__, "documents": len(target), "experts": rows, **best}
    if options.out is not None:
        write_json(options.out, report)
    lines = [f"{name.replace('_', ' ')}: {', '.join(found)}" for name, found in best.items() if found]
    return Measurements(report, lines, "Experts for the new domain", rows)


def show_experts(report: Any, options: InspectExpertsOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect experts`` prints."""
    for row in report["experts"]:
        similarity = "" if row["similarity"] is None else f"similarity {row['similarity']:.3f}, "
        yield f"{row['expert']}: {similarity}{row['nats']:.3f} nats, {row['bits_per_byte']:.3f} bits per byte"
    yield from show_report(report, options)
    best = [options.experts[name] for name in report["by_performance"]]
    made = read_json_object(Path(best[0]) / MANIFEST_FILE) or {}  # in a folder of an adapted model
    models = [word for model in best for word in ("--model", model)]
    base = ["--base", made.get("model", "MODEL")]
    yield Next(["merge", "--method", "ties", *models, *base, "--out", "merged"], "to merge the best")


def _best(rows: Sequence[Mapping[str, Any]], measure: str, count: int, lowest: bool = False) -> list[str]:
    names, sign = [str(row["expert"]) for row in rows], -1 if lowest else 1
    order = best_first([sign * row[measure] for row in rows], content_ranks(names))
    return [names[place] for place in order[:count]]
