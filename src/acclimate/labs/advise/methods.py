"""``acclimate methods``: what methods there are, and what each does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.base.catalog import read_entries
from acclimate.base.files import read_json_object
from acclimate.base.options import verb
from acclimate.base.registry import imported_plugins
from acclimate.base.verbs import Next
from acclimate.labs.advise.options import MethodsOptions
from acclimate.results.scores import HELPED, HURT

if TYPE_CHECKING:
    from acclimate.adaptation.method import Method

PURPOSES = (
    "Start here",
    "Use the end task",
    "Forget less",
    "Learn better representations",
    "Learn sentence embeddings",
    "Learn the words of the domain",
    "For comparison",
)
"""What methods are for, in the order in which they are listed."""
GROUP = "acclimate.methods"
FIELDS = ("name", "paper", "summary", "purpose", "cost", "preparation", "kinds", "trains", "needs_task")
"""What is known of each method, see :class:`acclimate.adaptation.method.Method`."""
ALL_KINDS = ("masked", "causal")
SECTION = "Attributes:"
"""Heading of the parameters in the docstring of a method."""
OTHERS = "Others"
"""Heading of the methods without one of the purposes that are listed."""
COST_NOTE = (
    "The number is the time per token relative to lm, roughly; + is preparation before the first step. Start with lm, "
    "and compare any other method with it: acclimate compare --methods lm,NAME ..."
)


@verb(MethodsOptions)
def methods(options: MethodsOptions) -> list[dict[str, Any]]:
    """List all methods, or describe one.

    Returns:
        A row per method: ``name``, ``paper``, ``summary``, ``purpose``, ``cost`` per token relative to ``lm``,
        ``preparation`` before the first step, ``kinds`` of language models, whether it ``trains`` and ``needs_task``,
        what was ``measured`` in published studies, and the models that it was ``worse_on`` than its cheapest rival.
        If one is named, its row has a ``description``, too.

    Raises:
        UserError: If there is no method of that name.
    """
    if options.name is None:
        return list_methods()
    from acclimate.adaptation.method import lookup

    method = lookup(options.name)
    return [{**next(row for row in list_methods() if row["name"] == method.name), "description": _describe(method)}]


def list_methods() -> list[dict[str, Any]]:
    """Return a row per method; without plugins it is read from the source, as importing torch takes seconds."""
    if "torch" in sys.modules or imported_plugins() or entry_points(group=GROUP):
        import inspect

        from acclimate.adaptation.method import lookup, names

        classes = [lookup(name) for name in names()]
        rows = [{name: getattr(cls, name) for name in FIELDS} for cls in classes]
        files = [Path(inspect.getfile(cls)) for cls in classes]
    else:
        found = [entry for _, entry in sorted(read_entries(GROUP).items())]
        rows, files = [{name: entry[name] for name in FIELDS} for entry in found], [entry["file"] for entry in found]
    studies = [_studies(row["name"], file) for row, file in zip(rows, files, strict=True)]
    return [
        {**row, "measured": list(map(_verdict, own)), "worse_on": worse_on(own)}
        for row, own in zip(rows, studies, strict=True)
    ]


def show_methods(rows: Sequence[Mapping[str, Any]], options: MethodsOptions) -> Iterator[Any]:
    """Yield what ``acclimate methods`` prints."""
    if options.name is None:
        yield from _method_tables(rows)
        yield "acclimate methods NAME explains a method, its parameters and its paper."
        yield Next(["adapt", "--model", "MODEL", "--corpus", "TEXT", "--method", "lm"])
        return
    yield rows[0]["description"].removesuffix("\n")
    needs = ["--task", "TASK"] if rows[0]["needs_task"] else []
    yield Next(["adapt", "--model", "MODEL", "--corpus", "TEXT", *needs, "--method", rows[0]["name"]])


def _method_tables(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return one table per purpose, and a note on the cost."""
    from rich.table import Table

    groups: dict[str, list[Mapping[str, Any]]] = {purpose: [] for purpose in (*PURPOSES, OTHERS)}
    for row in rows:
        groups[row["purpose"] if row["purpose"] in PURPOSES else OTHERS].append(row)
    width = max(len(row["name"]) for row in rows)
    tables = list[Any]()
    for purpose, members in groups.items():
        table = Table(title=purpose, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(min_width=width, no_wrap=True)
        table.add_column(min_width=7, no_wrap=True)
        table.add_column()
        for row in sorted(members, key=lambda one: (one["cost"], bool(one["preparation"]), one["name"])):
            only = "" if set(ALL_KINDS) <= set(row["kinds"]) else f" ({' and '.join(row['kinds'])} models only)"
            cost = f"{row['cost']:g} ×{' +' if row['preparation'] else ''}" if row["trains"] else ""
            found = (
                f"worse than without it on {len(row['worse_on'])} models" if len(row["worse_on"]) > 1 else "measured"
            )
            table.add_row(row["name"], cost, row["summary"] + only + (f"; {found}" if row["measured"] else ""))
        tables += [table] if members else []
    return [*tables, COST_NOTE]


def _studies(name: str, file: Path) -> list[dict[str, Any]]:
    """Return the published studies of a method; the folder of its paper holds them."""
    studies = (read_json_object(file.with_name("verdict.json")) or {}).get("studies", [])
    return [one for one in studies if one["name"] == name]


def _verdict(study: Mapping[str, Any]) -> str:
    """Return what a study measured of a method, as a line."""
    return (
        f"Measured in docs/results/{study['study']} with {study['adaptations']} adaptations, against "
        f"{study['rival']}: {study['summary']}."
    )


def worse_on(studies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the models on which a method hurt more end tasks than it helped, against its cheapest rival."""
    balance = Counter[str]()
    for row in (row for one in studies for row in one["against_rival"] if row.get("task")):
        balance[row["model"]] += {HURT: 1, HELPED: -1}.get(row["verdict"], 0)
    return sorted(model for model, more in balance.items() if more > 0)


def _describe(method: type[Method]) -> str:
    """Return what a method is, with the default of each parameter, also of those that it inherits."""
    import inspect

    notes = [method.paper] if method.paper else []
    notes += [f"{' and '.join(method.kinds)} models only"] if set(ALL_KINDS) - set(method.kinds) else []
    about = f" ({'; '.join(notes)})" if notes else ""
    texts = [inspect.cleandoc(cls.__doc__ or "").partition(SECTION) for cls in method.__mro__]
    written = texts[0][0].strip()
    made = written.startswith(f"{method.__name__}(")  # by the dataclass decorator, for a class without a docstring
    prepares = f"; before the first step, {method.preparation}" if method.preparation else ""
    text = f"{method.name}{about}: {method.summary}\n\n"
    text += "" if made or not written else f"{written}\n\n"
    text += f"Cost per token: roughly {method.cost:g} times the cost of lm{prepares}.\n\n" if method.trains else ""
    studies = _studies(method.name, Path(inspect.getfile(method)))
    found = list(map(_verdict, studies)) or ["Not measured in a published study."]
    text += "\n".join(found) + "\n\n" if method.trains else ""
    defaults, unexplained, lines = _defaults(method), _types(method), list[str]()
    explained = [inspect.cleandoc("\n" + found.partition("Raises:")[0]) for _, _, found in texts]
    for line in "\n".join(filter(None, explained)).splitlines():
        parameter, colon, rest = line.partition(":")
        if colon and parameter in defaults:
            line = f"{parameter} = {defaults[parameter]}:{rest}"
            unexplained.pop(parameter, None)
        lines.append(f"    {line}".rstrip())
    lines += [f"    {parameter} = {defaults[parameter]} ({kind})" for parameter, kind in unexplained.items()]
    return text + "\n".join(lines).rstrip() + "\n" * bool(lines) + _describe_paper(method, defaults)


def _defaults(method: type[Method]) -> dict[str, str]:
    """Return the default of each parameter of a method, as text."""
    import dataclasses

    found = {}
    for field in dataclasses.fields(method):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        found[field.name] = "required" if value is dataclasses.MISSING else repr(value)
    return found


def _types(method: type[Method]) -> dict[str, str]:
    """Return the type of each parameter of a method, as its author wrote it."""
    import dataclasses

    return {
        field.name: field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        for field in dataclasses.fields(method)
    }


def _describe_paper(method: Any, defaults: dict[str, str]) -> str:
    """Return the published values that differ from the defaults of a method, and the options of the paper's runs."""
    import textwrap

    from acclimate.adaptation.options import AdaptOptions
    from acclimate.base.options import option_fields
    from acclimate.base.registry import published

    text = ""
    for name, mark in published(method).items():
        values = "; ".join(f"{preset}: {value!r}" for preset, value in mark.values.items())
        line = f"{name} = {defaults[name]} ({values})" + (f": {mark.reason}" if mark.reason else "")
        text += textwrap.fill(line, 119, initial_indent="    ", subsequent_indent="        ") + "\n"
    if text:
        selects = ", which the parameter preset=NAME selects" if hasattr(method, "preset") else ""
        text = f"\nDepartures from published values{selects}:\n\n{text}"
    if method.paper_options:
        fields = option_fields(AdaptOptions)
        flags = " ".join(f"{fields[name].flag} {value}" for name, value in method.paper_options.items())
        text += f"\nThe paper adapts with {flags}\n"
    return text
