"""Options for reading the rows of a labelled task: names of columns, and the seed of splits that are drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from acclimate.base.bounds import SeedNumber
from acclimate.base.errors import UserError, shorten
from acclimate.base.options import DATA, Option, defaults, option_fields, option_words, options
from acclimate.data.fields import Strings, TextColumn, join_names, read_names

if TYPE_CHECKING:
    from acclimate.data.editing import TextEdits

PairColumn = Annotated[
    str | None,
    Option(
        "Column of the second text of a pair in the task, which the first is compared with.",
        DATA,
        default="text_pair, or a usual name",
        study=False,
        recorded=False,
    ),
]
LabelColumn = Annotated[
    str | None,
    Option("Column of the label in the task.", DATA, default="label, or a usual name", study=False, recorded=False),
]


GroupColumn = Annotated[
    str | None,
    BeforeValidator(join_names),
    Option(
        "Column of what rows share that are not independent, such as patient, author or document.",
        DATA,
        default="document, or another certain name; the passage of a question",
        more="Of several names, separated by commas, the first is used that the rows have. Rows of a group stay in "
        "one split and are resampled together.",
        study=False,
        recorded=False,
    ),
]


@options
class LabelOptions:
    """Options for reading a task, for verbs whose ``text_column`` belongs to a corpus."""

    _: KW_ONLY
    pair_column: PairColumn = None
    label_column: LabelColumn = None
    group_column: GroupColumn = None
    split_seed: Annotated[
        SeedNumber,
        Option(
            "Random seed of the test and dev splits that are drawn if the task lacks them.",
            DATA,
            study=False,
            recorded=False,
        ),
    ] = 0
    task_kind: Annotated[
        str | None,
        Option(
            "Kind of the task, such as regression for whole numbers that are not classes.",
            DATA,
            default="from its files and columns",
            study=False,
            recorded=False,
        ),
    ] = None
    passages: Annotated[
        str | Path | None,
        Option(
            "Passages of a task whose rows name them by id, such as a click log: a table with id and text.",
            DATA,
            study=False,
            recorded=False,
        ),
    ] = None
    strict: Annotated[
        bool,
        Option("Refuse a task with rows that cannot be used, which are left out.", DATA, study=False, recorded=False),
    ] = False
    merge_labels: Annotated[
        bool,
        Option(
            "Merge labels that differ in case, blanks or Unicode form, or by a typo, into the most frequent spelling.",
            DATA,
            study=False,
            recorded=False,
        ),
    ] = False


def _check_encoding(value: str | None) -> str | None:
    """Return the name of an encoding; raise a ValueError if Python does not know it."""
    try:
        "".encode(value or "utf-8")
    except LookupError as error:
        raise ValueError("must be an encoding that Python knows, such as cp1252, latin-1 or utf-16") from error
    return value


Encoding = Annotated[
    str | None,
    AfterValidator(_check_encoding),
    Option(
        "Encoding of files of text that are not UTF-8, such as cp1252.",
        DATA,
        default="UTF-8",
        more="It applies to text, HTML, CSV, TSV and JSON. A file that starts as UTF-8 is read as UTF-8.",
        study=False,
        recorded=False,
    ),
]


CLEAN_RULES = ("html", "quotes", "signatures")


def _check_rules(given: Any) -> Any:
    """Return names of what is removed; raise a ValueError if one is unknown."""
    if unknown := next((name for name in given if name not in CLEAN_RULES), None):
        raise ValueError(f"must be of {', '.join(CLEAN_RULES)}, not {shorten(unknown)}")
    return given


CLEAN = Option(
    "What to remove from each text: html, and quotes and signatures of mails, such as html,signatures.",
    DATA,
    default="nothing",
    more="A model that is fine-tuned on a task reads later texts in the same way. See "
    ":class:`acclimate.data.editing.TextEdits`.",
    many=True,
    study=False,
    recorded=False,
)
MASK_PERSONAL = Option(
    "Replace e-mail addresses, phone numbers, IBANs and URLs with secrets by [email], [phone], [iban] and [url].",
    DATA,
    more="Nothing else is found: names and postal addresses stay.",
    study=False,
    recorded=False,
)


@options
class _Edited:
    """Options for editing texts before anything reads them."""

    _: KW_ONLY
    clean: Annotated[Strings, BeforeValidator(read_names), AfterValidator(_check_rules), CLEAN] = ()
    mask_personal: Annotated[bool, MASK_PERSONAL] = False

    @property
    def edits(self) -> TextEdits:
        """What is done to each text."""
        from acclimate.data.editing import TextEdits  # here, so that --help does not load it

        return TextEdits(tuple(self.clean), self.mask_personal)


@options
class TextOptions(_Edited):
    """Options for reading text."""

    _: KW_ONLY
    text_column: TextColumn = "text"
    encoding: Encoding = None
    # Sections of a study file take these; the fingerprint of the text has them.
    clean: Annotated[
        Strings, BeforeValidator(read_names), AfterValidator(_check_rules), replace(CLEAN, study=True)
    ] = ()
    mask_personal: Annotated[bool, replace(MASK_PERSONAL, study=True)] = False


DEFAULT_TEXT = TextOptions()
EDITS = tuple(option_fields(_Edited))
"""Names of the options that edit texts."""


def text_options(given: Mapping[str, Any]) -> TextOptions:
    """Return the options for reading text that are among others."""
    return TextOptions(**{name: given[name] for name in option_fields(TextOptions) if given.get(name) is not None})


@options
class ReadingOptions(LabelOptions, _Edited):
    """Options for reading a task, for verbs that read no corpus."""

    _: KW_ONLY
    text_column: Annotated[
        str | None,
        BeforeValidator(join_names),
        Option(
            "Column of the text in the task; several, as in subject,body, are joined.",
            DATA,
            default="text, or a usual name",
            study=False,
            recorded=False,
        ),
    ] = None
    encoding: Encoding = None


DEFAULT_READING = ReadingOptions()


def reading_names() -> list[str]:
    """Return the names of the options that say how a task is read."""
    return list(option_fields(ReadingOptions))


def text_words(flag: str, sources: Any, placeholder: str = "TEXT", *, column: str | None = None) -> list[str]:
    """Return a flag with each source of text that was given, as words of a command line.

    Args:
        flag: The flag, such as ``--corpus``.
        sources: The values given; None for nothing.
        placeholder: The word for text that has no name.
        column: The column of sources that name none, for commands without ``--text-column``.
    """
    from acclimate.data.sources import name_column

    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources or ())
    named = [str(source) for source in given if isinstance(source, str | os.PathLike)]
    if column is not None:
        named = [name_column(source, column) for source in named]
    return [word for source in named or [placeholder] for word in (flag, source)]


def reading_words(given: Any) -> list[str]:
    """Return the options of how text and tasks are read that were given, as words of a command line."""
    usual = {"encoding": None, **defaults(_Edited)}
    usual |= defaults(LabelOptions) if getattr(given, "task", None) is not None else {}
    own = {name: getattr(given, name, value) for name, value in usual.items()}
    return option_words(ReadingOptions, {name: value for name, value in own.items() if value != usual[name]})


def default_task_name(source: str | Path) -> str:
    """Return the name of a task: its folder's, its file's without the ending, or its dataset's on the Hub."""
    from acclimate.data.opening import TABLES, suffixes_of  # here, so that --help does not load its libraries
    from acclimate.data.sources import is_hub_name, parse_hub_name

    if is_hub_name(source):
        name, config, *_ = parse_hub_name(str(source))
        return "-".join(part for part in (Path(name).name, config) if part)
    path = Path(source)
    if path.is_dir():
        return path.name
    name = path.name.rpartition(":")[0] if ":" in path.name and not path.exists() else path.name
    endings = sorted(suffixes_of(TABLES), key=len, reverse=True)
    ending = next((ending for ending in endings if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def find_task(source: str | Path) -> tuple[Path, str | None]:
    """Return the path of a task, and the column of its text if that follows after a colon, as in ``data.csv:body``.

    Raises:
        UserError: If there is no such file or folder; a dataset of the Hub is not looked for.
    """
    from acclimate.data.sources import is_hub_name, refuse_url

    refuse_url(source)
    path = Path(source).expanduser()
    before, _, column = str(path).rpartition(":")
    if before and column and not path.exists() and Path(before).exists():
        return Path(before), column
    if not is_hub_name(source) and not path.is_file():
        check_task_folder(path)
    return path, None


def check_task_folder(path: Path) -> None:
    """Check that a task folder exists.

    Raises:
        UserError: If it does not; the message suggests the closest name.
    """
    if path.is_dir():
        return
    expected = (
        "a task is a folder with train, test and optionally dev as .jsonl, .csv, .tsv or .parquet, one such file, or "
        "hf:NAME"
    )
    if path.exists():
        raise UserError(f"'{path}' is a file, but {expected}.")
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    hint = f" Did you mean '{path.parent / close[0]}'?" if close else f" Note that {expected}."
    raise UserError(f"There is no task file or folder '{path}'.{hint}")
