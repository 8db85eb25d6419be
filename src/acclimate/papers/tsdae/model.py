"""The decoder of TSDAE (Wang et al., Findings of EMNLP 2021): an encoder with cross-attention to a sentence vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.api import HeadLayer, UserError, decode, dropout_rates, family_of, linear_sizes, probe_of


class CrossAttention(nn.Module):
    """Attention of every token of a text to one vector v: h + W_o (W_v v + b_v) + b_o, perhaps normalized.

    With a single key every attention weight is one, so queries and keys would have no effect.
    """

    def __init__(self, width: int, norm: nn.LayerNorm | None, dropout: float, std: float) -> None:
        """Make a layer for states of ``width``.

        Args:
            width: Width of the states and of the vector.
            norm: The normalization after the self-attention, of which this layer has a new one; None for none.
            dropout: Dropout probability of what is added to the states.
            std: Standard deviation of the initial weights.
        """
        super().__init__()
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.value, self.output):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.Identity() if norm is None else nn.LayerNorm(width, norm.eps)

    def forward(self, hidden: Tensor, vectors: Tensor, text: Tensor) -> Tensor:
        """Add the vectors (texts, width) of the texts of the tokens, ``text`` (rows, tokens), to their states."""
        read = self.output(self.value(vectors)).to(hidden.dtype)
        read = read.index_select(0, text.flatten().clamp(min=0)).view(hidden.shape)
        return self.norm(hidden + self.dropout(read))


class TiedDecoder(nn.ModuleList):
    """The cross-attention of an encoder that also decodes: in TSDAE both are one network but for these layers.

    They follow the self-attention: in BERT and similar models, after its residual connection and normalization, as in
    the decoder of ``transformers``. Elsewhere their result is added to the result of the self-attention.
    """

    @staticmethod
    def check(model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that an encoder can also decode.

        Raises:
            UserError: If it cannot read from left to right.
        """
        probe, name = probe_of(model), type(model).__name__
        if not layers or probe is None or not probe.packs:
            reason = next(iter(probe.obstacles.values())) if probe and probe.obstacles else "its heads are not found"
            raise UserError(
                f"{name} cannot read from left to right, which reconstruction needs: {reason}. Use simcse, or a model "
                "of another architecture, such as BERT, RoBERTa or ModernBERT."
            )

    def __init__(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Attach the layers to an encoder, which reads as before until :meth:`decode` is called.

        Args:
            model: An encoder that :func:`acclimate.models.probe.attach` has prepared.
            layers: The result of ``attach``.

        Raises:
            UserError: As :meth:`check`.
        """
        self.check(model, layers)
        super().__init__()
        self.model = [model]  # a list, so that it is no submodule
        width = linear_sizes(layers[0].output)[1]
        names = {id(module): name for name, module in model.named_modules()}
        rate, std = max(dropout_rates(model), default=0.0), float(getattr(model.config, "initializer_range", 0.02))
        self._handles = []
        for layer in layers:
            place = layer.output
            if family_of(model.config).last_layer_end:
                place = model.get_submodule(names[id(layer.output)].rpartition(".")[0])
            norm = next((part for part in place.children() if isinstance(part, nn.LayerNorm)), None)
            cross = CrossAttention(width, norm, rate, std).to(model.device)
            hooks = _ReadVectors(cross)
            attention = model.get_submodule(layer.name)
            self._handles.append(attention.register_forward_pre_hook(hooks.take, with_kwargs=True))
            self._handles.append(place.register_forward_hook(hooks.apply))
            self.append(cross)

    def decode(self, ids: Tensor, text: Tensor, vectors: Tensor) -> Tensor:
        """Return the states (rows, tokens, width) of a decoder whose tokens attend to earlier ones and to a vector.

        Args:
            ids: Token ids (rows, tokens).
            text: Index of the text of each token, -1 at padding (rows, tokens).
            vectors: The vector of each text (texts, width).

        Raises:
            UserError: If the vectors have another width than the hidden states.
        """
        first = self[0]
        assert isinstance(first, CrossAttention)
        width = first.value.in_features
        if vectors.shape[1] != width:
            raise UserError(
                f"The vectors of the sentence encoder have {vectors.shape[1]} dimensions and its hidden states "
                f"{width}, so it cannot be its own decoder; use simcse."
            )
        return decode(self.model[0], ids, text, cross_vectors=(vectors, text))

    def remove(self) -> None:
        """Detach the layers from the encoder."""
        for handle in self._handles:
            handle.remove()


class _ReadVectors:
    """The hooks of one layer; the vectors are arguments, so that a checkpointed layer runs again with them."""

    def __init__(self, cross: CrossAttention) -> None:
        self._cross, self._given = cross, None

    def take(self, module: nn.Module, inputs: Any, arguments: dict[str, Any]) -> Any:
        self._given = arguments.pop("cross_vectors", None)
        return inputs, arguments

    def apply(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        given, self._given = self._given, None
        return None if given is None else self._cross(output, *given)
