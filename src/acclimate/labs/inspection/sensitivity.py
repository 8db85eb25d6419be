"""`acclimate inspect sensitivity`: is an adapted model harder to fine-tune? Its loss under noise of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from acclimate.base.device import in_full
from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.progress import Progress
from acclimate.base.version import __version__
from acclimate.data.documents import as_corpus, subsample_documents
from acclimate.evaluation.lm_loss import language_model_loss, open_language_model
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.inspection.effect_options import InspectSensitivityOptions
from acclimate.results.study import Measurements

VERDICTS = {1: "more sensitive", -1: "less sensitive", 0: "not shown to be more or less sensitive"}


@verb(InspectSensitivityOptions)
def inspect_sensitivity(options: InspectSensitivityOptions) -> Measurements:
    """Measure how much the loss of a base model and of its adapted version rises under Gaussian noise of the weights.

    Springer et al. (2025) find that models which were pre-trained for longer lose more under such noise, and that this
    sensitivity goes with a lower score after fine-tuning. Every weight matrix gets noise with a standard deviation of
    ``scale`` times the root mean square of that matrix in the base model. Both models get the same noise, so that
    large weights do not make a model look sensitive, and the comparison is paired by draw and text. Vectors, such as
    biases and the weights of norms, get none.

    Returns:
        ``curve``: by ``scale``, the mean increase of the loss ``before`` (base model) and ``after`` (adapted model),
        and ``more``, the difference with its 95 % interval over draws and texts; ``area``: the same for the area under
        the curve from zero to the largest scale, divided by that scale; ``before`` and ``after``: the losses without
        noise. All in nats per predicted token.

    Raises:
        UserError: If a model or text cannot be read, or the models do not have the same weights and tokens.
    """
    check_report_file(options.out)
    texts = subsample_documents(as_corpus(options.text, options), options.documents)
    scales = sorted(set(options.scales))
    found: dict[str, dict[str, Any]] = {}
    shapes: list[dict[str, Any]] = []
    sizes: dict[str, float] | None = None
    total = 2 * (1 + options.draws * len(scales))
    with Progress("Measuring sensitivity", total, unit="losses", enabled=options.progress) as bar:
        for name, path in (("before", options.before), ("after", options.after)):
            loaded = open_language_model(path)
            matrices = weight_matrices(loaded.model)
            shapes.append({one: tuple(weight.shape) for one, weight in matrices.items()})
            if shapes[-1] != shapes[0]:
                raise UserError(
                    f"'{options.after}' does not have the weight matrices of '{options.before}', so the same noise "
                    "cannot be added to both; give a model and its adapted version of the same architecture and size."
                )
            sizes = sizes or {one: root_mean_square(weight) for one, weight in matrices.items()}

            def measure(number: int, model: Any = loaded) -> dict[str, Any]:
                loss = language_model_loss(
                    model.model, texts, tokenizer=model.tokenizer, max_length=options.max_length
                )
                bar.update(number)
                return loss

            offset = 0 if name == "before" else total // 2
            plain = measure(offset + 1)
            counts = np.array(plain["per_text_masked"], dtype=float)
            used = counts > 0
            rises = np.zeros((len(scales), options.draws, int(used.sum())))
            for draw in range(options.draws):
                for place, scale in enumerate(scales):
                    with added_noise(matrices, sizes, scale, (options.seed, draw)):
                        noisy = measure(offset + 2 + draw * len(scales) + place)
                    change = np.array(noisy["per_text"]) - np.array(plain["per_text"])
                    rises[place, draw] = change[used] / counts[used]
            found[name] = {"plain": plain, "rises": rises, "counts": counts[used]}
    if found["before"]["plain"]["per_text_masked"] != found["after"]["plain"]["per_text_masked"]:
        raise UserError("The two models predict different tokens of the text; give models with the same tokenizer.")
    return _report(options, scales, found)


def _report(options: InspectSensitivityOptions, scales: Sequence[float], found: dict[str, Any]) -> Measurements:
    counts = found["before"]["counts"]
    before, after = found["before"]["rises"], found["after"]["rises"]

    def compare(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
        """Compare rises (draws, texts) of the base model and of the adapted model."""
        difference = paired_difference(second, first, counts)
        means = [float(np.average(side.mean(0), weights=counts)) for side in (first, second)]
        ends = {"more": difference.difference, "low": difference.low, "high": difference.high}
        return {"before": means[0], "after": means[1], **ends, "verdict": VERDICTS[difference.sign]}

    curve = [{"scale": scale, **compare(before[at], after[at])} for at, scale in enumerate(scales)]
    area = compare(area_under(scales, before), area_under(scales, after))
    report: dict[str, Any] = {"acclimate": __version__, "texts": len(counts), "draws": options.draws}
    report |= {name: found[name]["plain"]["nats"] for name in ("before", "after")}
    report |= {"curve": curve, "area": area}
    if options.out is not None:
        write_json(options.out, report)
    lines = [f"loss without noise: {report['before']:.4f} nats before, {report['after']:.4f} after"]
    for row in (*curve, {"scale": "area under the curve", **area}):
        name = row["scale"] if isinstance(row["scale"], str) else f"noise {row['scale']:g}"
        interval = f"[{row['low']:+.4f}, {row['high']:+.4f}]"
        rises = f"{row['before']:+.4f} before, {row['after']:+.4f} after"
        lines.append(f"{name}: loss rises by {rises}: {row['more']:+.4f} {interval}")
    lines.append(f"The adapted model is {area['verdict']} to changes of its weights.")
    rows = [*curve, {"scale": "area", **area}]
    return Measurements(report, lines, "Increase of the loss under noise of the weights", rows)


def weight_matrices(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the parameters with at least two dimensions by name; tied ones once."""
    return {name: weight for name, weight in model.named_parameters() if weight.dim() > 1}


def root_mean_square(weight: torch.Tensor) -> float:
    """Return the root mean square of a tensor."""
    return float(in_full(weight.detach()).pow(2).mean().sqrt())


@contextmanager
def added_noise(
    matrices: dict[str, torch.nn.Parameter], sizes: dict[str, float], scale: float, seed: Sequence[int]
) -> Iterator[None]:
    """Add Gaussian noise to weight matrices, and restore them at the end exactly.

    Args:
        matrices: The weights.
        sizes: The unit of the standard deviation for each of them.
        scale: Standard deviation of the noise in that unit. The direction of the noise does not depend on it.
        seed: Random seed; the noise of a weight depends on it, its place and its shape alone.
    """
    kept = {name: weight.detach().cpu().clone() for name, weight in matrices.items()}
    try:
        with torch.no_grad():
            for place, (name, weight) in enumerate(matrices.items()):
                state = np.random.SeedSequence([*seed, place]).generate_state(1)[0]
                noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(int(state)))
                weight.add_((scale * sizes[name] * noise).to(weight))
        yield
    finally:
        with torch.no_grad():
            for name, weight in matrices.items():
                weight.copy_(kept[name])


def area_under(scales: Sequence[float], rises: np.ndarray) -> np.ndarray:
    """Return the area under curves from zero to the largest scale, by trapezoids, divided by that scale.

    Args:
        scales: The scales, ascending and positive; at zero the rise is zero.
        rises: Rise of the loss at each scale, (scales, ...).
    """
    from scipy.integrate import trapezoid

    points = np.concatenate([np.zeros((1, *rises.shape[1:])), rises])
    return np.asarray(trapezoid(points, [0.0, *scales], axis=0) / scales[-1])
