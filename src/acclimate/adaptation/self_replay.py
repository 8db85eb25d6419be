"""Text that a model writes before it is adapted, to be replayed (Marek et al., 2026, arXiv:2605.26097).

The text is written in chunks of :data:`CHUNK` texts, each with a seed of its own, to the cache. A chunk that is there
is not written again, so an interrupted run continues after its last chunk, and trainings of the same model share them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from acclimate.adaptation.replay_options import SelfReplay
from acclimate.adaptation.run import Run
from acclimate.base.device import Precision, autocast, default_device, to_device
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder, read_json_object, write_json, write_text
from acclimate.base.limits import LimitedTemplate
from acclimate.base.locks import Claim
from acclimate.base.progress import Progress, print_message
from acclimate.base.records import fingerprint
from acclimate.data.chat import Chats, tokenize_chats
from acclimate.data.documents import Corpus, hash_document
from acclimate.data.token_dataset import TokenDataset, TokenDatasetWriter
from acclimate.data.tokenizing import cached_rows, read_as_text, tokenize
from acclimate.evaluation.lm_loss import read_for_scoring
from acclimate.models.families import longest_text
from acclimate.models.generating import BATCH_FACTOR, Decoding, Written, render_prompt, write_texts
from acclimate.models.loading import LanguageModel, load_language_model

CHUNK = 64
"""Texts per chunk."""
LENGTH = 1_024
"""Default maximum tokens per text, if the model has as many positions."""
EMPTY_CHUNKS = 4
"""Chunks without any token after which the model counts as one that writes nothing."""
PARTS = ("whole", "cut")
"""Texts that ended, and those that did not within the length."""
MARK = "\u2045content\u2046"
_VERSION = 2  # increment when the same model and options give different texts


def write_rows(given: SelfReplay, tokens: int, run: Run) -> TokenDataset:
    """Return rows of text that a model writes, or of conversations, with at least ``tokens`` tokens.

    Documents that do not end within the length have no end token in their rows.

    Args:
        given: How it writes; ``model`` and ``chat`` are set.
        tokens: Number of tokens to write.
        run: The run that replays them.

    Raises:
        UserError: If the model writes nothing.
    """
    assert given.model is not None
    quantized = run.adapter.quantization if run.adapter else None
    # A conversation is one row; a text may fill several, so that replay also reads what comes later in documents.
    writer = _Writer(given, given.length or (run.length if given.chat else LENGTH), quantized, run.precision)
    key = [_VERSION, {**given.identity(), "tokens": None}, writer.length, quantized, run.precision]
    folder = cache_folder() / "self" / fingerprint([*key, default_device().type])
    chunks: list[dict[str, Any]] = []
    digests: set[str] = set()
    total = repeated = 0
    with Progress("Writing text to replay", tokens, unit="tokens", enabled=run.progress) as bar:
        while total < tokens:

            def show(count: int, before: int = total) -> None:
                bar.update(before + count)

            chunk = _read_or_write(folder, len(chunks), writer, show)
            chunks.append(chunk)
            total += chunk["tokens"]
            repeated += sum(one in digests for one in chunk["texts"])
            digests |= set(chunk["texts"])
            bar.update(total)
            if not total and len(chunks) == EMPTY_CHUNKS:
                raise UserError(
                    f"'{given.model}' writes nothing but empty {'answers' if given.chat else 'texts'}, so there is "
                    "nothing to replay; name a text, as --replay wiki.txt"
                    f"{', or give self chat=no' if given.chat else ''}."
                )
    counts = {name: sum(chunk[name] for chunk in chunks) for name in (*PARTS, "empty")} | {"repeated": repeated}
    what = f"{counts.pop('whole') + counts['cut']:,} {'conversations' if given.chat else 'texts'}"
    told = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    print_message(f"Replay: the model wrote {total:,} tokens in {what} ({told}).", run.progress)

    def files(part: str) -> list[Path]:
        return [folder / f"{number:05}-{part}.jsonl" for number, chunk in enumerate(chunks) if chunk[part]]

    cache = cache_folder() / "rows"
    if given.chat:
        return tokenize_chats(Chats(files("whole")), run.loaded.tokenizer, run.length, cache=cache)
    framing = run.framing
    unended = framing if framing.documents == "framed" else replace(framing, documents="apart", end=None)
    parts = [
        tokenize(
            Corpus(found, dedup=False), run.loaded.tokenizer, run.length, framing=how, cache=cache, progress=False
        )
        for part, how in (("whole", framing), ("cut", unended))
        if (found := files(part))
    ]
    return parts[0] if len(parts) == 1 else _join(parts, cache)


def _read_or_write(folder: Path, number: int, writer: _Writer, on_step: Callable[[int], None]) -> dict[str, Any]:
    """Return the counts of a chunk, which is written first if no process has written it."""
    path = folder / f"{number:05}.json"
    if (found := read_json_object(path)) is not None:
        return found
    claim = Claim(folder / ".claim")
    claim.wait("another process that lets the same model write")
    try:
        if (found := read_json_object(path)) is None:
            made = writer.write(number, on_step)
            for part in PARTS:
                lines = [f"{json.dumps(row, ensure_ascii=False)}\n" for row in made[part]]
                write_text(folder / f"{number:05}-{part}.jsonl", "".join(lines))
            rows = [json.dumps(row).encode() for part in PARTS for row in made[part]]
            found = made | {part: len(made[part]) for part in PARTS}
            found["texts"] = [hash_document(row).hex() for row in rows]
            write_json(path, found)  # the last file: a chunk without it is written again
        return found
    finally:
        claim.release()


@dataclass
class _Writer:
    """Lets a model write; it is loaded with the first chunk that is not in the cache."""

    given: SelfReplay
    length: int
    quantized: str | None
    precision: Precision

    @cached_property
    def loaded(self) -> LanguageModel:
        """The model."""
        loaded = load_language_model(str(self.given.model), quantize=self.quantized)
        to_device(loaded.model)
        names = ("bos_token_id", "eos_token_id")  # and no penalties or cuts, with which it would not be its own text
        kept = {name: getattr(loaded.model.generation_config, name, None) for name in names}
        loaded.model.generation_config = GenerationConfig(**kept)
        if (limit := longest_text(loaded.model)) is not None:
            self.length = min(self.length, limit)
        return loaded

    def write(self, number: int, on_step: Callable[[int], None]) -> dict[str, Any]:
        """Return the rows of a chunk by their part (:data:`PARTS`), their tokens, and how many are ``empty``."""
        loaded = self.loaded
        with autocast(self.precision, loaded.model.device):
            if self.given.chat:
                return self._converse(number, on_step)
            start = start_ids(loaded)
            made = self._sample([start] * CHUNK, self.length - len(start), number, on_step)
        texts = [(one.finished, {"text": one.text}) for one in made if one.text.strip()]
        whole, cut = ([row for ended, row in texts if ended is wanted] for wanted in (True, False))
        tokens = sum(len(one.ids) for one in made if one.text.strip())
        return {"whole": whole, "cut": cut, "tokens": tokens, "empty": CHUNK - len(texts)}

    def _sample(
        self,
        rows: Sequence[Sequence[int]],
        most: int,
        seed: Any,
        on_step: Callable[[int], None],
        stop: tuple[str, ...] = (),
        ends: Sequence[int] = (),
    ) -> list[Written]:
        given = self.given
        digest = blake2b(repr((given.seed, seed)).encode(), digest_size=7).digest()
        how = Decoding(most, stop, given.temperature, int.from_bytes(digest), given.top_p)
        return write_texts(self.loaded.model, self.loaded.tokenizer, rows, how, "length", BATCH_FACTOR, on_step, ends)

    def _converse(self, number: int, on_step: Callable[[int], None]) -> dict[str, Any]:
        """Let the model write questions after what its template puts before them, and then answer them."""
        tokenizer = self.loaded.tokenizer

        def encode(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

        with LimitedTemplate(tokenizer) as template:
            try:
                before, mark, after = template.render([{"role": "user", "content": MARK}]).partition(MARK)
            except ValueError:
                mark = ""
            if not mark:
                raise UserError(
                    f"The chat template of '{self.given.model}' does not show where a question begins, so the model "
                    "cannot write any; give --replay 'self chat=no'."
                )
            end = encode(after.strip())[:1]
            special = set(end) <= set(tokenizer.all_special_ids)
            stop = () if special else (after.strip(),)
            prompt = encode(before)
            half = max(8, (self.length - len(prompt) - 16) // 2)
            asked = self._sample([prompt] * CHUNK, half, [number, "question"], on_step, stop, end if special else ())
            questions = [one.text.strip() for one in asked if one.finished and one.text.strip()]
            turns = [[{"role": "user", "content": question}] for question in questions]
            rows = [encode(render_prompt(tokenizer, template, turn)) for turn in turns]
        answered = self._sample(rows, half, [number, "answer"], on_step) if rows else []
        found = [
            ({"messages": [*turn, {"role": "assistant", "content": one.text.strip()}]}, len(row) + len(one.ids))
            for turn, row, one in zip(turns, rows, answered, strict=True)
            if one.finished and one.text.strip()
        ]
        tokens = sum(size for _, size in found)
        return {"whole": [chat for chat, _ in found], "cut": [], "tokens": tokens, "empty": CHUNK - len(found)}


def start_ids(loaded: LanguageModel) -> list[int]:
    """Return the ids before the first token of a document: the tokenizer's, else the begin or the end token.

    Raises:
        UserError: If there is neither.
    """
    ids, ordinary = read_for_scoring(read_as_text(loaded.tokenizer), "a")
    if before := [int(one) for one in ids[: len(ids) - ordinary]]:
        return before
    settings = (loaded.tokenizer, loaded.model.generation_config, loaded.model.config)
    named = [getattr(one, f"{name}_token_id", None) for name in ("bos", "eos") for one in settings]
    for found in named:
        if isinstance(found, int) or found:
            return [found if isinstance(found, int) else found[0]]
    raise UserError(
        f"The tokenizer of '{loaded.tokenizer.name_or_path}' has no token that begins or ends a text, so the model "
        "cannot write one from the start; set bos_token in tokenizer_config.json, or name a text to replay."
    )


def _join(parts: Sequence[TokenDataset], cache: Path) -> TokenDataset:
    """Return the rows of several datasets as one."""
    key = fingerprint([part.fingerprint for part in parts])

    def write(folder: Path | None) -> TokenDataset | None:
        largest = max(int(part.first_tokens(part.tokens).max()) for part in parts)
        first = 0
        with TokenDatasetWriter(folder, largest) as writer:
            for part in parts:
                for start in range(0, len(part), 1000):
                    writer.add(part[start : start + 1000], (first + part.document[start : start + 1000]).tolist())
                first += int(part.document[-1]) + 1
                for name in ("bytes", "characters", "dropped"):
                    setattr(writer, name, getattr(writer, name) + getattr(part, name))
            report = {**parts[0].report, "documents": sum(part.report["documents"] for part in parts)}
            return writer.finish(key, report)

    return cached_rows(cache, key, write)
