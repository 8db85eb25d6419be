"""``acclimate advise`` and ``methods``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.base.options import METHOD, values
from acclimate.base.terminal import SafeConsole, echo
from acclimate.cli.app import app, describe_plugins, describe_reading, describe_text, print_next, print_tables
from acclimate.cli.commands import PAGES, Command, make_epilog
from acclimate.cli.early import check_name
from acclimate.cli.options import Plugin, command, import_plugins
from acclimate.labs.advise.options import AdviseOptions

if TYPE_CHECKING:
    from acclimate.adaptation.method import Method

SECTION = "Attributes:"
"""Heading of the parameters in the docstring of a method."""
OTHERS = "Others"
"""Heading of the methods without one of the purposes that are listed."""
COST_NOTE = (
    "The number is the time per token relative to lm, roughly; + is preparation before the first step. Start with lm, "
    "and compare any other method with it: acclimate compare --methods lm,NAME ..."
)


@command(
    app,
    AdviseOptions,
    plugins=True,
    example="acclimate advise --model roberta-base --corpus reviews/ --general wiki.txt --out advice.json",
)
def advise(options: AdviseOptions) -> None:
    """Measure how far the domain is from general text, and what a pilot adaptation learns and forgets."""
    from acclimate.labs.advise.advice import advise as run

    report = run(**values(options))
    console = SafeConsole()
    for part in report["words"]:
        console.print(part["about"][:1].upper() + part["about"][1:], style="bold")
        console.print(f"  {part['says']}")
        console.print(f"  It does not say: {part['does_not_say']}", style="dim")
    if options.out is not None:
        echo(f"All figures: {options.out}")
    task: list[Any] = [] if options.task is None else ["--task", options.task]
    texts = (("--corpus", options.corpus), ("--general", options.general))
    described = [word for text in texts for word in describe_text(*text, column=options.text_column)]
    described += [*task, *describe_reading(options)]
    chosen = report["recommendation"]["options"]
    described += [word for name, value in chosen.items() for word in ("--set", f"adapt.{name}={value}")]
    print_next(
        ["acclimate", "compare", "--model", options.model, *described, "--out", "runs/compare"],
        "to see whether adaptation helps",
    )


@app.command(cls=Command, epilog=make_epilog("acclimate methods dga", PAGES["methods"]))
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a method, to describe its parameters.", rich_help_panel=METHOD, metavar="NAME"),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """List all methods by purpose, with their cost, or describe one with its paper, parameters and defaults."""
    import_plugins(plugin)
    if name is not None:
        check_name(name, "acclimate.methods", "method")
    from acclimate.adaptation.method import lookup, names

    if name is None:
        print_tables(_method_tables([lookup(known) for known in names()]))
        echo("acclimate methods NAME explains a method, its parameters and its paper.")
        print_next(["acclimate", "adapt", "--model", "MODEL", "--corpus", "TEXT", "--method", "lm"])
        return
    method = lookup(name)
    echo(_describe(method), nl=False)
    needs = ["--task", "TASK"] if method.needs_task else []
    words = ["--model", "MODEL", "--corpus", "TEXT", *needs, "--method", method.name, *describe_plugins()]
    print_next(["acclimate", "adapt", *words])


def _method_tables(methods: Sequence[type[Method]]) -> list[Any]:
    """Return one table per purpose, and a note on the cost."""
    from rich.table import Table

    from acclimate.adaptation.method import PURPOSES
    from acclimate.models.kinds import KINDS

    groups: dict[str, list[type[Method]]] = {purpose: [] for purpose in (*PURPOSES, OTHERS)}
    for method in methods:
        groups[method.purpose if method.purpose in PURPOSES else OTHERS].append(method)
    width = max(len(method.name) for method in methods)
    tables = list[Any]()
    for purpose, members in groups.items():
        table = Table(title=purpose, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(min_width=width, no_wrap=True)
        table.add_column(min_width=7, no_wrap=True)
        table.add_column()
        for method in sorted(members, key=lambda one: (one.cost, bool(one.preparation), one.name)):
            only = "" if set(KINDS) <= set(method.kinds) else f" ({' and '.join(method.kinds)} models only)"
            found = "; measured" if _verdict(method) else ""
            table.add_row(method.name, _cost(method), method.summary + only + found)
        tables += [table] if members else []
    return [*tables, COST_NOTE]


def _verdict(method: type[Method]) -> list[str]:
    """Return what published studies measured of a method, a line each; the folder of its paper holds them."""
    import inspect
    from pathlib import Path

    from acclimate.base.files import read_json_object

    file = Path(inspect.getfile(method)).with_name("verdict.json")
    studies = (read_json_object(file) or {}).get("studies", [])
    return [
        f"Measured in docs/results/{one['study']} with {one['seeds']} seeds, against {one['baseline']}: "
        f"{one['summary']}.\n"
        for one in studies
        if one["name"] == method.name
    ]


def _cost(method: type[Method]) -> str:
    return f"{method.cost:g} ×{' +' if method.preparation else ''}" if method.trains else ""


def _describe(method: type[Method]) -> str:
    """Return what a method is, with the default of each parameter, also of those that it inherits."""
    import inspect

    from acclimate.models.kinds import KINDS

    notes = [method.paper] if method.paper else []
    notes += [f"{' and '.join(method.kinds)} models only"] if set(KINDS) - set(method.kinds) else []
    about = f" ({'; '.join(notes)})" if notes else ""
    texts = [inspect.cleandoc(cls.__doc__ or "").partition(SECTION) for cls in method.__mro__]
    written = texts[0][0].strip()
    made = written.startswith(f"{method.__name__}(")  # by the dataclass decorator, for a class without a docstring
    prepares = f"; before the first step, {method.preparation}" if method.preparation else ""
    text = f"{method.name}{about}: {method.summary}\n\n"
    text += "" if made or not written else f"{written}\n\n"
    text += f"Cost per token: roughly {method.cost:g} times the cost of lm{prepares}.\n\n" if method.trains else ""
    found = _verdict(method)
    text += "".join(found or ["Not measured in a published study.\n"]) + "\n" if method.trains else ""
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
