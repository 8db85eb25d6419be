"""The results of a study as Markdown and as terminal tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from acclimate.base.errors import printable
from acclimate.base.files import write_text
from acclimate.base.version import docs_page
from acclimate.report.formatting import (
    grouped_tests,
    loss_title,
    method_name,
    metric_name,
    place_name,
    place_with_measure,
    shown_metrics,
)
from acclimate.report.next_steps import Step, next_steps
from acclimate.report.summary import summarize
from acclimate.report.tables import tables, with_columns, without_constant_columns
from acclimate.results.cells import Entry, Table, bracket_text, mean_entry, plain, signed
from acclimate.results.scores import (
    BETTER,
    HELPED,
    HURT,
    NO_DIFFERENCE,
    NOT_LEARNED,
    TOO_FEW_GROUPS,
    WITHHELD,
    WORSE,
    LossRow,
    ScoreRow,
)
from acclimate.results.study import StudyResults

if TYPE_CHECKING:
    import rich.table

MARKDOWN_ESCAPES = str.maketrans({mark: f"\\{mark}" for mark in "\\|*_`<>[]"})
LATEX_MARKS = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"−": "$-$", "±": r"$\pm$", "→": r"$\to$", "<": "$<$", ">": "$>$", "–": "--", "|": r"\textbar{}"},
}
MAIN_TABLES = ("Means over tasks", "Scores on end tasks", "Held-out loss and forgetting", "Forgetting on other tasks")
"""Titles of the tables in ``results.tex``, in addition to the tables of kinds of jobs."""
MAX_COLUMNS = 5
"""Maximum columns of a table of a kind of job for which a terminal has room."""
CSV_COLUMNS = (
    *("model", "domain", "task", "text", "method", "measure", "value", "sd", "seeds", "before"),
    *("difference", "low", "high", "p", "p_holm", "verdict"),
)
PAPER_MARKS = {
    HELPED: (r"\textbf{{{}}}", "bold, helped"),
    BETTER: (r"\textbf{{{}}}", "bold, better"),
    HURT: (r"\textit{{{}}}", "italic, hurt"),
    WORSE: (r"\textit{{{}}}", "italic, worse"),
    NO_DIFFERENCE: ("{}", "plain, no difference shown"),
    WITHHELD: ("{}", "no verdict, since the variance between trainings is unknown"),
    NOT_LEARNED: ("({})", "in parentheses, not learned"),
    TOO_FEW_GROUPS: ("({})", "in parentheses, too few groups for a verdict"),
}
"""Form of a score in a table of a paper, by the verdict, and its explanation."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""Beginnings of a cell that a spreadsheet takes for a formula."""
STYLES = {HELPED: "green", BETTER: "green", HURT: "red", WORSE: "red"}


def write_markdown(results: StudyResults, path: str | Path) -> Path:
    """Write :func:`markdown` to a file; return its path."""
    return write_text(path, markdown(results, Path(path).parent))


def write_tables(results: StudyResults, folder: str | Path) -> list[Path]:
    """Write ``results.csv``, all numbers of the main tables, and ``results.tex``; return the paths.

    ``results.tex`` begins with a table of methods by tasks for a paper; the main tables follow.

    Args:
        results: As returned by ``acclimate.compare`` and stored in ``results.json``.
        folder: Folder of the study.
    """
    results = StudyResults.from_dict(results)
    own = [table.title for kind in results.kinds for table in kind.tables(results)]
    own += [table.title for table in results.tables]
    main = [table for table in tables(results) if table.title in (*MAIN_TABLES, *own)]
    written = {"results.csv": _csv(results), "results.tex": "\n".join([*_paper_tables(results), *map(latex, main)])}
    return [write_text(Path(folder) / name, text) for name, text in written.items()]


class InertWriter(csv.DictWriter):
    """Writes texts that a spreadsheet would take for a formula with an apostrophe before them; numbers stay."""

    def writerow(self, row: Mapping[str, Any]) -> None:
        """Write a row."""
        super().writerow({name: inert(value) if isinstance(value, str) else value for name, value in row.items()})


def inert(text: str) -> str:
    """Return a text as a cell that no spreadsheet runs as a formula; control characters are escaped."""
    text = printable(text)
    seen = next((mark for mark in text if not mark.isspace() and category(mark) != "Cf"), "")  # others are invisible
    return f"'{text}" if seen in FORMULA and seen else text


def _csv(results: StudyResults) -> str:
    """Return one line for each score, error and loss, in full precision.

    Scores are shares, errors have the unit of the target, losses are nats.
    """
    file = io.StringIO()
    lines = InertWriter(file, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for row in [*results.scores, *results.forgetting]:
        for metric in (*shown_metrics([row]), *row.errors):
            entry = row.difference.metrics.get(metric) if row.difference else None
            score = row.summaries.get(metric)
            values = {**vars(row), **(vars(entry) if entry else {}), **(vars(score) if score else {})}
            lines.writerow({**values, "measure": metric, "value": score and score.mean, "seeds": len(row.seeds)})
    for loss in results.losses:
        values = {**vars(loss), **(vars(loss.difference) if loss.difference else {}), "before": loss.before}
        values |= {"measure": loss_title([loss]), "value": loss.nats}
        lines.writerow({**values, "seeds": len(loss.adapt_seeds) or None})
    return file.getvalue()


def latex(table: Table) -> str:
    """Return a table for LaTeX with the package ``booktabs``."""
    lines = [[entry.text for entry in row] for row in table.rows]
    head, *body = (" & ".join(map(escape_latex, line)) + r" \\" for line in [table.columns, *lines])
    columns = "".join("r" if number else "l" for number in table.numeric)
    rows = [r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([f"% {' '.join(table.title.split())}", rf"\begin{{tabular}}{{{columns}}}", *rows, ""])


def _paper_tables(results: StudyResults) -> Iterator[str]:
    """Yield a table of methods by tasks for each model: mean ± sd over seeds, marked by the verdict."""
    for model in dict.fromkeys(row.model for row in results.scores):
        own = [row for row in results.scores if row.model == model]
        places = list(dict.fromkeys((row.domain, row.task, row.metric) for row in own))
        cells = {(row.method, row.domain, row.task, row.metric): row for row in own}
        several = len({domain for domain, *_ in places}) > 1
        names = [f"{domain} {task}" if several and domain != task else task for domain, task, _ in places]
        lines = [["", *map(escape_latex, names)], ["", *(escape_latex(metric_name(metric)) for *_, metric in places)]]
        methods = dict.fromkeys(row.method for row in own)
        found = {method: [cells.get((method, *place)) for place in places] for method in methods}
        lines += [[escape_latex(method), *map(_paper_cell, row)] for method, row in found.items()]
        first, second, *body = (" & ".join(line) + r" \\" for line in lines)
        marks = {row.comparison.verdict for row in own if row.comparison}
        notes = [note for verdict, (_, note) in PAPER_MARKS.items() if verdict in marks]
        seeds = max(len(row.seeds) for row in own)
        caption = f"Scores of {model} in percent, mean ± standard deviation over {seeds} seeds."
        if results.evaluations:
            spread = "" if seeds == 1 else f", mean ± standard deviation over {seeds} runs"
            caption = f"Scores in percent{spread}."
        if notes:
            caption += f" Compared with {results.baseline} (95 % intervals, corrected for all comparisons): "
            caption += f"{'; '.join(notes)}."
        yield "\n".join([
            r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * len(places)}}}", r"\toprule", first, second,
            r"\midrule", *body, r"\bottomrule", r"\end{tabular}", rf"\caption{{{escape_latex(caption)}}}",
            r"\end{table}", ""])  # fmt: skip


def _paper_cell(row: ScoreRow | None) -> str:
    if row is None:
        return "--"
    mark, _ = PAPER_MARKS[row.comparison.verdict if row.comparison else NO_DIFFERENCE]
    return mark.format(escape_latex(mean_entry(row.summaries[row.metric]).text))


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX prints it as it is; a minus before a number becomes one."""
    return "".join(LATEX_MARKS.get(mark, mark) for mark in " ".join(text.split()))


def markdown(results: StudyResults, folder: Path | None = None) -> str:
    """Return the notes, summary, caveats and tables of a study, what to do next, and the software it ran on.

    Args:
        results: As returned by ``acclimate.compare`` and stored in ``results.json``.
        folder: Folder of the study, for the commands that are proposed; by default ``runs/NAME``.
    """
    results = StudyResults.from_dict(results)
    environment = results.environment
    packages = [name for name in ("acclimate", "torch", "transformers") if name in environment]
    versions = ", ".join(f"{name} {environment[name]}" for name in packages)
    machine = ", ".join(
        part for part in (environment.get("accelerator"), environment.get("processor"), versions) if part
    )
    summary = summarize(results)
    parts = [f"# {_escape(results.title or results.name)}", _escape(summary.headline)]
    parts += ["\n".join(f"- {_escape(caveat)}" for caveat in summary.caveats)] if summary.caveats else []
    parts += ["## Next steps", *map(_markdown_step, steps)] if (steps := next_steps(results, folder)) else []
    what = "comparison" if results.evaluations else "study"
    parts += [f"## About this {what}", *map(_escape, results.notes)] if results.notes else []
    ordered = sorted(tables(results), key=lambda table: not table.first)  # stable
    parts += [_markdown_table(table) for table in ordered]
    parts.append(_escape(f"Finished {results.finished[:10]}" + (f" on {machine}." if machine else ".")))
    return "\n\n".join(parts) + "\n"


def _markdown_step(step: Step) -> str:
    commands = "\n".join(f"    {command}" for command in step.commands)
    more = f"More in {docs_page(step.page)}." if step.page else ""
    return "\n\n".join(part for part in (_escape(step.text), commands, more) if part)


def _markdown_table(table: Table) -> str:
    rules = ["--:" if number else "---" for number in table.numeric]
    lines = [[_escape(name) for name in table.columns], rules]
    lines += [[_escape(entry.text) for entry in row] for row in table.rows]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines) if table.rows else ""
    return "\n\n".join(part for part in (f"## {_escape(table.title)}", _escape(table.note), body) if part)


def _escape(text: str) -> str:
    """Escape text so that Markdown does not interpret it as markup."""
    return " ".join(text.split()).translate(MARKDOWN_ESCAPES)


def results_table(results: StudyResults) -> list[rich.table.Table]:
    """Return tables of scores and losses for a terminal of 80 columns."""
    results = StudyResults.from_dict(results)
    shown = []
    if results.scores:
        spread = f", mean ± sd over {'runs' if results.evaluations else 'seeds'}"
        if results.evaluations and all(len(row.seeds) == 1 for row in results.scores):
            spread = ""
        title = f"Scores in %{spread}; difference to {results.baseline}, 95 % interval."
        title += grouped_tests(results.scores)
        metrics = {metric_name(row.metric) for row in results.scores}
        name = metrics.pop() if len(metrics) == 1 else "score"
        groups = _group((place_with_measure(results, row), _score_cells(row)) for row in results.scores)
        shown.append(_terminal_table(title, ["", name, "difference", ""], groups))
    if results.losses:
        title = f"{loss_title(results.losses)}; change with 95 % interval"
        groups = _group((_text_name(results, row), _loss_cells(row)) for row in results.losses)
        shown.append(_terminal_table(title, ["", "before", "after", "change", "%"], groups))
    for table in (table for kind in results.kinds for table in kind.tables(results) if table.rows):
        wide = without_constant_columns(table)
        main = with_columns(wide, [place for place, name in enumerate(wide.columns) if name not in wide.minor])
        if len(main.columns) <= MAX_COLUMNS:
            shown.append(_terminal_table(main.title, main.columns, {"": main.rows}))
    for table in (table.table() for table in results.tables if results.evaluations):
        main = with_columns(table, range(MAX_COLUMNS - 1))
        shown.append(_terminal_table(main.title, main.columns, {"": main.rows}))
    return shown


def _group(rows: Iterable[tuple[str, list[Entry]]]) -> dict[str, list[list[Entry]]]:
    groups: dict[str, list[list[Entry]]] = {}
    for name, row in rows:
        groups.setdefault(name, []).append(row)
    return groups


def _text_name(results: StudyResults, row: LossRow) -> str:
    name = "general text" if row.text == "general" else "held-out domain text"
    single = len(results.models) == 1 and len(results.domains) == 1
    return name if single else f"{place_name(results, row.model, row.domain)}: {name}"


def _score_cells(row: ScoreRow) -> list[Entry]:
    cells = [Entry(row.method), mean_entry(row.summaries[row.metric])]
    entry = row.comparison
    if entry is None:
        return [*cells, Entry(""), Entry("")]
    return [*cells, Entry(bracket_text(entry, 100)), Entry(entry.verdict, None, entry.verdict)]


def _loss_cells(row: LossRow) -> list[Entry]:
    entry = row.difference
    if entry is None or row.before is None:
        return [Entry(method_name(row)), Entry(""), Entry(plain(row.nats, 3)), Entry(""), Entry("")]
    return [
        Entry(method_name(row)),
        Entry(plain(row.before, 3)),
        Entry(plain(row.nats, 3)),
        Entry(bracket_text(entry, 1, 3), None, entry.verdict),
        Entry("" if row.percent is None else signed(row.percent)),
    ]


def _terminal_table(title: str, columns: list[str], groups: dict[str, list[list[Entry]]]) -> rich.table.Table:
    """Return a table with a heading line for each group."""
    import rich.box
    import rich.table
    from rich.text import Text

    # Text objects, so that brackets in a name are not interpreted as markup.
    table = rich.table.Table(title=Text(title), title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number and name else "left", no_wrap=number > 0, overflow="fold")
    for group, rows in groups.items():
        if group:
            table.add_row(Text(group, style="bold"))
        for row in rows:
            texts = [Text(entry.text, style=STYLES.get(entry.mark, "")) for entry in row]
            table.add_row(Text("  " if group else "") + texts[0], *texts[1:])
    return table
