"""Options of tasks of generation: what a prompt holds, how answers are written, and what reads and scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from acclimate.base.bounds import NonNegative, Size
from acclimate.base.options import DATA, METHOD, Option, options
from acclimate.data.fields import read_listed
from acclimate.tasks.embedding_options import Function


def _check_pattern(value: str | None) -> str | None:
    """Return a regular expression; raise a ValueError if it is none."""
    import regex  # here, so that --help does not load it

    try:
        regex.compile(value or "")
    except regex.error as error:
        raise ValueError(f"must be a regular expression ({error})") from error
    return value


def _read_stops(value: Any) -> Any:
    """Return strings as a tuple, in which a backslash and n are a line break, as on a command line; None for none."""
    listed = () if value is None else read_listed(value)
    if any(not isinstance(one, str) or not one for one in listed):
        raise ValueError("must be texts that are not empty")
    return None if value is None else tuple(one.replace("\\n", "\n") for one in listed)


@options
class GenerationOptions:
    """Options of fine-tuning that apply only to tasks of generation."""

    _: KW_ONLY
    max_new_tokens: Annotated[Size, Option("Maximum tokens of an answer of a task of generation.", DATA)] = 128
    stop: Annotated[
        Sequence[str] | None,
        BeforeValidator(_read_stops),
        Option(
            "String at which an answer ends, such as '\\n'.",
            DATA,
            default="the end token; for models without a chat template also a line break, if no train answer has one, "
            "else 'Question:' in a new line",
            many=True,
        ),
    ] = None
    temperature: Annotated[
        NonNegative, Option("Temperature at which answers are sampled with the seed; 0 is greedy.", METHOD)
    ] = 0.0
    answer_pattern: Annotated[
        str | None,
        AfterValidator(_check_pattern),
        Option(
            "Regular expression of the answer in an output, such as '#### (.+)': its last match, or first group.",
            DATA,
            default="the whole output",
            more="It is also applied to references in which it is found. An output without it counts as an empty "
            "answer.",
        ),
    ] = None
    scorer: Annotated[
        Function | None,
        Option(
            "Python function of question, answer and list of references that returns a score from 0 to 1, as "
            "FILE.py:FUNCTION.",
            DATA,
            more="Or a language model as a judge, 'http://HOST:PORT/v1 model=NAME' or 'model:PATH', with "
            "``prompt='... {question} {references} {answer}'`` if the default does not fit; the first number of its "
            "answer is the score. The score is the first metric. It is asked once for the same answer, also in later "
            "runs; a change of the file of a function calls it again.",
        ),
    ] = None
    scorer_labels: Annotated[
        str | Path | None,
        Option(
            "Answers that people have scored, with which the scorer is compared: question, answer, score.",
            DATA,
            more="A table; references are optional. The correlation is in the metrics as ``scorer_agreement``.",
            study=False,
        ),
    ] = None
