"""Instruction-following, measured on prompts whose answers a program can check, in the manner of IFEval.

Each instruction says something about the form of the answer: its number of sentences, words that it contains or
avoids, JSON, capital letters, a list (Zhou et al., 2023). Adaptation to plain text can reduce this ability while the
loss on general text stays the same.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from acclimate.base.device import to_device
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.files import check_regular_file
from acclimate.base.limits import LimitedTemplate
from acclimate.base.records import texts_fingerprint
from acclimate.models.generating import Decoding, render_prompt, write_texts
from acclimate.models.loading import load_language_model, load_tokenizer, read_kind

PROMPTS = "instructions.jsonl"
"""File of the included instructions, next to this module."""


@dataclass(frozen=True)
class Instruction:
    """A prompt, and the checks that its answer has to pass: dictionaries of ``check``, a name, and its arguments."""

    prompt: str
    checks: list[dict[str, Any]]

    def is_followed(self, answer: str) -> bool:
        """Return whether an answer passes all checks; an empty one never does."""
        answer = answer.strip().translate(STRAIGHT_QUOTES)
        calls = [dict(entry) for entry in self.checks]
        return bool(answer) and all(CHECKS[call.pop("check")](answer, **call) for call in calls)


def read_instructions(path: str | Path | None = None) -> list[Instruction]:
    """Read instructions from a JSONL file; None reads those that are included.

    Raises:
        UserError: If the file cannot be read, or a line is not an instruction.
    """
    if path is not None:
        check_regular_file(Path(path))
    try:
        source = files("acclimate.evaluation") / PROMPTS if path is None else Path(path)
        lines = source.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"The instructions in '{path}' cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"The instructions in '{path}' are not UTF-8; save the file in this encoding.") from error
    found = [_read_line(line, f"{path or PROMPTS}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UserError(f"'{path}' has no instruction; give one JSON object per line, with 'prompt' and 'checks'.")
    return found


def included_version() -> str:
    """Return a hash of the included instructions."""
    return texts_fingerprint([(files("acclimate.evaluation") / PROMPTS).read_text(encoding="utf-8")])


def _read_line(line: str, where: str) -> Instruction:
    try:
        value = json.loads(line)
        prompt, checks = value["prompt"], value["checks"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{where}: expected a JSON object with 'prompt' and 'checks'.") from error
    if not isinstance(prompt, str) or not prompt.strip() or not isinstance(checks, list) or not checks:
        raise UserError(f"{where}: 'prompt' must be a text and 'checks' a list with at least one check.")
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise UserError(f"{where}: 'prompt' has half of a surrogate pair, which is no character.")
    for entry in checks:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("check"), str):
            raise UserError(f"{where}: each check is an object with the name of a check under 'check'.")
        name = entry["check"]
        if name not in CHECKS:
            raise unknown_name_error(f"check in {where}:", name, CHECKS)
        given = {key: value for key, value in entry.items() if key != "check"}
        try:
            inspect.signature(CHECKS[name]).bind("", **given)
            for key, value in given.items():
                _check_argument(key, value)
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: the arguments of the check '{name}' are wrong: {error}") from error
    return Instruction(prompt, checks)


def _check_argument(name: str, value: Any) -> None:
    """Check the type of an argument of a check, which depends on its name alone.

    Raises:
        ValueError: If it has another type.
    """
    if name in ("words", "texts", "choices", "keys"):
        if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
            raise ValueError(f"'{name}' must be a list of texts")
    elif name == "text":
        if not isinstance(value, str) or not value:
            raise ValueError("'text' must be a text")
    elif name == "only":
        if not isinstance(value, bool):
            raise ValueError("'only' must be true or false")
    elif isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"'{name}' must be an integer")


def measure_instructions(
    model: str | Path, instructions: Sequence[Instruction] | None = None, *, max_tokens: int = 160
) -> dict[str, Any]:
    """Measure the share of instructions that a model follows, decoding greedily with its chat template.

    Args:
        model: A causal language model with a chat template: its folder or Hub name.
        instructions: The instructions; None uses those that are included.
        max_tokens: Maximum tokens of an answer, which is cut there.

    Returns:
        ``followed``: for each instruction whether its answer passes all checks (strict, without corrections of the
        answer); ``share``: the mean; ``answers``; ``prompts``; ``unfinished``: number of answers that were cut.

    Raises:
        UserError: If the model cannot generate text, or has no chat template.
    """
    instructions = read_instructions() if instructions is None else instructions
    prompts = [instruction.prompt for instruction in instructions]
    check_answers(model)
    loaded = load_language_model(model)
    answers, unfinished = generate_answers(to_device(loaded.model), loaded.tokenizer, prompts, max_tokens)
    followed = [one.is_followed(answer) for one, answer in zip(instructions, answers, strict=True)]
    return {
        "followed": followed,
        "share": sum(followed) / len(followed),
        "answers": answers,
        "prompts": prompts,
        "unfinished": unfinished,
    }


def check_answers(model: str | Path) -> None:
    """Check that a model can answer, before anything is measured.

    Raises:
        UserError: If there is no model, it cannot generate text, or its tokenizer has no chat template.
    """
    kind = read_kind(model)
    if kind.uses_masking:
        raise UserError(f"'{model}' is a {kind.name} language model, which cannot answer; use a causal one.")
    if not load_tokenizer(model).chat_template:
        raise UserError(
            f"The tokenizer of '{model}' has no chat template, so it was not trained to follow instructions; "
            "measure an instruction-tuned model."
        )


def generate_answers(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_tokens: int
) -> tuple[list[str], int]:
    """Return the greedy answer to each prompt under the chat template, and how many of them were cut."""
    with LimitedTemplate(tokenizer) as template:
        texts = [render_prompt(tokenizer, template, [{"role": "user", "content": prompt}]) for prompt in prompts]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    made = write_texts(model, tokenizer, rows, Decoding(max_tokens), "--max-tokens")
    return [one.text for one in made], sum(not one.finished for one in made)


STRAIGHT_QUOTES = str.maketrans("“”‘’", "\"\"''")


def _words(answer: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['-][^\W_]+)*", answer)


def _lines(answer: str) -> list[str]:
    return [line.strip() for line in answer.splitlines() if line.strip()]


def _count_word(answer: str, word: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", answer, flags=re.IGNORECASE))


def _has_sentences(answer: str, count: int) -> bool:
    ends = re.findall(r"[.!?]+[\"')]*(?=\s|$)", answer)
    return len(ends) + (re.search(r"[.!?]+[\"')]*$", answer) is None) == count


def _has_words(answer: str, least: int = 1, most: float = float("inf")) -> bool:
    return least <= len(_words(answer)) <= most


def _is_number(answer: str) -> bool:
    return re.fullmatch(r"[-+]?\d+(?:[.,]\d+)*\.?", answer) is not None


def _is_one_of(answer: str, choices: list[str]) -> bool:
    return answer.strip(" .!\"'").lower() in {choice.lower() for choice in choices}


def _has_bullets(answer: str, count: int, only: bool = False) -> bool:
    lines = _lines(answer)
    bullets = sum(re.match(r"[-*•]\s+\S", line) is not None for line in lines)
    return bullets == count and (not only or len(lines) == count)


def _has_numbers(answer: str, count: int) -> bool:
    numbers = [found[1] for line in _lines(answer) if (found := re.match(r"(\d+)[.)]\s+\S", line))]
    return numbers == [str(number) for number in range(1, count + 1)]


def _has_paragraphs(answer: str, count: int) -> bool:
    return sum(1 for part in re.split(r"\n\s*\n", answer) if part.strip()) == count


def _is_comma_list(answer: str, count: int) -> bool:
    parts = answer.split(",")
    return len(_lines(answer)) == 1 and len(parts) == count and all(1 <= len(_words(part)) <= 3 for part in parts)


def _is_json(answer: str, keys: list[str] | None = None, items: int | None = None) -> bool:
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", answer, flags=re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else answer)
    except (ValueError, RecursionError):
        return False
    if keys is not None:
        return isinstance(value, dict) and sorted(value) == sorted(keys)
    return isinstance(value, list) and items in (None, len(value))


def _has_case(answer: str, convert: Callable[[str], str]) -> bool:
    return answer == convert(answer) and any(letter.isalpha() for letter in answer)


CHECKS: dict[str, Callable[..., bool]] = {
    "sentences": _has_sentences,
    "words": _has_words,
    "number": _is_number,
    "one_of": _is_one_of,
    "bullets": _has_bullets,
    "numbered": _has_numbers,
    "paragraphs": _has_paragraphs,
    "comma_list": _is_comma_list,
    "json": _is_json,
    "uppercase": lambda answer: _has_case(answer, str.upper),
    "lowercase": lambda answer: _has_case(answer, str.lower),
    "contains": lambda answer, words, least=1: all(_count_word(answer, word) >= least for word in words),
    "avoids": lambda answer, words: not any(_count_word(answer, word) for word in words),
    "contains_text": lambda answer, texts: all(text in answer for text in texts),
    "avoids_text": lambda answer, texts: not any(text.lower() in answer.lower() for text in texts),
    "starts": lambda answer, text: answer.startswith(text),
    "ends": lambda answer, text: answer.endswith(text),
    "line": lambda answer, text: text in _lines(answer)[1:-1],
}
"""The checks by name. Each takes an answer and returns whether it passes."""
