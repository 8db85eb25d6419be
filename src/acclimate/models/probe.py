"""Attaches the gated attention function to a model, and measures on the model what leaves its outputs unchanged.

An architecture may ignore arguments of the attention function, mix tokens outside attention, or depend on padding, and
a list of architectures cannot cover future ones. So a few dozen tokens are read in several ways that must agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.base.device import fp32_products
from acclimate.base.errors import UserError, first_line, warn_once
from acclimate.models.attention import ALTERNATIVES, HeadLayer, split_heads, use_attention, uses_gated_attention
from acclimate.models.encoding import decode, encode, reads_pairs, shift_right
from acclimate.models.families import (
    KERNELS_ATTRIBUTE,
    PROBE_ATTRIBUTE,
    Check,
    Probe,
    kernels_of,
    language_head,
    longest_text,
    probe_of,
    use_kernels,
)
from acclimate.models.kinds import find_kind

TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Bounds of the relative difference between two readings that are equal up to rounding, by type of the weights."""
MAX_WINDOW = 8_192
"""Largest window of attention with which reading without padding is tried."""
FIRST, SECOND, PREFIX = 9, 6, 5
"""Tokens of the two texts that are read, and of the beginning of the first, which a causal model reads by itself."""
Calls = tuple[tuple[str, int, int], ...]
_FOUND: dict[str, tuple[Probe, Calls]] = {}
"""Results of this process, by class, configuration, types and kernels: they do not depend on the weights."""


def attach(model: PreTrainedModel, sharded: bool = False) -> list[HeadLayer]:
    """Make ``model`` run the gated attention function, with the kernels for its device, if the outputs stay the same.

    Call it again after moving the model to another device. The model keeps its own attention if it does not call the
    function, or its outputs would change: it then runs without gates and with one text per row. :func:`probe_of`
    returns what was measured.

    Args:
        model: The model.
        sharded: Whether its weights will be sharded among processes.

    Returns:
        The attention layers in the order of their calls; none if heads cannot be gated.

    Raises:
        UserError: If no way of running the model reproduces its own outputs, or its head cannot be found.
    """
    if not hasattr(model, PROBE_ATTRIBUTE):
        setattr(model, PROBE_ATTRIBUTE, Probe("", model.config._attn_implementation or "eager", (), {}))
    own = getattr(model, PROBE_ATTRIBUTE).own_attention
    kernels = use_kernels(model, model.device, sharded)
    entries = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    key = f"{type(model)} {own} {model.device} {model.dtype} {kernels} {entries}"
    if key not in _FOUND:
        training = model.training
        model.eval()
        try:
            with torch.no_grad(), fp32_products("highest"):
                _FOUND[key] = _Reader(model, own).find_out()
        finally:
            model.train(training)
    probe, calls = _FOUND[key]
    setattr(model, PROBE_ATTRIBUTE, probe)
    if probe.varlen:
        setattr(model, KERNELS_ATTRIBUTE, kernels.without_padding(model.device))
    if probe.attention != own:
        use_attention(model, kernels)
    elif uses_gated_attention(model):
        model.set_attn_implementation(own)
    if found := probe.obstacles.get("padding"):
        warn_once(f"{type(model).__name__}: {found}, so texts of different lengths are read one length at a time.")
    return split_heads(model, calls) if "gates" not in probe.obstacles else []


def check_reads_left_to_right(model: PreTrainedModel) -> None:
    """Check, by reading a few tokens, that an encoder can read from left to right (:func:`decode`).

    Args:
        model: A model that :func:`attach` has prepared.

    Raises:
        UserError: If a state depends on later tokens, or the architecture does not take such a mask.
    """
    probe, reader, training = probe_of(model), _Reader(model, ""), model.training
    model.eval()
    try:
        with torch.no_grad(), fp32_products("highest"):
            texts = (reader.first, torch.cat([reader.first[:PREFIX], reader.second]))
            whole, other = (decode(model, ids[None], torch.zeros_like(ids)[None])[0, :PREFIX] for ids in texts)
        why = "" if reader._same("earlier tokens only", other, whole) else "a token sees later ones"
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, NotImplementedError) as error:
        why = first_line(error)
    finally:
        model.train(training)
    if why := why or (probe.obstacles.get("padding", "") if probe else ""):
        raise UserError(
            f"{type(model).__name__} cannot read from left to right: {why}. Use a model of another architecture, such "
            "as BERT, RoBERTa or ModernBERT."
        )


class _Reader:
    """Reads the same tokens of one model in several ways."""

    def __init__(self, model: PreTrainedModel, own: str) -> None:
        self.model, self.own, self.kind = model, own, find_kind(type(model).__name__)
        self.tolerance = TOLERANCES.get(model.dtype, TOLERANCES[torch.bfloat16])
        vocabulary = int(getattr(model.get_input_embeddings(), "num_embeddings", 0) or model.config.vocab_size)
        padding = getattr(model.config, "pad_token_id", None)
        # Spread over the vocabulary, and without the padding id, which some models give no position.
        ids = (torch.arange(FIRST + SECOND, device=model.device) * 7919 + 5) % vocabulary
        self.ids = ids if padding is None else torch.where(ids == padding, (ids + 1) % vocabulary, ids)
        self.first, self.second = self.ids[:FIRST], self.ids[FIRST:]
        self.checks: list[Check] = []
        self.obstacles: dict[str, str] = {}
        self.varlen = False
        self.outputs: Callable[[Tensor], Tensor] = lambda hidden: hidden
        self.expected: list[Tensor] = []

    def find_out(self) -> tuple[Probe, Calls]:
        """Return what the model can do, and the calls of the attention function if its heads can be gated."""
        model, name = self.model, type(self.model).__name__
        if getattr(model.config, "axial_pos_embds", False):
            raise UserError(f"{name} is not supported: it trains on rows of one length only. {ALTERNATIVES}")
        if uses_gated_attention(model):
            model.set_attn_implementation(self.own)
        try:
            if reads_pairs(model) and self.kind is not None:
                return self._read_pairs(), ()
            self._read_alone()
            calls = self._try_gated_attention()
            if not calls:
                self.obstacles |= {
                    kind: "it keeps its own attention" for kind in ("gates", "packing") if kind not in self.obstacles
                }
                setattr(model, PROBE_ATTRIBUTE, Probe(self.own, self.own, (), {}))
                if not self._same("a text by itself", self._encode(self.first)[0], self.expected[0]):
                    raise UserError(
                        f"{name} is not supported: its base model and head do not reproduce its own outputs."
                    )
                if not self._padding():
                    self.obstacles["padding"] = "its outputs depend on padding"
        except torch.OutOfMemoryError:  # no fault of the architecture
            raise
        except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, NotImplementedError) as error:
            raise UserError(f"{name} is not supported: {first_line(error)}. {ALTERNATIVES}") from error
        attention = model.config._attn_implementation
        return Probe(attention, self.own, tuple(self.checks), dict(self.obstacles), self.varlen), calls

    def _read_alone(self) -> None:
        """Store the outputs of the model for each text by itself, and compare its head with :func:`language_head`."""
        model, name = self.model, type(self.model).__name__
        if self.kind is None:
            self.expected = [model.base_model(input_ids=ids[None])[0][0] for ids in (self.first, self.second)]
            return
        self.expected = [model(input_ids=ids[None]).logits[0] for ids in (self.first, self.second)]
        self.outputs = language_head(model)
        states = model.base_model(input_ids=self.first[None])[0]
        if not self._same("head", self.outputs(states)[0], self.expected[0]):
            raise UserError(f"{name} is not supported: its head reads more than the hidden state of a token.")
        if self.kind.targets is not None:
            beginning = model(input_ids=self.first[None, :PREFIX]).logits[0]
            if not self._same("earlier tokens only", beginning, self.expected[0][:PREFIX]):
                raise UserError(
                    f"{name} should predict the next token, but sees later ones; if it was trained to predict the "
                    "next token, set is_decoder to true in its config.json."
                )

    def _read_pairs(self) -> Probe:
        """Compare the readings of an encoder-decoder with its own outputs for two pairs of source and target."""
        model, name = self.model, type(self.model).__name__
        self.outputs = language_head(model)
        reasons = {"gates": "it has two stacks of layers", "attention": "it has two stacks of layers"}
        self.obstacles |= {**reasons, "packing": "an encoder-decoder reads one text per row"}
        setattr(model, PROBE_ATTRIBUTE, Probe(self.own, self.own, (), {}))
        pairs = [(self.first, self.second), (self.second, self.first)]
        for source, target in pairs:
            shifted = shift_right(model, target[None])
            self.expected.append(model(input_ids=source[None], decoder_input_ids=shifted).logits[0])
        rows = [torch.cat([source, ~target]) for source, target in pairs]
        for row, expected in zip(rows, self.expected, strict=True):
            ids, wanted = row[None], len(expected)
            found = self.outputs(encode(model, ids, torch.zeros_like(ids)))[0, -wanted:]
            if not self._same("a pair by itself", found, expected):
                raise UserError(f"{name} is not supported: its stacks and head do not reproduce its own outputs.")
        other = rows[0].clone()
        other[FIRST + PREFIX - 1] = ~self.first[0]
        found = self.outputs(encode(model, other[None], torch.zeros_like(other)[None]))[0, FIRST : FIRST + PREFIX]
        if not self._same("earlier tokens only", found, self.expected[0][:PREFIX]):
            raise UserError(f"{name} is not supported: its decoder sees the tokens that it should predict.")
        ids = torch.stack(rows)
        longer = nn.functional.pad(ids, (0, 3))
        text = nn.functional.pad(torch.zeros_like(ids), (0, 3), value=-1)
        found = self.outputs(encode(model, longer, text))[longer < 0]
        if not self._same("padded rows", found, torch.cat(self.expected)):
            self.obstacles["padding"] = "its outputs depend on padding"
        return Probe(self.own, self.own, tuple(self.checks), dict(self.obstacles))

    def _try_gated_attention(self) -> Calls:
        """Return the calls of the gated attention function; none if the model should keep its own attention."""
        model = self.model
        seen: list[tuple[nn.Module, int, int]] = []
        names = {id(module): name for name, module in model.named_modules()}
        try:
            use_attention(model, kernels_of(model))
            model.base_model(input_ids=self.first[None, :2], attention_calls=seen)
            calls = tuple((names[id(module)], heads, width) for module, heads, width in seen)
            same = bool(calls) and self._attention()
        except (ValueError, AttributeError, TypeError) as error:
            calls, same = (), False
            self.obstacles["attention"] = first_line(error)
        if not same:
            self.obstacles.setdefault("attention", "it does not call the attention function")
            if uses_gated_attention(model):
                model.set_attn_implementation(self.own)
            return ()
        try:
            layers = split_heads(model, calls)
        except UserError as error:
            self.obstacles["gates"] = str(error)
        else:
            self._gates(layers)
        if any(isinstance(module, nn.Conv1d) and max(module.kernel_size) > 1 for module in model.base_model.modules()):
            self.obstacles["packing"] = "it has convolutions over tokens"  # whose effect may be small
        elif not self._packing():
            self.obstacles["packing"] = "they influence each other outside attention"
        elif not (kernels := kernels_of(model)).varlen_attention and kernels.without_padding(model.device):
            self.varlen = self._without_padding()
        return calls

    def _attention(self) -> bool:
        """Compare the gated attention function with the model's own, alone and with padding."""
        setattr(self.model, PROBE_ATTRIBUTE, Probe("", self.own, (), {}))
        if self._same("attention", self._encode(self.first)[0], self.expected[0]) and self._padding():
            return True
        failed = self.checks[-1]
        self.obstacles["attention"] = f"its outputs would change by {failed.difference:.2%} ({failed.name})"
        warn_once(
            f"{type(self.model).__name__} keeps its own attention, since with acclimate's "
            f"{self.obstacles['attention']}: one text per row, and no gates on heads."
        )
        return False

    def _padding(self) -> bool:
        """Compare texts in padded rows with each by itself."""
        ids = nn.utils.rnn.pad_sequence([self.first, self.second], batch_first=True)
        text = nn.utils.rnn.pad_sequence([0 * self.first, 0 * self.second + 1], batch_first=True, padding_value=-1)
        found = self.outputs(encode(self.model, ids, text))
        return self._same("padded rows", found[text >= 0], torch.cat(self.expected))

    def _packing(self) -> bool:
        """Compare two texts in one row with each by itself."""
        text = torch.tensor([[0] * FIRST + [1] * SECOND], device=self.ids.device)
        found = self.outputs(encode(self.model, self.ids[None], text))[0]
        return self._same("texts that share a row", found, torch.cat(self.expected))

    def _without_padding(self) -> bool:
        """Compare texts in one row that the kernel of an accelerator reads without padding with each by itself.

        The text of a model with a window is longer than it. A window of more than :data:`MAX_WINDOW` tokens is not
        tried.
        """
        model, before = self.model, kernels_of(self.model)
        config = model.config.get_text_config()
        windows = [getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
        length = max(windows) + SECOND
        if max(windows) > MAX_WINDOW or length > (longest_text(model) or length):
            return False
        texts, expected = [self.first, self.second], list(self.expected)
        if max(windows):
            texts.append(self.ids.repeat(-(-length // len(self.ids)))[:length])
            expected.append(self._encode(texts[-1])[0])
        text = torch.cat([torch.full_like(ids, number) for number, ids in enumerate(texts)])[None]
        setattr(model, KERNELS_ATTRIBUTE, before.without_padding(model.device))
        try:
            found = self.outputs(encode(model, torch.cat(texts)[None], text))[0]
            return self._same("texts without padding", found, torch.cat(expected))
        except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
            warn_once(f"{type(model).__name__} reads padded rows, since without padding: {first_line(error)}.")
            return False
        finally:
            setattr(model, KERNELS_ATTRIBUTE, before)

    def _gates(self, layers: list[HeadLayer]) -> None:
        """Check that gates of one change nothing, and that gates of zero change the outputs."""
        ones = torch.ones(len(layers), 1, max(layer.heads for layer in layers), device=self.ids.device)
        same = self._same("gates of one", self._encode(self.first, {"H": ones})[0], self.expected[0])
        changed = self._same("gates of zero", self._encode(self.first, {"H": 0 * ones})[0], self.expected[0], True)
        if not same or not changed:
            self.obstacles["gates"] = f"gates of {'zero do not silence its heads' if same else 'one change it'}"

    def _encode(self, ids: Tensor, gates: dict[str, Tensor] | None = None) -> Tensor:
        return self.outputs(encode(self.model, ids[None], torch.zeros_like(ids)[None], gates))

    def _same(self, name: str, found: Tensor, expected: Tensor, at_least: bool = False) -> bool:
        found, expected = found.float(), expected.float()
        scale = expected.abs().nan_to_num(0, 0, 0).max().clamp(min=torch.finfo(torch.float32).tiny)
        # Weights that are NaN are reported where they matter, and are no fault of the architecture.
        differences = ((found - expected).abs() / scale).nan_to_num(torch.inf)[expected.isfinite()]
        largest = float(differences.max()) if len(differences) else self.tolerance
        check = Check(name, largest, self.tolerance, at_least)
        self.checks.append(check)
        return check.passed
