"""The command line application: a command per registered verb, made from its declaration."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import acclimate
from acclimate.base.errors import UserError, environment_integer
from acclimate.base.terminal import SafeConsole, echo
from acclimate.base.verbs import Next, Verb, find_declared, find_verbs
from acclimate.base.version import __version__
from acclimate.cli.commands import Commands, Group
from acclimate.cli.document import make_document
from acclimate.cli.flags import add_command, make_epilog

FIRST = "acclimate compare --model roberta-base --corpus text/ --task tasks/restaurant --out runs/first"
"""Example of the whole command line."""


def make_app() -> typer.Typer:
    """Return the application with the commands of all verbs."""
    app = typer.Typer(
        cls=Commands,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help=acclimate.__doc__,
        epilog=make_epilog(FIRST, "acclimate COMMAND --help"),
    )
    app.callback()(_check_single_process)
    groups = {"": app}
    for one in find_declared():
        if not isinstance(one, Verb):
            epilog = make_epilog(one.example, one.page)
            groups[one.name] = typer.Typer(cls=Group, no_args_is_help=True, help=one.help, epilog=epilog)
            app.add_typer(groups[one.name], name=one.name, rich_help_panel=one.section)
    for verb in find_verbs():
        if verb.cli:
            epilog, panel = make_epilog(verb.example, verb.page), verb.section or None
            add_command(groups[verb.name.rpartition(" ")[0]], verb, _runner(verb), epilog=epilog, panel=panel)
    return app


def _runner(verb: Verb) -> Callable[[Any, bool], None]:
    """Return the function that runs a command, from its options and whether to print JSON."""

    def run(given: Any, as_json: bool) -> None:
        following = list[str]()
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            result = verb.call(given)
            if verb.shared:
                from acclimate.engine.distributed import leave_process_group

                leave_process_group()
                if environment_integer("RANK"):
                    return
            for part in verb.shown(result, given):
                following += [part.command] if isinstance(part, Next) else []
                if isinstance(part, str | Next):
                    echo(part)
                else:
                    SafeConsole().print(part)
            decision = verb.decided(result, given)
            for line in decision.describe() if decision else ():
                echo(line)
        if as_json:
            more = {"decision": decision} if decision else {}
            echo(make_document(verb.name, out=getattr(given, "out", None), result=result, next=following, **more))
        if decision:
            raise typer.Exit(decision.exit_code)

    return run


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"acclimate {__version__}")
        raise typer.Exit


def _check_single_process(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Refuse to start a command several times where the processes would not share its work."""
    name, size = context.invoked_subcommand, environment_integer("WORLD_SIZE", 1)
    sharing = [verb.name for verb in find_verbs() if verb.shared]
    if size <= 1 or name in sharing:
        return
    each = ", with --workers auto" if name == "compare" else ""
    raise UserError(
        f"{size} processes were started (WORLD_SIZE), and each would do all the work of '{name}': only "
        f"{', '.join(sharing)} share their work. Start 'acclimate {name}' without torchrun or accelerate launch{each}."
    )


app = make_app()
