"""Types of options that several verbs share: models, text, tasks, places, and how a run reports itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import MAX_SIZE, Integer, Positive, SeedNumber, Size
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option
from acclimate.models.kinds import CAUSAL
from acclimate.results.requirements import read_requirement

if TYPE_CHECKING:
    TextInput = str | Path | Iterable[str | Path]  # a corpus is iterable
    Models = Mapping[str, str | Path] | Sequence[str | Path]
    Texts = Mapping[str, TextInput]
    Strings = Sequence[str]
else:  # the command line imports neither torch nor transformers to show its help
    TextInput = Models = Any
    Texts = dict[str, Any]
    Strings = tuple[str, ...]

PrecisionName = Literal["fp32", "bf16", "fp16", "auto"]
MASK_RATE = 0.15
"""Share of tokens to predict (Devlin et al., 2019)."""


def read_listed(value: Any) -> Any:
    """Return one or several values as a tuple."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else (value,)


def read_counts(value: Any) -> Any:
    """Return one or several numbers as a tuple; in a text, they are separated by commas."""
    if value is None:
        return None
    return tuple(value.split(",")) if isinstance(value, str) else read_listed(value)


def join_names(value: Any) -> Any:
    """Return a list of names as a text, which a study file or a command can hold."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def read_places(value: Any) -> Any:
    """Return one or several paths or names as a tuple of texts; ``~`` is the home folder.

    Raises:
        ValueError: If one is empty.
    """
    places = tuple(os.path.expanduser(str(one)) if isinstance(one, str | Path) else one for one in read_listed(value))
    if "" in places:
        raise ValueError("must not be empty")
    return places


def read_names(value: Any) -> Any:
    """Return names as a tuple; they are given as a list, as one text such as ``"lm,dga"``, or both."""
    items = read_listed(value)
    if not all(isinstance(item, str) for item in items):
        return items
    return tuple(dict.fromkeys(name.strip() for item in items for name in _split(item) if name.strip()))


def _split(item: str) -> list[str]:
    return [item] if "=" in item else item.split(",")  # the values of parameters may have commas


def split_name(item: Any) -> tuple[str, str]:
    """Split ``NAME=FOLDER``; the name of a folder alone, or of a folder with ``=`` in its path, is empty."""
    name, sign, folder = str(item).partition("=")
    named = sign and name and folder and "/" not in name and not os.path.isdir(item)
    return (name, os.path.expanduser(folder)) if named else ("", os.path.expanduser(str(item)))


def read_models(value: Any) -> Any:
    """Return the folders of models by name; they are given as such, or as a list of ``FOLDER`` and ``NAME=FOLDER``."""
    if isinstance(value, Mapping):
        return dict(value)
    named: dict[str, str] = {}
    for item in read_listed(value):
        name, folder = split_name(item)
        name = name or Path(folder).name
        if name in named:
            raise ValueError(f"has two models with the name '{name}'; give each its own name as NAME=FOLDER")
        named[name] = folder
    return named


def read_tasks(value: Any) -> Any:
    """Return tasks as a tuple; ``~`` in the path of a folder is the home folder."""
    return tuple(os.path.expanduser(task) if isinstance(task, str | Path) else task for task in read_listed(value))


def read_required(value: Any) -> Any:
    """Return one or several requirements as a tuple of texts.

    Raises:
        ValueError: If one cannot be read.
    """
    return tuple(str(read_requirement(one)) for one in read_listed(value))


def check_distinct(values: Any) -> Any:
    """Return values of which none occurs twice; raise a ValueError otherwise."""
    for value in values:
        if list(values).count(value) > 1:
            raise ValueError(f"has {value} twice; give it once")
    return values


def text_option(what: str, **more: Any) -> Option:
    """Return the description of an option that names one or several sources of text."""
    return Option(f"{what}: file, folder, glob or hf:NAME.", DATA, many=True, **more)


Model = Annotated[str | Path, Option("Model folder or name on the Hugging Face Hub.", MODEL)]
Folder = Annotated[str | Path | None, Option("Output directory.", OUTPUT, default="nothing is saved")]
JsonFile = Annotated[str | Path | None, Option("JSON file to write.", OUTPUT, default="nothing is saved")]
StopWords = Annotated[
    str, Option("Stop words: english, none, another language such as german, or a file with one word per line.", DATA)
]

Require = Annotated[
    Strings,
    BeforeValidator(read_required),
    Option(
        "Requirement on the result, such as 'reviews > 0'; the exit code is 1 if it is not met, 3 if undecided.",
        OUTPUT,
        more="See :mod:`acclimate.results.requirements`; nothing is raised, and the result has the ``decision``.",
        many=True,
        study=False,
        recorded=False,
    ),
]
Places = Annotated[Strings, BeforeValidator(read_places)]


Seed = Annotated[
    SeedNumber,
    Option(
        "Random seed.",
        more="The same seed gives the same weights on the same machine: bit by bit on a CPU, up to the rounding of "
        "sums on an accelerator.",
    ),
]
Length = Annotated[Integer, Field(ge=8, le=MAX_SIZE)]
LENGTH = Option(
    "Maximum tokens per text.",
    DATA,
    more="Longer documents are split. Virtual tokens that a method adds are not counted.",
)
MaxLength = Annotated[Length, LENGTH]
LENGTH_OF_CAUSAL = f"{CAUSAL.max_length:,} for causal models, or all positions of a model with fewer"
DryRun = Annotated[
    bool, Option("Train and write nothing; check the input, and print the steps and the estimated time.", OUTPUT)
]
Progress = Annotated[bool, Option("Show progress bars.", OUTPUT, cli=False, study=False, recorded=False)]
TextColumn = Annotated[
    str,
    BeforeValidator(join_names),
    Option(
        "Column or key that holds the text in tables and JSON; several, as in subject,body, are joined.",
        DATA,
        more="A source can name its own: ``reviews.csv:body``. ``*`` reads whole rows, for the transform ``records``.",
        default="text, or a usual name such as review",
    ),
]
Precision = Annotated[
    PrecisionName,
    Option(
        "Precision of the forward pass; auto is bf16 where the hardware supports it, fp16 on older GPUs, else fp32.",
        more="Weights stay in fp32.",
    ),
]


PilotBatch = Annotated[Size, Option("Texts per optimizer step of the pilot.")]
PilotRate = Annotated[Positive | None, Option("Peak learning rate of the pilot.", default="the method's")]
PilotMethod = Annotated[str, Option("Method of the pilot; `acclimate methods` lists them.", METHOD)]
PilotSeed = Annotated[Seed, Option("Random seed of the pilot.")]
