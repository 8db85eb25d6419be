"""Write the verdict of each folder of `src/acclimate/papers`, the tables of what is registered, and types of verbs.

    python scripts/render_papers.py            # write what has changed
    python scripts/render_papers.py --check    # only list it, and fail if there is any

`verdict.json` is what the studies under `docs/results` measured; of several rows of a study with an entry, the first.
A row is compared with its cheapest rival: see `rivals.yaml`. The page `shown.md` lists these differences.

A table follows a comment `<!-- Table of GROUP from src/acclimate. -->`. Where papers have entries, rows of the core
are written by hand, and those of papers come from the registry, the README of the folder, and its verdict; other
tables come from the registry alone. In the listing of papers, what the core runs is written by hand.
`src/acclimate/__init__.pyi` tells editors and type checkers where the function of each verb is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import acclimate
from acclimate.adaptation.method import REGISTRY
from acclimate.adaptation.rules import RULES
from acclimate.base.registry import Registry
from acclimate.base.verbs import Verb, find_verbs
from acclimate.data.mix.base import MIXES
from acclimate.data.operations import SELECTIONS, TRANSFORMS
from acclimate.merging.base import MERGES
from acclimate.models.adapters import ADAPTERS
from acclimate.parts.masking.base import REGISTRY as MASKINGS
from acclimate.parts.masking.base import Strategy
from acclimate.results.scores import NO_DIFFERENCE, UNANSWERED
from acclimate.results.study import StudyResults

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.regroup_results import AGAINST, PLAIN  # noqa: E402
from scripts.render_results import estimate, read_results  # noqa: E402

PAPERS, DOCS = ROOT / "src" / "acclimate" / "papers", ROOT / "docs"
SHOWN, TEXTS = "results/shown.md", ("domain", "general")
"""Page with what was measured of each paper."""
GROUPS: dict[str, tuple[str, Registry[Any]]] = {
    "methods": ("methods.md", REGISTRY),
    "mixes": ("prepare.md", MIXES),
    "selections": ("prepare.md", SELECTIONS),
    "transforms": ("prepare.md", TRANSFORMS),
}
"""Page and registry of the tables with entries of papers."""
CORE: dict[str, tuple[str, Registry[Any], Callable[[Any], list[str]]]] = {
    "masking": ("masking.md", MASKINGS, lambda cls: [cls.summary, parameters(cls, Strategy), cls.paper]),
    "adapters": ("trains.md", ADAPTERS, lambda cls: [cls.summary, parameters(cls), cls.paper]),
    "rules": ("trains.md", RULES, lambda cls: [cls.summary, parameters(cls), cls.paper]),
    "merges": ("merging.md", MERGES, lambda cls: [cls.summary, cls.formula, parameters(cls), cls.paper]),
}
"""Page and registry of the other tables, and a function that returns the cells after the name."""
KINDS = {"methods": "method", "mixes": "mix", "selections": "selection", "transforms": "transform"}
"""What the listing calls an entry of a group."""
TABLE = r"(<!-- Table of {group} from src/acclimate\. -->\n\n\|.*\n\|[-:|]+\|\n)((?:\|.*\n)+)"
LISTED = r"(?:[a-z]+ \[`[^`]+`\]\([^)]*/papers/[^)]*\)(?:, )?)+"
"""What a row of the listing says of papers."""
FACT = r"^- \*\*{title}\*\*: (.+(?:\n  .+)*)$"
SETTINGS = {"mixes": "mix", "selections": "select", "transforms": "transform"}
"""Where a row of a study names entries of a group."""


def entries(folder: Path) -> Iterator[tuple[str, str, type[Any]]]:
    """Yield group, name and class of what a folder registers."""
    for group, (_, registry) in GROUPS.items():
        for name in registry.names():
            cls = registry.lookup(name)
            if cls.__module__.startswith(f"acclimate.papers.{folder.name}."):
                yield group, name, cls


def folders() -> list[Path]:
    """Return the folders of papers."""
    return sorted(file.parent for file in PAPERS.glob("*/__init__.py"))


@cache
def studies() -> dict[str, StudyResults]:
    """Return the results of the studies under `docs/results`, by folder."""
    return {path.parent.name: read_results(path) for path in sorted(DOCS.glob("results/*/results.json"))}


@cache
def against_rivals() -> dict[str, Any]:
    """Return the differences from rivals, by folder of the study and row."""
    found: dict[str, Any] = json.loads((DOCS / "results" / AGAINST).read_text(encoding="utf-8"))
    return found


def names_of(value: Any) -> set[str]:
    """Return the names of the mix or operations that a study file gives: a name, a mapping, or a list of these."""
    if isinstance(value, str):
        return {value.split()[0]} if value else set()
    return {name for one in value or () for name in (names_of(one) if isinstance(value, list) else {str(one)})}


def find_row(results: StudyResults, group: str, name: str, known: Collection[str] = ()) -> str | None:
    """Return the label of the first row of a study that has an entry; None if there is none.

    The baseline of the study counts only if it is one of the rows with a ``known`` difference from a rival.
    """
    if group == "methods":
        # The names in the study of the DGA paper have a prefix.
        found = [row.label for row in results.methods if row.name.removeprefix("mlm-") == name]
    else:
        rows = [row for row in results.config.get("methods", []) if isinstance(row, Mapping)]
        key = SETTINGS[group]
        given = [(row, row.get(key) if key in row else (row.get("adapt") or {}).get(key)) for row in rows]
        found = [row.get("label") or row["name"] for row, value in given if name in names_of(value)]
    return next((label for label in found if label != results.baseline or label in known), None)


def measure(results: StudyResults, label: str) -> list[dict[str, Any]]:
    """Return the differences from the baseline on tasks and over a sequence, and from the base model on text."""
    found = []
    for row in results.scores:
        if row.method == label and row.difference is not None:
            difference = row.difference[row.metric]
            found.append(
                {"model": row.model, "domain": row.domain, "task": row.task, "metric": row.metric} | vars(difference)
            )
    for row in results.losses:
        if row.method == label and row.difference is not None:
            found.append(
                {"model": row.model, "domain": row.domain, "text": row.text, "unit": "nats"} | vars(row.difference)
            )
    for row in results.rows.get("sequence", []):
        if row.method == label and (spread := row.differences.get("average")) is not None and spread.seeds:
            low, high = spread.seeds
            average = {"difference": spread.mean, "low": low, "high": high, "verdict": ""}
            found.append({"model": row.model, "sequence": f"mean {row.measure} of all domains"} | average)
    keep = ("model", "domain", "task", "metric", "text", "unit", "sequence", "difference", "low", "high", "verdict")
    return [
        {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items() if key in keep}
        for row in found
    ]


def summarize(found: list[dict[str, Any]]) -> str:
    """Return on how many tasks, or else sequences or texts, a row is better or worse.

    Its interval excludes 0, and if it is one of several comparisons, it is significant after their correction, too.
    """
    for key, sign in (("task", 1), ("sequence", -1), ("text", -1)):  # a loss is better if it is lower
        rows = [row for row in found if key in row]
        if rows and all(row["verdict"] in UNANSWERED for row in rows):
            return f"no verdict on {len(rows)} {key}{'s' * (len(rows) != 1)}"
        if rows:
            known = [row for row in rows if row["verdict"] != NO_DIFFERENCE]
            better = sum(row["low"] > 0 if sign > 0 else row["high"] < 0 for row in known)
            worse = sum(row["high"] < 0 if sign > 0 else row["low"] > 0 for row in known)
            return f"better on {better}, worse on {worse} of {len(rows)} {key}{'s' * (len(rows) != 1)}"
    return ""


def make_verdict(folder: Path) -> dict[str, Any]:
    """Return what was measured of the entries of a folder."""
    found = []
    rivals = against_rivals()
    for group, name, _ in entries(folder):
        for study, results in studies().items():
            known = rivals.get(study, {})
            label = find_row(results, group, name, known)
            rows = [] if label is None else measure(results, label)
            if label is not None and (rows or label in known):
                base = {"rival": "naive" if "sequence" in results.rows else results.baseline, "differences": rows}
                if base["rival"] != PLAIN:  # losses are compared with the base model in all studies
                    base["differences"] = [row for row in rows if "text" not in row]
                against = known.get(label, base)
                found.append(
                    {
                        "name": name, "study": study, "row": label, "rival": against["rival"],
                        "models": results.models, "tokens": results.config.get("adapt", {}).get("tokens"),
                        "adaptations": len(results.adapt_seeds), "summary": summarize(against["differences"]),
                        "mean": against.get("mean"), "against_rival": against["differences"],
                        "against_base": [row for row in rows if "text" in row],
                    }
                )  # fmt: skip
    return {"measured": bool(found), **({"studies": found} if found else {})}


def write_verdict(verdict: dict[str, Any]) -> str:
    """Return a verdict as JSON, with a line per difference."""
    text = json.dumps(verdict, indent=1, ensure_ascii=False)
    return (
        re.sub(r"(?<=\{)\n {5}(?! )(.*?)\n {4}(?=\})", lambda match: " ".join(match[1].split()), text, flags=re.S)
        + "\n"
    )


def list_shown(verdicts: Mapping[str, dict[str, Any]]) -> str:
    """Return the rows of the page with what was measured of each paper."""
    rows, none = [], []
    for folder in folders():
        names = ", ".join(f"`{name}`" for _, name, _ in entries(folder))
        link = f"(../../src/acclimate/papers/{folder.name}/README.md)"
        found = verdicts[folder.name].get("studies", [])
        for one in found:
            tasks = [row for row in one["against_rival"] if "task" in row]
            mean = one["mean"] or (tasks[0] if len(tasks) == 1 else None)
            study = f"[{one['study']}]({one['study']}/README.md): {', '.join(one['models'])}"
            study += f", {one['tokens'] / 1e6:.2g} M" * bool(one["tokens"]) + f", {one['adaptations']}"
            cells = [f"[`{one['name']}`]{link}", f"`{one['rival']}`", study]
            cells += [spread(mean, 100, 1) if mean else one["summary"] if tasks else "–", str(len(tasks) or "–")]
            for text in TEXTS:
                rows_of = [
                    row for row in one["against_rival"] if text == row.get("text", "domain") and "task" not in row
                ]
                cells.append(", ".join(spread(row, 1, 3) for row in rows_of) or "–")
            rows.append(f"| {' | '.join(cells)} |\n")
        none += [] if found else [f"| [{names}]{link} | {' | '.join(['not measured', *['–'] * 5])} |\n"]
    return "".join(rows + none)


def spread(row: Mapping[str, Any], factor: float, digits: int) -> str:
    """Return a difference with its interval; a star if there is no verdict, since only one adaptation was made."""
    return estimate(SimpleNamespace(**row), factor, digits) + "*" * (row["verdict"] in UNANSWERED)


def fact(folder: Path, title: str) -> str:
    """Return a line of the README of a folder, such as ``When``."""
    match = re.search(FACT.format(title=title), (folder / "README.md").read_text(encoding="utf-8"), flags=re.M)
    return " ".join(match[1].split()) if match else ""


def measured(verdict: Mapping[str, Any], name: str) -> str:
    """Return the cell with what was measured of an entry."""
    rows = [row for row in verdict.get("studies", []) if row["name"] == name]
    return (
        "; ".join(
            f"[{row['study']}](results/{row['study']}/README.md): {row['summary']}, vs `{row['rival']}`"
            for row in rows
        )
        or "no"
    )


def make_rows(group: str, registry: Registry[Any], verdicts: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the rows of the papers in the table of a group."""
    rows = []
    for folder in folders():
        for own, name, cls in entries(folder):
            if own == group:
                link = f"[`{name}`](../src/acclimate/papers/{folder.name}/README.md)"
                cost = f"{cls.cost:g}" if group == "methods" else fact(folder, "Cost").rstrip(".")
                cells = [link, cls.summary, fact(folder, "When").rstrip("."), cost, cls.paper]
                rows.append((getattr(cls, "cost", 0), name, [*cells, measured(verdicts[folder.name], name)]))
    return [f"| {' | '.join(cells)} |\n" for _, _, cells in sorted(rows)]


def read_verdicts() -> dict[str, dict[str, Any]]:
    """Return the verdicts as they are in the folders."""
    return {folder.name: json.loads((folder / "verdict.json").read_text(encoding="utf-8")) for folder in folders()}


def parameters(cls: type[Any], base: type[Any] | None = None) -> str:
    """Return the parameters of an entry with their defaults, without those of all entries."""
    common = {field.name for field in fields(base)} if base else set()
    cells = []
    for field in fields(cls):
        if field.name not in common:
            plain = isinstance(field.default, str | int | float) and field.default != ""
            shown = f"{field.default:g}" if type(field.default) is float else str(field.default)
            shown = shown.lower() if type(field.default) is bool else shown
            cells.append(f"`{field.name}` ({shown})" if plain else f"`{field.name}`")
    return ", ".join(cells)


def list_papers(rows: str) -> str:
    """Return the rows of the listing with what the folders run, next to what is written by hand."""
    found: dict[str, list[str]] = {}
    for folder in folders():
        for number in re.findall(r"\d+", fact(folder, "Listing").partition(" of ")[0]):
            found.setdefault(number, []).extend(
                f"{KINDS[group]} [`{name}`](../src/acclimate/papers/{folder.name}/README.md)"
                for group, name, _ in entries(folder)
            )
    lines = []
    for line in rows.splitlines():
        _, number, paper, runs, _ = (cell.strip() for cell in line.split("|"))
        others = re.sub(LISTED, "", runs).removesuffix("not yet").strip(", ")
        lines.append(
            f"| {number} | {paper} | {', '.join(filter(None, [*found.get(number, []), others])) or 'not yet'} |\n"
        )
    return "".join(lines)


def render(verdicts: Mapping[str, dict[str, Any]] | None = None) -> dict[Path, str]:
    """Return the content of all generated files and pages.

    Args:
        verdicts: The verdicts by folder; computed from the studies by default.
    """
    verdicts = {folder.name: make_verdict(folder) for folder in folders()} if verdicts is None else verdicts
    found = {folder / "verdict.json": write_verdict(verdicts[folder.name]) for folder in folders()}

    def replace(page: str, group: str, rows: Callable[[str], str]) -> None:
        text = found.get(DOCS / page) or (DOCS / page).read_text(encoding="utf-8")
        found[DOCS / page], count = re.subn(TABLE.format(group=group), lambda match: match[1] + rows(match[2]), text)
        assert count == 1, page

    for group, (page, registry) in GROUPS.items():
        own = "".join(make_rows(group, registry, verdicts))
        replace(
            page,
            group,
            lambda old, own=own: "".join(row for row in old.splitlines(True) if "/papers/" not in row) + own,
        )
    for group, (page, registry, cells) in CORE.items():
        rows = [[f"`{name}`", *cells(registry.lookup(name))] for name in registry.names()]
        replace(page, group, lambda _, rows=rows: "".join(f"| {' | '.join(row)} |\n" for row in rows))
    replace("listing.md", "papers", list_papers)
    replace(SHOWN, "verdicts", lambda _: list_shown(verdicts))
    replace("commands.md", "verbs", lambda _: "".join(map(describe_verb, find_verbs())))
    found[PAPERS.parent / "__init__.pyi"] = write_stub()
    return found


def describe_verb(verb: Verb) -> str:
    """Return the row of a verb in the table of commands."""
    name = f"`{verb.name}`" if verb.cli else "in Python only"
    page = verb.page.removeprefix("docs/") if verb.page.startswith("docs/") else f"../{verb.page}"
    text = " ".join(verb.help.partition("\n\n")[0].split())
    return f"| {name} | `{verb.function_name}` | {text} | [{Path(verb.page).parent.name}]({page}) |\n".replace(
        "[docs]", f"[{Path(verb.page).stem}]"
    )


def write_stub() -> str:
    """Return the stub of the package: an import of the function of each verb."""
    found: dict[str, list[str]] = {}
    for verb in find_verbs():
        module, _, name = verb.run.partition(":")
        alias = "" if name == verb.function_name else f" as {verb.function_name}"
        found.setdefault(module, []).append(name + alias)
    imports = "".join(f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(found.items()))
    names = "".join(f'    "{name}",\n' for name in dir(acclimate))
    return f'"""{acclimate.__doc__}"""\n\n{imports}\n__version__: str\n\n__all__ = [\n{names}]\n'


def main(arguments: list[str]) -> int:
    """Write or list the files that have changed."""
    stale = {
        file: text for file, text in render().items() if not file.is_file() or file.read_text(encoding="utf-8") != text
    }
    for file, text in stale.items():
        sys.stdout.write(f"{file.relative_to(ROOT)}\n")
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
