"""Pages of the documentation site that are generated when `mkdocs build` runs, and links that leave `docs/`.

The pages under `docs/` read well on GitHub. The site adds what can be generated: a page per method from its docstring,
parameters and committed results, the reference of Python and of the command line, and the report of every study under
`docs/results`. MkDocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import html
import inspect
import posixpath
import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import acclimate
from acclimate.adaptation.method import lookup, names
from acclimate.adaptation.options import AdaptOptions
from acclimate.base.options import option_fields
from acclimate.base.registry import published
from acclimate.cli.main import app
from acclimate.labs.advise.methods import PURPOSES
from acclimate.models.kinds import KINDS
from acclimate.report import render
from acclimate.report.tables import overview
from acclimate.results.scores import HELPED
from acclimate.results.study import StudyResults

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
PAGES = {"CONTRIBUTING.md": "dev/contributing.md", "CHANGELOG.md": "dev/changelog.md", "README.md": "README.md"}
PAGES |= {
    file.relative_to(ROOT).as_posix(): f"papers/{file.parent.name}.md"
    for file in sorted(ROOT.glob("src/acclimate/papers/*/README.md"))
}
"""Pages outside `docs/`, and where the site has them."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]*)(#[^)\s]*)?\)")
CLASSES = {
    "data": (
        "Data",
        (
            "acclimate.data.documents.Corpus",
            "acclimate.data.task_kinds.load_task",
            "acclimate.tasks.kinds.classification.data.Task",
        ),
    ),
    "results": (
        "Results",
        (
            "acclimate.adaptation.result.AdaptResult",
            "acclimate.tasks.result.FinetuneResult",
            "acclimate.results.study.StudyResults",
        ),
    ),
    "parts": (
        "Parts of methods",
        (
            "acclimate.adaptation.method.Method",
            "acclimate.adaptation.method.register",
            "acclimate.parts.objectives.View",
            "acclimate.parts.objectives.Outputs",
            "acclimate.parts.objectives.Objective",
            "acclimate.parts.objectives.BatchObjective",
            "acclimate.parts.objectives.LanguageModelling",
            "acclimate.parts.updates.UpdateRule",
            "acclimate.parts.masking.Strategy",
            "acclimate.base.errors.UserError",
        ),
    ),
}
"""Pages of the reference of classes: title and members."""


STYLE = """
.md-typeset [data-md-copying] .gp { display: none }
.md-typeset td:first-child code { white-space: nowrap }
.md-typeset thead:not(:has(th:not(:empty))) { display: none }
.md-grid { max-width: 68rem }
"""
"""Copied commands have no prompt, names in tables are not broken, and code has more room."""

# Methods


def parameters(cls: type) -> dict[str, str]:
    """Return the descriptions of the fields of a dataclass, from the docstrings of it and its bases."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        for section in griffe.Docstring(inspect.cleandoc(base.__doc__ or "")).parse("google", warnings=False):
            if section.kind is griffe.DocstringSectionKind.attributes:
                found = {item.name: item.description for item in section.value} | found
    return found


def description(cls: type) -> str:
    """Return the prose of a docstring, without its sections."""
    sections = griffe.Docstring(inspect.cleandoc(cls.__doc__ or "")).parse("google", warnings=False)
    return "\n\n".join(section.value for section in sections if section.kind is griffe.DocstringSectionKind.text)


@cache
def studies() -> dict[str, StudyResults]:
    """Return the results of the studies under `docs/results`, by folder."""
    return {path.parent.name: StudyResults.load(path) for path in sorted(RESULTS.glob("*/results.json"))}


PLACEHOLDERS = {"models": "MODEL", "checkpoints": "MODEL", "tasks": "TASK", "other_tasks": "TASK"}
"""Words for paths of the machine on which a study ran, by key of the study; others are texts."""


def with_placeholders(results: StudyResults) -> StudyResults:
    """Return results whose study names no file or folder of the machine on which it ran."""

    def replaced(value: Any, word: str) -> Any:
        if isinstance(value, dict):
            return {key: replaced(entry, PLACEHOLDERS.get(key, word)) for key, entry in value.items()}
        if isinstance(value, list):
            return [replaced(entry, word) for entry in value]
        return word if isinstance(value, str) and value.startswith(("/", "../", "docs/", "runs/")) else value

    return replace(results, config=replaced(results.config, "TEXT"))


def findings(name: str) -> list[str]:
    """Return what the committed studies measured of a method, in Markdown; of several rows with it, the first."""
    lines = []
    for folder, results in studies().items():
        # The names in the study of the DGA paper have a prefix.
        labels = [row.label for row in results.methods if row.name.removeprefix("mlm-") == name]
        if not labels or labels[0] == results.baseline:
            continue
        table = overview(results)
        shown = [place for place, column in enumerate(table.columns) if column != "method"]
        rows = [cells for cells in table.rows if cells[table.columns.index("method")].text == labels[0]]
        columns = [table.columns[place] for place in shown]
        lines += [f"[{results.title}](../results/{folder}/README.md), row “{labels[0]}”. {table.note}", ""]
        lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines += [f"| {' | '.join(cell(cells[place].text) for place in shown)} |" for cells in rows]
        lines += [""]
    return lines


def cell(text: str) -> str:
    """Return text of a docstring for a cell of a Markdown table, with links to the pages that it names."""
    text = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split())).replace("|", "\\|")
    return re.sub(r"\(docs/([\w/-]+)\.md\)", r"([more](../\1.md))", text)


def facts(name: str) -> dict[str, str]:
    """Return what a table says about a method, by title; what does not apply is empty."""
    method = lookup(name)
    only = f" only; it {method.kinds_reason}" if set(KINDS) - set(method.kinds) else ""
    _, ring, folder, *_ = method.__module__.split(".")
    guide = f"papers/{folder}.md" if ring == "papers" else "methods.md"
    return {
        "paper": method.paper,
        "models": " and ".join(method.kinds) + " language models" + only,
        "purpose": method.purpose,
        "cost": f"{method.cost:g} × `lm`" + (f"; before, {method.preparation}" if method.preparation else ""),
        "adapts to": {"task": "the text of the task", "domain": "the text of the domain"}[method.reads],
        "labelled task": "needed" if method.needs_task else "",
        "learning rate": f"{method.learning_rate:g} by default",
        "low-rank adapters": f"refused: {method.without_adapter}" if method.without_adapter else "`--adapter lora`",
        "loading": "" if method.loads_without_acclimate else "needs acclimate; the model card says how",
        "more": f"[{'guide' if ring == 'papers' else 'which method'}](../{guide})",
    }


def methods_by_purpose() -> dict[str, list[dict[str, str]]]:
    """Return the entries of the navigation for methods, by purpose, the cheapest first."""
    ordered = sorted((lookup(name) for name in names()), key=lambda method: (method.cost, method.name))
    found = {
        purpose: [{method.name: f"methods/{method.name}.md"} for method in ordered if method.purpose == purpose]
        for purpose in (*PURPOSES, "")
    }
    return {purpose or "Other": entries for purpose, entries in found.items() if entries}


def method_page(name: str) -> str:
    """Return the page of a method: what it is, its parameters, and what studies found."""
    method = lookup(name)
    lines = [f"# `{name}`", "", f"{method.summary[:1].upper()}{method.summary[1:]}.", "", description(method), ""]
    if method.trains:
        sources = [] if method.reads == "task" else ["--corpus reviews.jsonl.gz"]
        sources += ["--task reviews.csv"] if method.needs_task or method.reads == "task" else []
        command = f"acclimate adapt --model roberta-base {' '.join(sources)} \\\n    --method {name} --out adapted"
        lines += ["```console", f"$ {command}", "```", "", "| | |", "|---|---|"]
        lines += [f"| {title} | {cell(value)} |" for title, value in facts(name).items() if value]
    if fields(method):
        lines += ["", "## Parameters", "", f"`--method '{name} PARAMETER=VALUE'` sets one."]
        lines += ["`preset=paper` sets those of the column *paper*." if published(method) else "", ""]
        lines += ["| name | default | paper | what it is |", "|---|---|---|---|"]
        texts, marks = parameters(method), published(method)
        for field in fields(method):
            mark = marks.get(field.name)
            paper = ", ".join(f"`{value!r}`" for value in dict.fromkeys(mark.values.values())) if mark else ""
            text = texts.get(field.name, "") + (f" Why not the paper's: {mark.reason}" if mark and mark.reason else "")
            lines += [f"| `{field.name}` | `{field.default!r}` | {cell(paper)} | {cell(text)} |"]
    if method.paper_options:
        options = option_fields(AdaptOptions)
        flags = " ".join(f"{options[key].flag} {value}" for key, value in method.paper_options.items())
        lines += ["", "## Options of the paper", "", f"`{flags}`"]
    lines += ["", "## Results", "", *(findings(name) or ["There is no study of this method in the repository yet."])]
    return "\n".join(lines) + "\n"


# Reference


def first_line(function: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(function) or "").splitlines()[0]


def functions() -> list[str]:
    """Return the names of the public functions."""
    return [name for name in acclimate.__all__ if not name.startswith("_")]


def python_page() -> str:
    """Return the overview of the Python interface."""
    lines = ["# Python", "", "`import acclimate` gives the functions of the command line, with the same options.", ""]
    lines += ["| function | what it does |", "|---|---|"]
    for name in functions():
        lines += [f"| [`acclimate.{name}`]({name}.md) | {cell(first_line(getattr(acclimate, name)))} |"]
    lines += [
        "",
        "Classes: " + ", ".join(f"[{title.lower()}]({page}.md)" for page, (title, _) in CLASSES.items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def function_page(name: str) -> str:
    """Return the page of a public function."""
    function = getattr(acclimate, name)
    return (
        f"::: {function.__module__}.{function.__name__}\n"
        f"    options: {{heading_level: 1, heading: acclimate.{name}, show_root_toc_entry: false}}\n"
    )


def class_page(page: str) -> str:
    """Return a page of classes."""
    title, members = CLASSES[page]
    return f"# {title}\n\n" + "\n\n".join(f"::: {member}" for member in members) + "\n"


def commands_page() -> str:
    """Return the reference of the command line."""
    lines = ["# Command line", "", "`acclimate COMMAND --help` prints the same.", ""]

    def walk(command: Any, path: str, level: int) -> None:
        for name in command.list_commands(None) if hasattr(command, "commands") else ():
            child = command.commands[name]
            lines.extend(["#" * level + f" {path} {name}", "", inspect.cleandoc(child.help or ""), ""])
            options = [parameter for parameter in child.params if not parameter.hidden]
            if options and not hasattr(child, "commands"):
                lines.extend(["| option | what it is |", "|---|---|"])
                for option in options:
                    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
                    needed = " **Required.**" if option.required else ""
                    lines.append(f"| {flags} | {cell(getattr(option, 'help', '') or '')}{needed} |")
                lines.append("")
            walk(child, f"{path} {name}", level + 1)

    walk(typer.main.get_command(app), "acclimate", 2)
    return "\n".join(lines) + "\n"


# Results


def _worth(results: StudyResults) -> tuple[int, float]:
    """Return a sort key: first studies that show a gain on a task, the largest first, then others with scores."""
    shown = [row.comparison for row in results.scores if row.comparison]
    gain = max((entry.difference for entry in shown if entry.verdict == HELPED), default=0.0)
    return (0 if gain else 1 if shown else 2), -gain


def gallery_page() -> str:
    """Return the gallery of reports."""
    lines = [
        "# Gallery of reports",
        "",
        "What `acclimate compare` writes, for the studies under [results](README.md).",
        "",
    ]
    shown = {folder: results for folder, results in studies().items() if results.scores or results.losses}
    for folder, results in sorted(shown.items(), key=lambda pair: _worth(pair[1])):
        lines += [
            f"## {results.title}",
            "",
            f'<iframe src="{folder}/report.html" title="Report: {html.escape(results.title)}" loading="lazy" '
            'style="width:100%;height:32rem;border:1px solid var(--md-default-fg-color--lightest)"></iframe>',
            "",
            f"[Open the report]({folder}/report.html) · [page with findings]({folder}/README.md)",
            "",
        ]
    return "\n".join(lines)


def llms_page() -> str:
    """Return ``llms.txt``: what the project is, and where its pages are, for language models."""
    lines = ["# acclimate", "", f"> {acclimate.__doc__}", "", acclimate.skill().partition("# acclimate")[2].strip()]
    lines += ["", "## Docs", ""]
    for page in sorted([*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")]):
        title, _, body = page.read_text(encoding="utf-8").removeprefix("# ").partition("\n")
        first = " ".join(next(part for part in body.split("\n\n") if re.match(r"[A-Za-z]|`\w", part.strip())).split())
        place = page.relative_to(DOCS).with_suffix(".html").as_posix()
        first = LINK.sub(lambda link: link[1], first).split(". ")[0].rstrip(".:")
        lines.append(f"- [{title}]({place}): {first}.")
    return "\n".join(lines) + "\n"


# Events of MkDocs


def generated_pages() -> dict[str, str]:
    """Return all generated files, by path on the site."""
    pages = {f"methods/{name}.md": method_page(name) for name in names()}
    pages |= {f"reference/{name}.md": function_page(name) for name in functions()}
    pages |= {f"reference/{page}.md": class_page(page) for page in CLASSES}
    pages |= {"reference/python.md": python_page(), "reference/commands.md": commands_page()}
    pages |= {"results/gallery.md": gallery_page(), "assets/site.css": STYLE}
    reports = {folder: render(with_placeholders(results), Path("OUT")) for folder, results in studies().items()}
    pages |= {f"results/{folder}/report.html": report for folder, report in reports.items()}
    pages |= {place: (ROOT / page).read_text(encoding="utf-8") for page, place in PAGES.items()}
    pages["README.md"] = pages["README.md"].replace("](docs/images/", "](images/")
    pages["llms.txt"] = llms_page()
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in {".yaml", ".py", ".ipynb"}]
    examples += (ROOT / "src" / "acclimate" / "study" / "recipes").glob("*.yaml")
    return pages | {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in examples}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of methods, studies and functions to the navigation."""

    def fill(entries: Any, title: str, children: list[dict[str, str]]) -> None:
        for entry in entries:
            for key, value in entry.items() if isinstance(entry, dict) else ():
                if key == title and value == []:
                    value.extend(children)
                elif isinstance(value, list):
                    fill(value, title, children)

    fill(config.nav, "By purpose", [{purpose: entries} for purpose, entries in methods_by_purpose().items()])
    papers = [place for place in PAGES.values() if place.startswith("papers/")]
    fill(config.nav, "Papers", [{posixpath.basename(place).removesuffix(".md"): place} for place in papers])
    fill(config.nav, "Finished studies", [{folder: f"results/{folder}/README.md"} for folder in studies()])
    fill(config.nav, "Functions", [{name: f"reference/{name}.md"} for name in functions()])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated files."""
    for place, content in generated_pages().items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave `docs/` at their place on the site, and add links to generated pages."""
    place = page.file.src_uri
    source = next((origin for origin, target in PAGES.items() if target == place), f"docs/{place}")
    folder = posixpath.dirname(source)

    def relink(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        uri = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else path)
        if (DOCS / uri).is_dir() and files.get_file_from_path(f"{uri}/README.md"):
            uri = f"{uri}/README.md"
        if files.get_file_from_path(uri) is None and not path.startswith("docs/"):
            return words  # a file of the repository that the site does not have
        return f"[{words}]({posixpath.relpath(uri, posixpath.dirname(place) or '.')}{anchor})"

    markdown = LINK.sub(relink, markdown)
    if place == "methods.md":
        markdown = re.sub(
            r"^\| `([^`]+)` \|",
            lambda row: f"| [`{row[1]}`](methods/{row[1]}.md) |" if row[1] in names() else row[0],
            markdown,
            flags=re.M,
        )
    study = posixpath.basename(posixpath.dirname(place))
    if place == f"results/{study}/README.md" and study in studies():
        markdown = re.sub(r"^(# .+)$", r"\1\n\n[Interactive report](report.html)", markdown, count=1, flags=re.M)
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the roles of cross-references in docstrings, such as ``:class:``."""
    return re.sub(r":(?:class|func|meth|mod|attr|data|exc):(?=<code>)", "", html).replace(
        "<code>~acclimate", "<code>acclimate"
    )
