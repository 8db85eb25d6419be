"""Soft prompts that a small network makes from each text (hypernetwork prompts; after Jiang et al., EMNLP 2023).

The prompt is at the virtual tokens that the tokenizer appends to a text
(:mod:`acclimate.parts.modules.virtual_tokens`). Their embeddings are replaced by what the network computes, so the
embedding layer alone changes, and every head and every layout of rows works as without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

PROMPTS_KEY = "acclimate_prompts"
"""Configuration entry of a model with a network for prompts: a :class:`Prompts` as a mapping."""


@dataclass(frozen=True)
class Prompts:
    """The network for prompts of a model.

    Attributes:
        first: Id of the first virtual token; the others follow it.
        length: Number of virtual tokens.
        components: Number of prompts that are mixed.
        hidden: Width of the hidden layer of the network.
        unread: Ids of tokens that the network does not read: padding and the mask token.
    """

    first: int
    length: int
    components: int
    hidden: int
    unread: tuple[int, ...]

    @classmethod
    def of(cls, entry: Any) -> Prompts:
        """Return what an entry of a configuration says."""
        return cls(**{**entry, "unread": tuple(entry["unread"])})


def prompts_of(config: Any) -> Prompts | None:
    """Return the network for prompts that a configuration describes; None for none."""
    entry = getattr(config, PROMPTS_KEY, None)
    return None if entry is None else Prompts.of(entry)


class PromptNetwork(nn.Module):
    """P(x) = sum_m a_m(x) V_m, with a(x) = softmax(W_2 gelu(W_1 norm(e(x)) + b_1) + b_2).

    e(x) is the mean word embedding of the text, without its prompt, masks and padding; it has no gradient. V_m are
    components (length, width). The network finds a text by the complete prompt at its end. A virtual token i with the
    id i + size (1 + w), beyond the rows of the table, gets the embedding of word w instead.
    """

    def __init__(self, width: int, what: Prompts) -> None:
        """Make a network for embeddings of ``width``, with components of zeros."""
        super().__init__()
        self.what = what
        self.components = nn.Parameter(torch.zeros(what.components, what.length, width))
        self.weigh = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, what.hidden), nn.GELU(), nn.Linear(what.hidden, what.components)
        )
        self._codes: Any = None  # the input of the forward pass in progress

    def decode(self, table: nn.Embedding, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace ids beyond the table by those of their words, before it is read."""
        self._codes = inputs[0]
        word = inputs[0] // table.num_embeddings - 1
        return torch.where(word < 0, inputs[0], word), *inputs[1:]

    def fill(self, table: nn.Embedding, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the embeddings (rows, tokens, width) with the prompt of each text at its virtual tokens."""
        codes, self._codes = self._codes, None  # a copy of the model gets no state
        if output.shape[1] < self.what.length:
            return output
        place, text = self._find(codes % table.num_embeddings)
        most = text.numel() // self.what.length  # texts; their number is not known without waiting for the device
        read = (text >= 0) & (place < 0)
        for token in self.what.unread:
            read &= codes != token
        index = torch.where(read, text, most).flatten()
        states = nn.functional.pad(output.detach().flatten(0, 1).float(), (0, 1), value=1)  # and a count
        sums = states.new_zeros(most + 1, states.shape[1]).index_add(0, index, states)[:most]
        means = sums[:, :-1] / sums[:, -1:].clamp(min=1)
        shares = self.weigh(means.to(self.components.dtype)).float().softmax(-1).to(self.components.dtype)
        prompts = torch.einsum("tm,mlw->tlw", shares, self.components)
        made = prompts[text.clamp(min=0), place.clamp(min=0)].to(output.dtype)
        return torch.where(((place >= 0) & (codes < table.num_embeddings))[..., None], made, output)

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the place of each token in a prompt, and the number of its text (rows, tokens), each -1 for none."""
        length, tokens = self.what.length, ids.shape[1]
        run = torch.arange(self.what.first, self.what.first + length, device=ids.device)
        begins = nn.functional.pad((ids.unfold(1, length, 1) == run).all(-1).long(), (0, length - 1))
        number = torch.arange(tokens, device=ids.device)
        place = number - torch.where(begins > 0, number, -length).cummax(1).values
        ended = nn.functional.pad(begins.cumsum(1), (length, 0))[:, :tokens]  # prompts before each token
        each = begins.sum(1)
        before = (each.cumsum(0) - each)[:, None]  # prompts in the rows before
        text = torch.where(ended < each[:, None], ended + before, -1)
        return torch.where(place < length, place, -1), text


def add_prompts(model: PreTrainedModel, what: Prompts, seed: int = 0) -> PromptNetwork:
    """Add a network for prompts to the embedding layer of a model with the virtual tokens; return the network.

    Its components start as the embeddings of random words, drawn with ``seed``.
    """
    table: Any = model.get_input_embeddings()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = PromptNetwork(table.embedding_dim, what)
        network.components.copy_(table.weight[torch.randint(what.first, (what.components, what.length))])
    table.add_module("prompts", network.to(table.weight.device, table.weight.dtype))
    table.register_forward_pre_hook(network.decode)
    table.register_forward_hook(network.fill)
    setattr(model.config, PROMPTS_KEY, {**asdict(what), "unread": list(what.unread)})
    return network
