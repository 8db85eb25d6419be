"""Documents that programs clean line by line (ProX, Zhou et al., 2024)."""

from __future__ import annotations

import ast
import html
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from acclimate.api import (
    EXAMPLES,
    CachedFunction,
    Documents,
    FunctionKey,
    OperationContext,
    Transform,
    UserError,
    Writing,
    check_stop,
    register_transform,
    shorten,
)

Program = Callable[[str], str]
"""Returns the program of a document: one call per line."""
PARAMETERS: dict[str, dict[str, type]] = {
    "keep_doc": {},
    "keep_chunk": {},
    "drop_doc": {},
    "remove_lines": {"line_start": int, "line_end": int},
    "normalize": {"source_str": str, "target_str": str},
}
"""Functions of a program, with the types of their parameters; ``remove_lines(all=True)`` removes all lines."""
MAX_CALL = 10_000
"""Characters of a call; longer ones are malformed."""
MAX_GROWTH, MAX_WORK = 2, 10**9
"""Length of a result in lengths of its document, and characters that the calls of a program may visit.

Calls beyond either are skipped as malformed: a program cleans."""


@dataclass
class Outcome:
    """What a program did.

    Attributes:
        text: The document; None if the program drops it.
        calls: Number of valid calls by function.
        malformed: The calls that were skipped, because they are no calls, their arguments do not fit, or the lines or
            the string that they name are not in the document.
        removed: Number of lines that were removed.
    """

    text: str | None
    calls: Counter[str] = field(default_factory=Counter)
    malformed: list[str] = field(default_factory=list)
    removed: int = 0


def parse_call(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return the function and the arguments of a call; None if it is malformed. Nothing is evaluated.

    The line must be a call of a function in :data:`PARAMETERS` whose arguments are constants.
    """
    if len(line) > MAX_CALL:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)  # unknown escapes
            call = ast.parse(line.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in PARAMETERS:
        return None
    name, types = call.func.id, PARAMETERS[call.func.id]
    names = [*list(types)[: len(call.args)], *(keyword.arg for keyword in call.keywords)]
    nodes = [*call.args, *(keyword.value for keyword in call.keywords)]
    if len(names) != len(nodes) or len(set(names)) < len(names) or not all(isinstance(n, ast.Constant) for n in nodes):
        return None
    given = {str(key): node.value for key, node in zip(names, nodes, strict=True) if isinstance(node, ast.Constant)}
    if name == "remove_lines" and given == {"all": True} and given["all"] is True:
        return name, given
    if name == "normalize":
        given = {"target_str": "", **given}
    fits = given.keys() == types.keys() and all(type(given[key]) is kind for key, kind in types.items())
    return (name, given) if fits else None


def execute(program: str, text: str) -> Outcome:
    """Apply a program to a document.

    Strings are normalized first, within lines, and lines are removed then, so that their numbers, which start at 0,
    are those of the document that the program was written for. A range that ends after the last line is cut, and
    counted as malformed, as in the released code.

    Args:
        program: One call per line: ``drop_doc()``, ``keep_doc()``, ``keep_chunk()``, ``remove_lines(line_start=0,
            line_end=2)`` with both ends included, ``remove_lines(all=True)``, or ``normalize(source_str="a",
            target_str="b")``.
        text: The document.
    """
    lines, outcome, removed = text.split("\n"), Outcome(text), set[int]()
    size, work = len(text), 0
    calls = [(line, parse_call(line)) for line in program.split("\n") if line.strip()]
    for line, call in sorted(calls, key=lambda pair: pair[1] is not None and pair[1][0] != "normalize"):
        name, given = call or ("", {})
        fits = call is not None
        if name == "normalize":
            source, target = given["source_str"], given["target_str"]
            work += size
            fits = bool(source.strip("\n")) and "\n" not in source + target and work <= MAX_WORK
            count = sum(one.count(source) for one in lines) if fits else 0
            grown = size + count * (len(target) - len(source))
            fits = count > 0 and grown <= MAX_GROWTH * len(text)
            size = grown if fits else size
            lines = [one.replace(source, target) for one in lines] if fits else lines
        elif name == "remove_lines":
            first, last = given.get("line_start", 0), given.get("line_end", len(lines) - 1)
            named = range(max(first, 0), min(last + 1, len(lines)) if first >= 0 else 0)
            work += 20 * len(named)
            fits = 0 <= first <= last < len(lines) and work <= MAX_WORK
            removed.update(named if work <= MAX_WORK else ())
        elif name == "drop_doc":
            outcome.text = None
        if fits:
            outcome.calls[name] += 1
        else:
            outcome.malformed.append(line)
    outcome.removed = len(removed)
    if outcome.text is not None:
        outcome.text = "\n".join(line for place, line in enumerate(lines) if place not in removed)
    return outcome


def remove_call(first: int, last: int) -> str:
    """Return the call that removes the lines from ``first`` to ``last``."""
    return f"remove_lines(line_start={first}, line_end={last})"


def remove_where(is_noise: Sequence[bool]) -> list[str]:
    """Return the calls that remove the lines that are noise (lines,), one for each run of them."""
    calls, start = list[str](), None
    for place, noise in enumerate([*is_noise, False]):
        if noise and start is None:
            start = place
        elif not noise and start is not None:
            calls.append(remove_call(start, place - 1))
            start = None
    return calls


_LEGAL = re.compile(
    r"\b(all rights reserved|(cookie|privacy) (policy|settings|notice|preferences)|terms of (use|service)|"
    r"(uses?|accept|allow) (all )?cookies|copyright (©|\(c\)|\d{4}))|^\s*©",
    re.IGNORECASE,
)
_ACTION = re.compile(
    r"^\W*((share|print|email|reply|tweet|like) (this|on|to)|share|tweet|follow us|subscribe|sign (in|up|out)|"
    r"log ?(in|out)|register|read more|learn more|click here|load more|show more|view (all|more)|skip to|"
    r"back to (the )?top|next|previous|home|menu|search|advertisement|sponsored|loading)\b",
    re.IGNORECASE,
)
_PAGE = re.compile(r"(page\s+)?\d{1,4}(\s*(of|/)\s*\d{1,4})?", re.IGNORECASE)
_LINK = re.compile(r"(https?://|www\.)\S+|(?<![^\s@])[^\s@]++@[^\s@]+\.\w+")
_SEPARATOR = re.compile(r"\s[|»›>•·/]\s|\|")
_RULE = re.compile(r"[-=_*~#•·.\s]{4,}")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,30});", re.IGNORECASE)
_INVISIBLE = {"\u00a0": " ", "\u00ad": "", "\u200b": "", "\ufeff": ""}


def is_boilerplate(line: str) -> bool:
    """Return whether a line of an English web page is navigation, a notice, a link or a page number."""
    line = line.strip()
    words = len(line.split())
    if not words:
        return False
    return bool(
        (words <= 30 and _LEGAL.search(line))
        or (words <= 5 and _ACTION.match(line) and line[-1] not in ".!?")
        or _PAGE.fullmatch(line)
        or _LINK.fullmatch(line)
        or (len(_SEPARATOR.findall(line)) >= 3 and words <= 30 and line[0] != "|" and line[-1] not in ".!?")
        or _RULE.fullmatch(line)
    )


def write_by_rules(text: str) -> str:
    """Return a program that replaces HTML entities and invisible characters, and removes boilerplate."""
    strings = {found: html.unescape(found) for found in dict.fromkeys(_ENTITY.findall(text))}
    strings |= {character: to for character, to in _INVISIBLE.items() if character in text}
    calls = [
        f"normalize(source_str={json.dumps(source)}, target_str={json.dumps(_INVISIBLE.get(target, target))})"
        for source, target in strings.items()
        if source != target and "\n" not in target
    ]
    return "\n".join([*calls, *remove_where(list(map(is_boilerplate, text.split("\n")))), "keep_doc()"])


def line_features(line: str) -> dict[str, float]:
    """Return the features of a line: its form, and its words."""
    stripped, words = line.strip(), line.split()
    size = max(1, len(stripped))
    shares = {
        name: sum(map(test, stripped)) / size
        for name, test in (("letters", str.isalpha), ("digits", str.isdigit), ("capitals", str.isupper))
    }
    form = {
        "words": min(len(words), 40) / 40,
        "short": float(len(words) <= 5),
        "ends a sentence": float(stripped.endswith((".", "!", "?", '"', ":"))),
        "link": float(bool(_LINK.search(stripped))),
        "separators": min(len(_SEPARATOR.findall(stripped)), 4) / 4,
        "title case": sum(map(str.istitle, words)) / max(1, len(words)),
        "rules": float(is_boilerplate(line)),
    }
    return {**shares, **form, **{f"word {word.lower()}": 1.0 for word in re.findall(r"\w+", stripped)[:40]}}


def train_line_classifier(path: str) -> Callable[[Sequence[str]], Sequence[float]]:
    """Return the function that gives the probability that lines are noise, a logistic regression on their features.

    Args:
        path: JSON lines with ``text`` and ``label``, which is ``keep`` or ``remove``.

    Raises:
        UserError: If the file cannot be read, or does not have lines of both labels.
    """
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    error = UserError(f"'{path}' must have JSON lines with text and label, which is keep or remove, and some of both.")
    try:
        rows = [json.loads(row) for row in Path(path).read_text(encoding="utf-8-sig").split("\n") if row.strip()]
        lines, labels = [str(row["text"]) for row in rows], [row["label"] for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        raise error from None
    if {*map(str, labels)} != {"keep", "remove"}:
        raise error
    model = make_pipeline(FeatureHasher(2**14), LogisticRegression(class_weight="balanced", max_iter=1000))
    model.fit(list(map(line_features, lines)), [label == "remove" for label in labels])
    return lambda given: model.predict_proba(list(map(line_features, given)))[:, 1].tolist()


def read_program(returned: Any) -> list[str]:
    """Return the program that a function returned.

    Raises:
        TypeError: If it is not text.
    """
    if not isinstance(returned, str):
        raise TypeError(f"a program is text, not {shorten(returned)}")
    return [returned]


@register_transform(
    "refine",
    paper="ProX, Zhou et al., 2024",
    summary="documents that programs clean: noisy lines, strings, whole documents",
)
@dataclass(frozen=True)
class Refine(Transform):
    """Writes a small program for each document and executes it: lines are removed, strings replaced.

    Programs have the functions of ProX (:func:`execute`), are parsed and never evaluated as code. Calls that do not
    fit are skipped and counted.

    Attributes:
        by: What writes the programs: ``rules`` for boilerplate of English web pages; ``lines`` for a classifier of
            lines; or ``program``, a function of the user, for example around a model of ProX.
        lines: JSON lines with ``text`` and ``label`` (``keep`` or ``remove``), from which the classifier learns.
        threshold: Probability from which the classifier removes a line.
        program: ``FILE.py:FUNCTION``: a function from a document to its program; or a language model as a writer with
            its options, in quotation marks, see ``generate``. Programs are cached per document.
        key: What identifies the function in the cache, such as the version of its model; by default its code.
        errors: Malformed calls from which a program is ignored, 2 in the released code.
        removed: Share of the words from which a document is dropped rather than shortened.
        least: Minimum words of a document that a program changed; shorter ones are dropped. The released code drops
            all documents of up to 10 words.
    """

    main: ClassVar[str] = "by"
    files: ClassVar[tuple[str, ...]] = ("lines",)
    functions: ClassVar[tuple[str, ...]] = ("program",)
    by: Literal["rules", "lines", "program"] = "rules"
    lines: str | None = None
    threshold: float = 0.5
    program: Writing | None = None
    key: FunctionKey | None = None
    errors: int = 2
    removed: float = 0.95
    least: int = 11

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is missing or out of range.
        """
        if (self.by == "lines") != (self.lines is not None):
            raise UserError(
                "Transform 'refine': by=lines goes with lines=FILE, lines that are labelled keep or remove."
            )
        if (self.by == "program") != (self.program is not None):
            raise UserError("Transform 'refine': by=program goes with program=FILE.py:FUNCTION.")
        if not 0 < self.threshold <= 1 or not 0 < self.removed <= 1:
            raise UserError("Transform 'refine': threshold and removed are above 0 and at most 1.")
        if self.errors < 1 or self.least < 0:
            raise UserError("Transform 'refine': errors is at least 1, and least at least 0.")

    def apply(self, documents: Documents, context: OperationContext) -> Iterator[str]:
        """Clean the documents."""
        calls: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        malformed, dropped = list[str](), list[str]()
        for text, program in zip(documents, self._programs(documents, context), strict=True):
            check_stop()
            outcome = execute(program, text)
            calls.update(outcome.calls)
            counts["malformed_calls"] += len(outcome.malformed)
            malformed += outcome.malformed[: EXAMPLES - len(malformed)]
            if len(outcome.malformed) >= self.errors:
                counts["ignored_programs"] += 1
                yield text
                continue
            left, words = outcome.text, len(text.split())
            if left is None:
                reason = "dropped_by_program"
            elif left != text and (count := len(left.split())) < max(self.least, 1):
                reason = "dropped_too_short"
            elif left != text and count <= (1 - self.removed) * words:
                reason = "dropped_mostly_noise"
            else:
                counts["removed_lines"] += outcome.removed
                counts["changed_documents"] += left != text
                yield left
                continue
            counts[reason] += 1
            dropped += [text] if len(dropped) < EXAMPLES else []
        context.notes.update(calls=dict(calls), **counts, malformed_examples=malformed, dropped=dropped)

    def _programs(self, documents: Documents, context: OperationContext) -> Iterator[str]:
        """Yield the program of each document."""
        if self.program is None:
            yield from map(self._programmer(), documents)
            return
        write = CachedFunction(self.program, self.key, read_program, "program")
        yield from (str(program) for (program,) in write.map(documents, len(documents)))
        context.notes["writer"] = write.account()

    def _programmer(self) -> Program:
        """Return the function that writes the program of a document."""
        if self.lines is not None:
            noise = train_line_classifier(self.lines)

            def remove(text: str) -> str:
                lines = text.split("\n")
                pairs = zip(lines, noise(lines), strict=True)
                return "\n".join(remove_where([bool(line.strip()) and p >= self.threshold for line, p in pairs]))

            return remove
        return write_by_rules
