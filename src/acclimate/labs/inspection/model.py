"""``acclimate inspect model``: what a model is, how it will be run, what it can do, and the memory of its training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from acclimate.adaptation.method import get, lookup, names
from acclimate.base.device import choose_precision, to_device
from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.verbs import Next, show_place
from acclimate.base.version import __version__
from acclimate.labs.inspection.options import InspectModelOptions
from acclimate.models.attention import HeadLayer
from acclimate.models.batching import token_bytes
from acclimate.models.checkpoints import load_config
from acclimate.models.families import Probe, describe_attention, describe_computation, longest_text, probe_of
from acclimate.models.gates import PARTS, gate_units
from acclimate.models.kinds import ModelKind
from acclimate.models.loading import dropout_rates, load_language_model
from acclimate.models.lora import LowRankAdapter
from acclimate.models.probe import attach
from acclimate.models.reach import linear_layers, stacked_experts
from acclimate.results.display import titled_table
from acclimate.results.study import Measurements

if TYPE_CHECKING:
    from rich.table import Table

WEIGHT, GRADIENT, ADAMW, ADAMW_8BIT, BF16, FOUR_BIT = 4, 4, 8, 2, 2, 0.52
"""Bytes per parameter in training: of an fp32 weight and its gradient, of the two moments of AdamW in fp32 and in 8
bits, of a weight or gradient in bf16, and of a 4-bit weight with its double-quantized scales (64 weights share 8 bits,
and 256 of these 32 bits)."""
TOKENS = 1_000
"""Number of tokens whose activations are estimated."""


@verb(InspectModelOptions)
def inspect_model(options: InspectModelOptions) -> Measurements:
    """Describe a language model, compare how acclimate runs it with its own outputs, and estimate memory.

    Returns:
        ``model``, ``class``, ``kind`` and the sizes of the model; ``attention``: the implementation that it was loaded
        with, the one that it runs, and why if they are the same; ``computation``: the faster implementations;
        ``checks``: each comparison with its largest relative difference and bound (see
        :class:`acclimate.models.families.Check`); ``gates``, ``packing`` and ``padding``: whether they are possible,
        and why not; ``memory``: see :func:`estimate_memory`; ``methods``: the names of those that can train it, and
        ``refused``: why others for models of this kind cannot.

    Raises:
        UserError: If the model cannot be loaded, has weights that are not finite, or acclimate cannot run it.
    """
    check_report_file(options.out)
    loaded = load_language_model(options.model)
    model: Any = to_device(loaded.model)
    broken = next((name for name, value in model.named_parameters() if not value.isfinite().all()), None)
    if broken is not None:
        raise UserError(f"The weights of '{options.model}' are not finite, such as {broken}; use another checkpoint.")
    layers = attach(model)
    probe = probe_of(model)
    assert probe is not None  # attach has set it
    config = model.config.get_text_config()
    head, words = model.get_output_embeddings(), model.get_input_embeddings()
    report = {
        "acclimate": __version__,
        "model": str(options.model),
        "class": type(model).__name__,
        "kind": loaded.kind.name,
        "parameters": model.num_parameters(),
        "layers": getattr(config, "num_hidden_layers", None),
        "width": getattr(config, "hidden_size", None),
        "heads": getattr(config, "num_attention_heads", None),
        "key_heads": getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None),
        "vocabulary": int(words.weight.shape[0]),
        "positions": longest_text(model),
        "tied_head": head is not None and head.weight is words.weight,
        "missing_head": loaded.absent_head,
        "checkpoint_dtype": str(getattr(load_config(options.model), "dtype", None) or "").removeprefix("torch."),
        "dropout": dropout_rates(model),
        "device": model.device.type,
        "attention": {
            "own": probe.own_attention,
            "used": probe.attention,
            "reason": probe.obstacles.get("attention", ""),
            "computed_by": describe_attention(model, choose_precision("auto", model.device)),
        },
        "computation": describe_computation(model),
        "checks": [{**asdict(check), "passed": check.passed} for check in probe.checks],
        "gates": {**_ability(probe, "gates"), "parts": _find_parts(model, layers)},
        "packing": _ability(probe, "packing"),
        "padding": _ability(probe, "padding"),
        "memory": estimate_memory(model, min(options.max_length, longest_text(model) or options.max_length)),
        **_find_methods(model, layers, loaded.kind),
    }
    if options.out is not None:
        write_json(options.out, report)
    lines = [
        f"{report['class']} ({loaded.kind.name}): {report['parameters']:,} parameters, {report['layers']} layers",
        f"attention: {probe.attention}",
        f"checks: {sum(check.passed for check in probe.checks)} of {len(probe.checks)} passed",
        f"methods: {', '.join(report['methods'])}",
    ]
    return Measurements(report, lines, "Checks", report["checks"])


def show_model(report: Any, options: InspectModelOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect model`` prints."""
    yield from model_tables(report)
    yield from show_place("Full report", options.out)
    yield Next(["adapt", "--model", options.model, "--corpus", "TEXT", "--out", "adapted"])


def _ability(probe: Probe, name: str) -> dict[str, Any]:
    reason = probe.obstacles.get(name, "")
    return {"possible": not reason, "reason": reason}


def _find_methods(model: PreTrainedModel, layers: list[HeadLayer], kind: ModelKind) -> dict[str, Any]:
    """Return the names of the methods that can train a model, and why others for its kind cannot."""
    found = {}
    for name in (name for name in names() if kind.name in lookup(name).kinds):
        try:
            get(name).check_model(model, layers)
            found[name] = ""
        except UserError as error:
            found[name] = str(error)
    refused = {name: reason for name, reason in found.items() if reason}
    return {"methods": [name for name in found if name not in refused], "refused": refused}


def _find_parts(model: PreTrainedModel, layers: list[HeadLayer]) -> list[str]:
    """Return the letters of the parts of a model that can be gated."""
    parts: list[str] = []
    for part in PARTS:
        try:
            gate_units(model, layers, [part])
        except UserError:
            continue
        parts.append(part)
    return parts


def estimate_memory(model: PreTrainedModel, length: int) -> dict[str, Any]:
    """Estimate the memory of training in bytes, which must also hold what the framework itself needs.

    Args:
        model: The model.
        length: Tokens per row.

    Returns:
        ``training``: bytes of weights, gradients and optimizer states by the way of training; ``activations`` and
        ``checkpointed``: bytes of the graph of 1,000 tokens, and with gradient checkpointing; ``adapter``: parameters
        of a LoRA adapter of default rank on all linear layers but the head, and on stacked experts, whose
        adapted weights are kept for the backward pass; ``length``.
    """
    rank, layers = LowRankAdapter.r, linear_layers(model).values()
    linear: list[Any] = [module.weight for module in layers]
    experts = list(stacked_experts(model).values())
    total = model.num_parameters()
    inside, stacked = (sum(weight.numel() for weight in weights) for weights in (linear, experts))
    adapter = rank * sum(sum(weight.shape) for weight in linear)
    adapter += rank * sum(len(weight) * sum(weight.shape[1:]) for weight in experts)
    trained = WEIGHT + GRADIENT
    eager = describe_computation(model)["eager_attention"]
    config = model.config.get_text_config()
    return {
        "training": {
            "full, AdamW": total * (trained + ADAMW),
            "full, 8-bit AdamW": total * (trained + ADAMW_8BIT),
            "full, bf16 weights, 8-bit AdamW": total * (2 * BF16 + ADAMW_8BIT),
            "LoRA": (total + stacked) * WEIGHT + adapter * (trained + ADAMW),
            "QLoRA": round((total + stacked - inside) * WEIGHT + inside * FOUR_BIT + adapter * (trained + ADAMW)),
        },
        "activations": TOKENS * token_bytes(config, length, eager),
        "checkpointed": TOKENS * token_bytes(config, length, eager, checkpointing=True),
        "adapter": adapter,
        "length": length,
    }


def model_tables(report: dict[str, Any]) -> list[Table | str]:
    """Return tables and texts for a terminal.

    Args:
        report: From :func:`inspect_model`.
    """

    def table(title: str, *columns: str) -> Table:
        made = titled_table(title)
        for number, column in enumerate(columns):
            made.add_column(column, justify="right" if number else "left", overflow="fold")
        return made

    attention, memory = report["attention"], report["memory"]
    grouped = "" if report["key_heads"] == report["heads"] else f", {report['key_heads']} key heads"
    reads = "no limit" if report["positions"] is None else f"{report['positions']:,}"
    head = "missing, trained before an adaptation" if report["missing_head"] else "its own weights"
    dropout = ", ".join(f"{rate:g}" for rate in report["dropout"] if rate) or "none"
    lines = [
        f"{report['model']}: {report['class']}, a {report['kind']} language model with {report['parameters']:,} "
        "parameters",
        f"Layers: {report['layers']}, width {report['width']}, {report['heads']} heads{grouped}",
        f"Vocabulary: {report['vocabulary']:,}; positions: {reads}; dropout: {dropout}",
        f"Head: {'tied to the word embeddings' if report['tied_head'] else head}",
        f"Weights in the checkpoint: {report['checkpoint_dtype'] or 'of unknown type'}; loaded as float32",
        f"Attention: {attention['used']} on {report['device']}"
        + (f", since {attention['reason']}" if attention["reason"] else f"; the model's own is {attention['own']}")
        + f"; computed by: {attention['computed_by']}",
        f"Gates on heads and units: {_answer(report['gates'], 'on ' + ', '.join(report['gates']['parts']))}",
        f"Several texts per row: {_answer(report['packing'], 'yes')}",
        f"Padding: {_answer(report['padding'], 'yes')}",
        f"Methods: {', '.join(report['methods'])}",
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in report["refused"].items():
        reasons.setdefault(reason, []).append(name)
    lines += [f"Not {', '.join(refused)}: {reason}" for reason, refused in reasons.items()]
    checks = table("Compared with the model's own outputs", "check", "difference", "bound", "result")
    for check in report["checks"]:
        sign = "at least" if check["at_least"] else "at most"
        checks.add_row(
            check["name"],
            f"{check['difference']:.1e}",
            f"{sign} {check['tolerance']:.0e}",
            "passed" if check["passed"] else "failed",
        )
    costs = table("Memory of training", "way of training", "weights, gradients and optimizer states")
    for name, size in memory["training"].items():
        costs.add_row(name, _size(size))
    note = (
        f"Activations of {TOKENS:,} tokens in rows of {memory['length']:,} need {_size(memory['activations'])} more, "
        f"or {_size(memory['checkpointed'])} with gradient checkpointing. LoRA and QLoRA train {memory['adapter']:,} "
        "parameters."
    )
    return ["\n".join(lines), "", checks, costs, note]


def _size(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _answer(ability: dict[str, Any], yes: str) -> str:
    return yes if ability["possible"] else f"no, since {ability['reason']}"
