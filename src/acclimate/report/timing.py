"""Tables of adaptations: wall-clock time per score, per adaptation and per stage before training, and mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acclimate.report.formatting import method_name, metric_name
from acclimate.results.adaptations import AdaptationRow
from acclimate.results.cells import (
    DASH,
    Entry,
    Table,
    count_entry,
    mean_entry,
    minutes_entry,
    number_entry,
    plain_entry,
)
from acclimate.results.study import StudyResults

PREPARATION_NAMES = {
    "finetune": "fine-tuning",
    "annotate": "annotation",
    "train": "token classifier",
    "mark": "marking the text",
}
"""Display names of the stages of selective masking. Stages of other methods are shown by their own names."""


def score_time(results: StudyResults) -> Table:
    """Return the minutes it takes to produce one model for each score, starting from the base model."""
    rows = [row for row in results.scores if row.stage_seconds]
    stages = dict.fromkeys(name for row in rows for name in row.stage_seconds if name != "sum")
    named = {stage.stage: stage for stage in results.stages if stage.stage in stages}
    found = list({**named, **stages})
    names = ["model", "domain", "task", "method", "metric", "score", "minutes"]
    names += [named[name].name if name in named else name for name in found]
    note = (
        "Score: mean ± standard deviation over seeds, in percent. Minutes: wall-clock time from the base model to the "
        "scored model, mean over seeds, in total and per stage; other load on the machine increases it. Work shared "
        "by several tasks and seeds ran once and is counted in full in each row that needs it. "
        + "".join(f"{stage.note} " for stage in named.values() if stage.note)
        + "Hyper-parameter search is not included."
    )
    table = Table("Time per score", note, names, minor=["metric", "score", *names[7:]])
    for row in rows:
        spent = row.stage_seconds
        cells = [Entry(row.model), Entry(row.domain), Entry(row.task), Entry(row.method)]
        cells += [Entry(metric_name(row.metric)), mean_entry(row.summaries[row.metric])]
        cells += [minutes_entry(spent[name] / 60 if name in spent else None) for name in ("sum", *found)]
        table.rows.append(cells)
    return table


def adaptation_runs(results: StudyResults) -> Table:
    """Return the budget, speed and folder of each adaptation."""
    names = ["model", "domain", "method", "seed", "tokens", "steps", "minutes", "tokens/s", "folder"]
    note = "Tokens read in training, and minutes of training without loading and tokenization."
    table = Table("Adaptation runs", note, names, minor=[*names[4:6], *names[7:]])
    for row in results.adaptations:
        tokens, seconds = row.tokens or 0, row.seconds or 0.0
        speed = Entry(f"{tokens / seconds:,.0f}", tokens / seconds) if tokens and seconds else DASH
        cells = [*_run_cells(row), count_entry(tokens), count_entry(row.steps or 0), number_entry(seconds / 60)]
        table.rows.append([*cells, speed, Entry(row.folder)])
    return table


def mixtures(results: StudyResults) -> Table:
    """Return what each adaptation read of each text, if it read several."""
    names = ["method", "domain", "model", "text", "share, %", "realized, %", "last, %", "tokens", "epochs", "loss"]
    note = (
        "Tokens that each adaptation read of each text. The share of the tokens is as scheduled and realized; the "
        "last share applies at the end, where a mix changes the shares. The loss is the language model's loss on the "
        "text at the end of the training, in nats per predicted token."
    )
    table = Table("Mixture of texts", note, names)
    for row, text in ((run, text) for run in results.adaptations for text in run.mix):
        last = text["weights"][-1][1] if "weights" in text else text["share"]
        shares = [100 * text["share"], 100 * text["realized"], 100 * last]
        values = [row.method, row.domain, row.model, text["name"], *shares, text["tokens"], text["epochs"]]
        table.rows.append([plain_entry(value, 3) for value in (*values, text.get("loss"))])
    return table


def preparation_time(results: StudyResults) -> Table:
    """Return the minutes of each stage before training, for methods that have such stages."""
    found = [(row, list(preparation_minutes(row.preparation))) for row in results.adaptations]
    stages = list(dict.fromkeys(name for _, minutes in found for name, _ in minutes))
    names = ["model", "domain", "method", "seed", *(PREPARATION_NAMES.get(stage, stage) for stage in stages)]
    names += ["total", "training"]
    note = (
        "Minutes per stage before training. A stage shared by several adaptations ran once; each row shows its full "
        "time. Training: as in the table of adaptation runs."
    )
    table = Table("Preparation before training", note, names, minor=names[4:-2])
    for row, minutes in found:
        if minutes:
            spent = dict(minutes)
            cells = [*_run_cells(row), *(minutes_entry(spent.get(stage)) for stage in stages)]
            cells += [minutes_entry(sum(spent.values())), minutes_entry((row.seconds or 0.0) / 60)]
            table.rows.append(cells)
    return table


def preparation_minutes(records: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and minutes of each stage before training.

    Args:
        records: Records of the method by file name, as in
        :attr:`acclimate.results.adaptations.AdaptationRow.preparation`.
    """
    for record in records.values():
        for name, stage in record.items() if isinstance(record, Mapping) else ():
            if isinstance(stage, Mapping) and isinstance(stage.get("minutes"), int | float):
                yield name, float(stage["minutes"])


def _run_cells(row: AdaptationRow) -> list[Entry]:
    seed = DASH if row.seed is None else Entry(str(row.seed), row.seed)
    return [Entry(row.model or ""), Entry(row.domain or "all"), Entry(method_name(row)), seed]
