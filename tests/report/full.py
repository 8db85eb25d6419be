"""Results with everything that a report can show, and with text that looks like markup."""

from __future__ import annotations

import copy
import re
from dataclasses import fields, replace
from html.parser import HTMLParser

from acclimate.base.version import DOCS_URL
from acclimate.labs.inspection.jobs import DriftRow
from acclimate.labs.sequence.rows import SequenceOrder, SequenceRow, SequenceSpread
from acclimate.report.score_figures import RACE
from acclimate.report.tables import tables
from acclimate.results.adaptations import AdaptationRow, CurvePoint, Importance, MaskedSample
from acclimate.results.cells import Table
from acclimate.results.scores import DistillationRow, Interval, TaskScores
from acclimate.results.study import MethodRow, ReportTable, StudyResults
from acclimate.study.jobs.probe import ProbeRow

EVIL = "<script>window.evil = 1</script>"


def piece(text, replacement="", replaced_by="", space=True, **more):
    return {"text": text, "space": space, "replacement": replacement, "replaced_by": replaced_by, **more}


def masked() -> list[MaskedSample]:
    """Two texts, masked by two strategies."""
    words = "the attention of a head is a distribution over the words of a text".split()
    plain = [piece(word, space=number > 0) for number, word in enumerate(words)]
    random = copy.deepcopy(plain)
    random[1]["replacement"], random[4]["replacement"] = "mask", "unchanged"
    random[7].update(replacement="random", replaced_by=EVIL)
    selective = copy.deepcopy(plain)
    for position in (1, 4, 7, 10):
        selective[position]["important"] = True
    for position in (1, 4, 7):
        selective[position]["replacement"] = "mask"
    evil = [piece(EVIL, "mask", space=False), piece("is"), piece(EVIL, important=True)]
    return [
        MaskedSample(domain="cs", maskings={"mlm, dga: random": random, "selective: selective": selective}),
        MaskedSample(domain="cs", maskings={"mlm, dga: random": evil}),
    ]


def importance(layers=6, heads=12):
    """Importance of heads at their positions, and of many sorted units."""
    raw = [[((7 * head + 3 * layer) % 11) / 10 for head in range(heads)] for layer in range(layers)]
    shares = [[min(1.0, abs(value - 0.5) * 2) for value in row] for row in raw]
    many = [[1 - unit / 63 for unit in range(64)] for _ in range(layers)]
    head = {
        "name": "attention heads",
        "layers": layers,
        "units": heads,
        "sorted": False,
        "raw": raw,
        "protection": shares,
    }
    unit = {"name": "output units of the feed-forward", "layers": layers, "units": 3072, "sorted": True}
    return {"measured": "dropout", "parts": {"H": head, "O": {**unit, "raw": many, "protection": many}}}


def drift(results, layers=7) -> list[DriftRow]:
    """Drift of each method in every domain."""
    rows = []
    for number, run in enumerate(results.adaptations):
        each = [
            {"cka": 1 - 0.01 * (number + 1) * layer, "distance": 0.1 * layer, "share": 0.02 * layer, "cosine": 0.98}
            for layer in range(layers)
        ]
        embeddings = {"distance": 0.05, "share": 0.02, "cosine": 0.99}
        place = {"model": run.model, "domain": run.domain, "method": run.method}
        rows.append(DriftRow(**place, layers=each, embeddings=embeddings))
    return rows


def distillations(results) -> list[DistillationRow]:
    """Two distillations on every task."""
    rows = []
    for model, domain, task in dict.fromkeys((row.model, row.domain, row.task) for row in results.scores):
        for number, method in enumerate(results.methods[1:3]):
            curve = [30.5 + number, 12.0 + 6 * number, 9.0 + 5 * number, 10.0 + 5 * number]
            place = {"model": model, "domain": domain, "task": task, "method": method.label}
            scores = {"metric": "macro_f1", "teacher": 0.7, "before": 0.6, "after": 0.65}
            rows.append(DistillationRow(**place, **scores, disagreement=curve, distilled_epochs=2, units=64))
    return rows


def probes(results) -> list[ProbeRow]:
    """Scores of a probe with three numbers of labels on every task."""
    rows = []
    for number, row in enumerate(results.scores):
        for level, labels in enumerate((8, 64, None)):
            middle = 0.4 + 0.1 * level + 0.02 * (number % 3)
            entry = Interval(difference=middle, low=middle - 0.05, high=middle + 0.04, p=None, verdict="helped")
            short = {EVIL: 41} if labels == 64 else {}
            shown = {field.name: getattr(row, field.name) for field in fields(TaskScores)}
            rows.append(ProbeRow(**shown, probe="linear", labels_per_class=labels, interval=entry, short=short))
    return rows


def sequences(results) -> list[SequenceRow]:
    """A method on two orders of two domains, one of them with markup in its name and a value that is missing."""
    spread = SequenceSpread(mean=2.5, seeds=[2.4, 2.6], orders=[2.0, 3.0])
    orders = [
        SequenceOrder(
            domains=domains,
            matrix=[[3.0, 3.1], [2.5, None], [2.6, 2.0]],
            general=[3.0, 3.2, 3.4],
            folders=["models/last"],
            seconds=90.0,
        )
        for domains in (["cs", EVIL], [EVIL, "cs"])
    ]
    measures = {"average": spread, "forgetting": replace(spread, mean=0.1, seeds=None)}
    row = SequenceRow(
        model=results.models[0], method="mlm", measure="loss", seeds=[0, 1], orders=orders, measures=measures
    )
    return [row, replace(row, method="dga", measure="score", differences=measures, reference="mlm")]


def race() -> ReportTable:
    """The race of a tournament in two rungs, with an entrant that was dropped and one that failed."""
    rows = [
        ["rung-1", 1_000, "mlm", 1.5, "goes on"],
        ["rung-1", 1_000, EVIL, -2.5, "dropped: worse than mlm"],
        ["rung-1", 1_000, "dga", None, "failed"],
        ["rung-2", 3_000, "mlm", 2.25, "wins"],
    ]
    return ReportTable(title=RACE, columns=["rung", "tokens", "entrant", "gain", "decision"], rows=rows)


def everything(results) -> StudyResults:
    """Results with all optional parts, one adaptation per method, and markup in text from users."""
    results = replace(results, adaptations=[run for run in results.adaptations if run.seed == 0])
    return replace(
        results,
        masked=masked(),
        rows={
            "drift": drift(results),
            "probe": probes(results),
            "sequence": sequences(results),
            "distill": distillations(results),
        },
        tables=[*results.tables, race()],
        notes=[EVIL],
        samples=[{"text": EVIL, "label": EVIL}],
        adaptations=[
            replace(run, importance=Importance.from_dict(importance())) if run.method.startswith("dga") else run
            for run in monitored(results.adaptations)
        ],
    )


def monitored(runs) -> list[AdaptationRow]:
    """Adaptations with losses from the first step on: falling on held-out text, with a dip on general text."""
    steps = [0, 1, 2, 3, 4, 6, 8, 11, 16]

    def curve(losses):
        return [
            CurvePoint(step=step, tokens=99 * step, loss=9.0, terms={"mlm": loss})
            for step, loss in zip(steps, losses, strict=True)
        ]

    held_out = curve([3 - 0.1 * step for step in steps])
    general = curve([2, 2.25, 2.5, 2.75, 2.5, 2.25, 2.125, 2.0, 2.0625])
    return [replace(run, heldout_curve=held_out, general_curve=general) for run in runs]


def crowded(results, methods=20) -> StudyResults:
    """Results with many methods of long names, each a copy of one of the study."""
    found = everything(results)
    model = found.methods[1].label
    labels = [f"{model}, the {number}th of the variants" for number in range(methods - len(found.methods))]

    def with_copies(rows):
        return [*rows, *(replace(row, method=label) for label in labels for row in rows if row.method == model)]

    lists = {name: with_copies(getattr(found, name)) for name in ("adaptations", "scores", "losses")}
    lists["rows"] = {**found.rows, "drift": with_copies(found.rows["drift"])}
    return replace(found, methods=[*found.methods, *(MethodRow(label=label, name="mlm") for label in labels)], **lists)


def with_comparison(row, **changes):
    """A row of scores with changes to its comparison with the baseline."""
    entry = replace(row.comparison, **changes)
    return replace(row, difference=replace(row.difference, metrics={**row.difference.metrics, row.metric: entry}))


def titled(results, title) -> Table:
    """The table of the report with a title."""
    return next(table for table in tables(results) if table.title == title)


def texts(table) -> list[dict[str, str]]:
    """The rows of a table, as texts by column."""
    return [dict(zip(table.columns, (entry.text for entry in row), strict=True)) for row in table.rows]


VOID = ("meta", "br", "input")


class Page(HTMLParser):
    """Parses a page, collecting ids and addresses, and asserting that tags are closed."""

    def __init__(self):
        super().__init__()
        self.ids, self.addresses, self.open, self.scripts = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parse(text) -> Page:
    """Parse a page and assert that it is well-formed and self-contained."""
    page = Page()
    page.feed(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith(("#", DOCS_URL or "#")) for address in page.addresses)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    return page
