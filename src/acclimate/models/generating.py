"""Text that causal models and encoder-decoders write, in batches: prompts, stop strings, greedy or sampled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

from acclimate.base.device import copy_to
from acclimate.base.errors import UserError, check_stop, first_line, shorten
from acclimate.base.limits import LimitedTemplate
from acclimate.models.batching import micro_batch_tokens, token_budget_batches
from acclimate.models.encoding import reads_pairs
from acclimate.models.families import longest_text

BATCH_FACTOR = 8
"""Factor on the usual tokens per batch after short prompts: with a cache of keys and values, a step reads one token of
each text."""


@dataclass(frozen=True)
class Decoding:
    """How a text is written.

    Attributes:
        max_new_tokens: Maximum tokens of the text, which is cut there.
        stop: Strings at which the text ends; they are not part of it.
        temperature: Temperature of sampling; 0 takes the most likely token.
        seed: Random seed of sampling.
        top_p: With sampling, the probability of the most likely tokens together that are sampled from; 1 for all.
    """

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0


class Written(NamedTuple):
    """A text that a model wrote, whether it ended by itself or at a stop string, and its ids without the end."""

    text: str
    finished: bool
    ids: Sequence[int] = ()


def render_prompt(
    tokenizer: PreTrainedTokenizerBase, template: LimitedTemplate, turns: Sequence[dict[str, str]]
) -> str:
    """Return turns as text, with what the chat template puts before an answer.

    Raises:
        UserError: If the template does not accept the turns, or leaves out the last.
    """
    try:
        text = template.render(list(turns), add_generation_prompt=True, enable_thinking=False)
    except ValueError as error:
        raise UserError(
            f"The chat template of '{tokenizer.name_or_path}' does not accept a question ({first_line(error)}); set "
            "another as tokenizer.chat_template and save the tokenizer."
        ) from error
    if (last := turns[-1]["content"]).strip() not in text:
        raise UserError(f"The chat template of '{tokenizer.name_or_path}' leaves out the question {shorten(last)}.")
    return text


def write_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Sequence[int]],
    decoding: Decoding,
    flag: str = "--max-new-tokens",
    times: int = 1,
    on_step: Callable[[int], None] | None = None,
    more_ends: Sequence[int] = (),
    seeds: Sequence[int] | None = None,
) -> list[Written]:
    """Return what a model writes after each row of token ids.

    Rows of similar length share a batch, the longest first, with padding on the left (of an encoder on the right).
    A text depends neither on other rows nor on their order, but for rounding. If it is sampled, its random numbers
    follow from its seed, its row, and how many equal rows come before it.

    Args:
        model: A causal language model, or an encoder-decoder.
        tokenizer: Its tokenizer.
        rows: The ids of each prompt, or of the text that the encoder reads, special tokens included.
        decoding: How texts are written.
        flag: The option of the maximum tokens, for messages.
        times: Factor on the usual tokens per batch, as far as memory allows.
        on_step: Called after each step with the tokens written so far, those after the ends of texts included.
        more_ends: Ids at which a text ends, in addition to those of the model.
        seeds: Random seed of each row (rows,); None for that of ``decoding``.

    Raises:
        UserError: If a prompt and its text do not fit into the positions of the model.
    """
    most = decoding.max_new_tokens
    longest = max(map(len, rows), default=0)
    paired = reads_pairs(model)
    if (max(longest, most) if paired else longest + most) > (limit := longest_text(model) or math.inf):
        raise UserError(
            f"A prompt of {longest:,} tokens and an answer of {most:,} do not fit into the {limit:,} "
            f"positions of '{tokenizer.name_or_path}'; give a smaller {flag}."
        )
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = tokenizer.eos_token_id if ends is None else ends
    final = {*(ends if isinstance(ends, list) else [ends]), *more_ends} - {None}
    padding = next(one for one in (tokenizer.pad_token_id, *final, 0) if one is not None)
    settings: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if paired:  # checkpoints for summaries search with beams, and have a minimum length
        settings |= {"num_beams": 1, "min_length": 0, "early_stopping": False, "length_penalty": 1.0}
    digests = _digests(rows, [decoding.seed] * len(rows) if seeds is None else seeds) if decoding.temperature else []
    made: list[Written] = [Written("", False)] * len(rows)
    written = 0
    was_training = model.training
    model.eval()
    for batch in token_budget_batches(rows, micro_batch_tokens(model, times=times), added=most):
        check_stop()
        width = len(rows[batch[0]])
        ids = torch.full((len(batch), width), padding)
        mask = torch.zeros_like(ids)
        for place, number in enumerate(batch):
            size = len(rows[number])
            here = slice(0, size) if paired else slice(width - size, width)
            ids[place, here] = torch.as_tensor(rows[number])
            mask[place, here] = 1
        start = 1 if paired else width  # of what is written, in the output
        watching: list[Any] = [_AtStrings(tokenizer, decoding.stop, start)] if decoding.stop else []
        watching += [_Watched(on_step, written - start * len(batch))] if on_step else []
        if decoding.temperature:
            draws = torch.stack([_draw(digests[number], most) for number in batch]).to(model.device)
            settings["logits_processor"] = [_Sampling(decoding, draws, start)]
        with torch.inference_mode():
            output = model.generate(  # type: ignore[operator]
                input_ids=copy_to(ids, model.device),
                attention_mask=copy_to(mask, model.device),
                max_new_tokens=most,
                **settings,
                eos_token_id=sorted(final) or None,
                pad_token_id=padding,
                stopping_criteria=watching or None,
            )
        written += output[:, start:].numel()
        for number, row in zip(batch, output[:, start:].tolist(), strict=True):
            made[number] = _read(tokenizer, row, final, decoding.stop)
    model.train(was_training)
    return made


def _read(tokenizer: PreTrainedTokenizerBase, row: list[int], final: set[int], stop: Sequence[str]) -> Written:
    """Return the text of the ids of a row, up to its first end."""
    end = next((place for place, one in enumerate(row) if one in final), None)
    text = str(tokenizer.decode(row[:end], skip_special_tokens=True))
    cuts = [place for one in stop if (place := text.find(one)) >= 0]
    return Written(text[: min(cuts)] if cuts else text, bool(cuts) or end is not None, row[:end])


def _digests(rows: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[int]:
    """Return what determines the random numbers of each row: its seed, its ids, and its number among equal ones."""
    seen, found = Counter[Any](), []
    for row, seed in zip(rows, seeds, strict=True):
        key = (seed, *map(int, row))
        found.append(int.from_bytes(blake2b(repr((key, seen[key])).encode(), digest_size=16).digest()))
        seen[key] += 1
    return found


def _draw(digest: int, count: int) -> Tensor:
    """Return uniform numbers (count,) of so few bits that the product with a sum in fp32 stays below the sum."""
    return torch.from_numpy(np.random.default_rng(digest).integers(2**23, size=count) / 2**23).float()


class _Sampling(LogitsProcessor):
    """Lets a greedy search sample: only the token that the random number of its row draws stays possible.

    Attributes:
        draws: Random numbers (rows, tokens).
    """

    def __init__(self, decoding: Decoding, draws: Tensor, start: int) -> None:
        self.decoding, self.draws, self.start = decoding, draws, start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores (rows, vocabulary)."""
        chances = (scores.float() / self.decoding.temperature).softmax(-1)
        if self.decoding.top_p < 1:
            ordered = chances.sort(-1, descending=True).values
            likelier = ordered.cumsum(-1) - ordered
            least = ordered.masked_fill(likelier >= self.decoding.top_p, math.inf).amin(-1, keepdim=True)
            chances = chances.masked_fill(chances < least, 0)
        sums = chances.cumsum(-1)
        wanted = self.draws[:, input_ids.shape[1] - self.start, None] * sums[:, -1:]
        drawn = torch.searchsorted(sums, wanted, right=True)
        return torch.full_like(scores, -math.inf).scatter(1, drawn, 0.0)


class _Watched(StoppingCriteria):
    """Reports the tokens written so far, and ends nothing."""

    def __init__(self, report: Callable[[int], None], before: int) -> None:
        self._report, self._before = report, before

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Return that no row has ended: (rows,)."""
        self._report(self._before + input_ids.numel())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class _AtStrings(StoppingCriteria):
    """Ends each row at the first of several strings; tokens after it in the same step are cut later."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], start: int) -> None:
        self.tokenizer, self.stop, self.start = tokenizer, stop, start
        self.tokens = max(len(one.encode()) for one in stop) + 1  # a token has at least a byte

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Return which rows have ended: (rows,)."""
        first = max(self.start, input_ids.shape[1] - self.tokens)
        texts = self.tokenizer.batch_decode(input_ids[:, first:].tolist())
        return torch.tensor([any(one in text for one in self.stop) for text in texts], device=input_ids.device)
