"""A causal language model of this machine that answers prompts, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.limits import LimitedTemplate
from acclimate.data.chat import special_tokens
from acclimate.data.tokenizing import read_as_text
from acclimate.models.families import longest_text
from acclimate.models.generating import Decoding, render_prompt, write_texts
from acclimate.models.loading import load_language_model


class LocalModel:
    """A causal language model that answers prompts, under its chat template if it has one."""

    def __init__(self, path: str, plain: bool) -> None:
        """Load the model.

        Args:
            path: Folder, or name on the Hugging Face Hub.
            plain: Whether prompts are continued as they are.

        Raises:
            UserError: If it cannot be loaded, or does not write text.
        """
        loaded = load_language_model(path)
        if loaded.kind.uses_masking:
            raise UserError(f"'{path}' is a masked model, which cannot write text; use a decoder.")
        self._model, self._tokenizer = to_device(loaded.model), loaded.tokenizer
        self._chats = bool(loaded.tokenizer.chat_template) and not plain

    def write(self, requests: Sequence[Any]) -> list[tuple[str, str, int, int]]:
        """Return text, end, and tokens read and written of the answer to each request; all may be sampled.

        Args:
            requests: Requests with ``prompt``, ``system``, ``max_tokens``, ``temperature``, ``seed`` and ``stop``.
        """
        rows = self._encode(requests)
        limit = longest_text(self._model)
        made: list[tuple[str, str, int, int]] = [("", "rejected", 0, 0)] * len(rows)
        groups: dict[tuple[int, tuple[str, ...], float], list[int]] = {}
        for place, (row, one) in enumerate(zip(rows, requests, strict=True)):
            if not limit or len(row) + one.max_tokens <= limit:
                groups.setdefault((one.max_tokens, tuple(one.stop), one.temperature), []).append(place)
        for settings, places in groups.items():
            chosen, seeds = [rows[place] for place in places], [requests[place].seed for place in places]
            how = Decoding(*settings)
            written = write_texts(self._model, self._tokenizer, chosen, how, "max_tokens", seeds=seeds)
            for place, (text, finished, ids) in zip(places, written, strict=True):
                ended = ("finished" if text.strip() else "empty") if finished else "truncated"
                made[place] = (text, ended, len(rows[place]), len(ids))
        return made

    def _encode(self, requests: Sequence[Any]) -> list[list[int]]:
        """Return the token ids of each prompt, in which special tokens of the model are ordinary text."""
        if not self._chats:
            reader = read_as_text(self._tokenizer)
            texts = [f"{one.system}\n\n{one.prompt}" if one.system else one.prompt for one in requests]
            return [reader(text, verbose=False)["input_ids"] for text in texts]
        marks, texts = special_tokens(self._tokenizer), list[str]()
        with LimitedTemplate(self._tokenizer) as template:
            for one in requests:
                said = {"system": one.system, "user": one.prompt}
                for mark in marks:
                    said = {role: text.replace(mark, f"{mark[:1]} {mark[1:]}") for role, text in said.items()}
                turns = [{"role": role, "content": text} for role, text in said.items() if text or role == "user"]
                texts.append(render_prompt(self._tokenizer, template, turns))
        return [self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
