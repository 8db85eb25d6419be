"""The tables of a report."""

from __future__ import annotations

from typing import Any

from acclimate.report.formatting import (
    VERDICTS,
    Entry,
    Table,
    interval_text,
    mean_entry,
    method_name,
    metric_name,
    metrics_of,
    p_entry,
    plain,
    signed,
)
from acclimate.report.timing import accounts, adaptations, distillations, scored

OPPOSITE = {"win": "loss", "loss": "win", "tie": "tie"}
"""What a verdict on a loss means for people: a loss that rises is bad news."""


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the tables of a study that have rows: scores, losses, and what they took."""
    made = [_tally(results), _scores(results), _losses(results), kept(results), moved(results)]
    made += [leakage(results), repeated(results), scored(results), adaptations(results), accounts(results)]
    made += [distillations(results), searched(results)]
    return [_without_constant(table) for table in made if table.rows]


def _tally(results: dict[str, Any]) -> Table:
    """Count wins, ties and losses; a study of one task says as much in its scores."""
    names = ["model", "method", "tasks", "helped", "no difference shown", "hurt", "helped (Holm)", "hurt (Holm)"]
    note = (
        f"On how many tasks the 95 % interval of the difference to {results['baseline']} lies above zero, includes "
        "it, or lies below; and on how many it still does after Holm's correction for all comparisons of the study. "
        "Mean: of the differences over the tasks, in points of 100, each task in its own metric. Tasks count alike, "
        "however many test items they have."
    )
    table = Table("Wins, ties and losses over tasks", note, [*names, "mean"], [False] * 2 + [True] * 7)
    counted = ("tasks", "win", "tie", "loss", "win_holm", "loss_holm")
    for row in results.get("tally", []):
        if max(other["tasks"] for other in results["tally"]) > 1:
            counts = [Entry(str(row[name]), row[name]) for name in counted]
            mean = Entry(signed(100 * row["mean"]), row["mean"])
            table.rows.append([Entry(row["model"]), Entry(row["method"]), *counts, mean])
    return table


def _scores(results: dict[str, Any]) -> Table:
    metrics = metrics_of(results["scores"])
    calibrated = any("ece" in row for row in results["scores"])
    judged = metric_name(metrics[0]) if metrics else ""
    names = ["model", "domain", "task", "method", judged]
    names += ["difference", "95 % interval", "in words", "p", "p (Holm)", *map(metric_name, metrics[1:])]
    names += ["p (t-test)", "p (these models)", *(["ECE"] if calibrated else [])]
    note = (
        f"Mean ± standard deviation over seeds, in points of 100. Difference: to {results['baseline']}, paired by "
        f"seed and test item, in the metric of the task ({judged} unless it says otherwise). Interval and p: "
        "bootstrap over test items joined with the variance over seeds. p (Holm): corrected for all comparisons of "
        "the study. p (t-test): of the scores over seeds, blind to the luck of the test items. p (these models): "
        "permutation of test items, blind to the luck of the seeds."
    )
    if calibrated:
        bins = {round(1 / (entry["high"] - entry["low"])) for row in results["scores"] for entry in _bins(row)}
        over = f", over {' or '.join(map(str, sorted(bins)))} bins of equal width" if bins else ""
        note += (
            f" ECE: expected calibration error, how far confidence is from the share that is right{over}; less is "
            "better."
        )
    numeric = [name not in ("model", "domain", "task", "method", "in words") for name in names]
    table = Table("Scores on end tasks", note, names, numeric)
    for row in results["scores"]:
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells.append(mean_entry(row.get(metrics[0])))
        others = [mean_entry(row.get(metric)) for metric in metrics[1:]]
        last = [mean_entry(row.get("ece"))] if calibrated else []
        if row.get("difference"):
            entry = row["difference"][row["metric"]]
            unit = "" if row["metric"] == metrics[0] else f" ({metric_name(row['metric'])})"
            cells += [
                Entry(signed(100 * entry["difference"]) + unit, entry["difference"]),
                Entry(interval_text(entry, 100), entry["low"]),
                Entry(VERDICTS[entry["verdict"]], None, entry["verdict"]),
                p_entry(entry["p"]),
                p_entry(entry.get("p_holm")),
                *others,
                p_entry(entry.get("p_t")),
                p_entry(entry["p_models"]),
                *last,
            ]
        else:
            word = "baseline" if row["method"] == results["baseline"] else "–"
            cells += [
                Entry("–"),
                Entry("–"),
                Entry(word),
                Entry("–"),
                Entry("–"),
                *others,
                Entry("–"),
                Entry("–"),
                *last,
            ]
        table.rows.append(cells)
    return table


def _bins(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bins of confidence of a row of scores, if it has any."""
    return row.get("reliability") or []


def _losses(results: dict[str, Any]) -> Table:
    names = ["model", "domain", "text", "method", "before", "after", "change", "95 % interval", "%", "in words"]
    note = (
        "Masked-LM loss in nats per masked token, 15 % of the tokens masked, the same masks for every method of a "
        "model; less is better. Interval: paired bootstrap over documents."
    )
    numeric = [False] * 4 + [True] * 5 + [False]
    if any("bits_per_byte" in row for row in results["losses"]):
        names += ["bits per byte: before", "after"]
        numeric += [True, True]
        note += (
            " Bits per byte: the same loss for every token read, over the bytes of UTF-8 that these stand for, so "
            "that vocabularies compare; a pseudo-measure, as each token is guessed from both sides."
        )
    table = Table("What was learnt and what was forgotten", note, names, numeric)
    for row in results["losses"]:
        cells = [Entry(row["model"]), Entry(row["domain"])]
        cells += [Entry("domain, held out" if row["text"] == "domain" else "general"), Entry(method_name(row))]
        after = Entry(plain(row["nats"], 3), row["nats"])
        if "difference" in row:
            entry = row["difference"]
            mark = OPPOSITE[entry["verdict"]]
            word = {"win": "lower", "loss": "higher", "tie": "no change shown"}[mark]
            percent = row["percent"]
            cells += [
                Entry(plain(row["before"], 3), row["before"]),
                after,
                Entry(signed(entry["difference"], 3), entry["difference"]),
                Entry(interval_text(entry, 1, 3), entry["low"]),
                Entry("–") if percent is None else Entry(signed(percent), percent),
                Entry(word, None, mark),
            ]
        else:
            cells += [Entry("–"), after, *[Entry("–")] * 4]
        if "bits per byte: before" in names:
            bits = [row.get(name) for name in ("bits_per_byte_before", "bits_per_byte")]
            cells += [Entry("–") if value is None else Entry(plain(value, 3), value) for value in bits]
        table.rows.append(cells)
    return table


def _without_constant(table: Table) -> Table:
    """Leave out the columns that say the same in a study of one model or one domain."""
    dropped = {
        place
        for place, name in enumerate(table.columns)
        if name in ("model", "domain", "seed") and len({row[place].text for row in table.rows}) == 1
    }
    kept = [place for place in range(len(table.columns)) if place not in dropped]
    rows = [[row[place] for place in kept] for row in table.rows]
    numeric = [table.numeric[place] for place in kept]
    return Table(table.title, table.note, [table.columns[place] for place in kept], numeric, rows)


KINDS = ("exact", "near", "contained")


def kept(results: dict[str, Any]) -> Table:
    """Say how adapted models do on end tasks of other domains, against the model as it came."""
    names = ["model", "domain", "method", "other task", "metric", "before", "after", "difference", "95 % interval"]
    note = (
        "End tasks of other domains, learnt by every adapted model and by the model as it came (before): mean ± "
        "standard deviation over seeds, in points of 100. Difference and interval as in the scores; p (Holm) is "
        "corrected for the comparisons of this table alone. No difference shown is no proof that nothing was lost: "
        "the interval says how much could have been."
    )
    table = Table(
        "Kept on other tasks", note, [*names, "in words", "p (Holm)"], [False] * 5 + [True] * 4 + [False, True]
    )
    for row in results.get("kept", []):
        named = {**row, "task": row.get("adapted_for")}
        cells = [Entry(row["model"]), Entry(row["domain"]), Entry(method_name(named)), Entry(row["task"])]
        cells.append(Entry(metric_name(row["metric"])))
        after = mean_entry(row[row["metric"]])
        if row.get("difference"):
            entry = row["difference"][row["metric"]]
            cells += [
                Entry(plain(100 * row["before"]), row["before"]),
                after,
                Entry(signed(100 * entry["difference"]), entry["difference"]),
                Entry(interval_text(entry, 100), entry["low"]),
                Entry(VERDICTS[entry["verdict"]], None, entry["verdict"]),
                p_entry(entry.get("p_holm")),
            ]
        else:
            cells += [Entry("–"), after, *[Entry("–")] * 4]
        table.rows.append(cells)
    return table


def moved(results: dict[str, Any]) -> Table:
    """Say how far each adaptation moved static embeddings and hidden states."""
    names = ["model", "domain", "method", "embeddings: distance", "% of length", "cosine"]
    names += ["CKA: lowest", "in layer", "last layer", "all layers", "states: % of length, last layer"]
    note = (
        "The model as it came against the adapted one on the same general text. Embeddings: mean Euclidean distance "
        "of a row of the input matrix, that over the mean length of the rows, and the mean cosine. CKA: linear CKA of "
        "the hidden states of all tokens (Kornblith et al., 2019), 1 where one is a rotation of the other; layer 0 is "
        "what enters the first. How far a model moved is not how much it lost: read it beside the losses."
    )
    table = Table("How far the model moved", note, names, [False] * 3 + [True] * 8)
    for row in results.get("moved", []):
        ckas = [layer["cka"] for layer in row["layers"]]
        lowest = min(range(len(ckas)), key=ckas.__getitem__)
        embeddings, last = row["embeddings"], row["layers"][-1]
        cells = [Entry(row["model"]), Entry(row["domain"]), Entry(method_name(row))]
        cells += [
            Entry(plain(embeddings["distance"], 4), embeddings["distance"]),
            Entry(plain(100 * embeddings["share"], 2), embeddings["share"]),
            Entry(plain(embeddings["cosine"], 4), embeddings["cosine"]),
            Entry(plain(ckas[lowest], 3), ckas[lowest]),
            Entry(str(lowest), lowest),
            Entry(plain(ckas[-1], 3), ckas[-1]),
            Entry(plain(sum(ckas) / len(ckas), 3), sum(ckas) / len(ckas)),
            Entry(plain(100 * last["share"]), last["share"]),
        ]
        table.rows.append(cells)
    return table


def leakage(results: dict[str, Any]) -> Table:
    """Say which dev and test texts stand in the text that models were adapted to."""
    names = ["domain", "task", "split", "texts", "short", "in the corpus", "%", "exact", "near", "contained"]
    corpora = [row for row in results.get("leakage") or [] if "train_of" not in row]
    removed = any(row["removed"] for row in corpora)
    note = (
        "Different texts that a model is judged on, and how many are in the corpus: as a document (exact), nearly "
        "(Jaccard similarity of 5-letter sequences of at least 0.8) or inside a document (at least 80 % of the text's "
        "5-word sequences). Short texts, of fewer than eight words, are looked for as whole documents only. "
        + ("The documents that hold one were left out before adaptation." if removed else "They were adapted to.")
    )
    table = Table("Test texts in the corpus", note, names, [False] * 3 + [True] * 7)
    for corpus in corpora:
        for row in corpus["texts"]:
            table.rows.append([Entry(corpus["domain"]), Entry(row["task"]), Entry(row["split"]), *_counts(row)])
    return table


def repeated(results: dict[str, Any]) -> Table:
    """Say which dev and test texts stand in the train splits that the same models learn."""
    names = ["task", "split", "train split of", "texts", "short", "in train", "%", "exact", "near", "contained"]
    note = (
        "Different texts that a model is judged on, and how many are in the train split of their own task, or of the "
        "one learnt before it; the two texts of a pair count as one, and of a question its passage counts. Rules as "
        "for corpora: exact, near, or contained in a longer text. Models learn them with the label that they have "
        "there (with few_shot those that are drawn), and methods that read the text of the task adapt to them as "
        "well: scores on these texts say little of new ones. They stay, as train splits are used as they are. A "
        "short text, of fewer than eight words, may be there by chance."
    )
    table = Table("Test texts in train splits", note, names, [False] * 3 + [True] * 7)
    for learnt in results.get("leakage") or []:
        for row in learnt["texts"] if "train_of" in learnt else []:
            table.rows.append([Entry(row["task"]), Entry(row["split"]), Entry(learnt["train_of"]), *_counts(row)])
    return table


def _counts(row: dict[str, Any]) -> list[Entry]:
    share = 100 * row["found"] / row["texts"] if row["texts"] else 0.0
    counts = {name: Entry(f"{row[name]:,}", row[name]) for name in ("texts", "short", "found", *KINDS)}
    return [
        *(counts[name] for name in ("texts", "short", "found")),
        Entry(plain(share), share),
        *(counts[name] for name in KINDS),
    ]


DASH = Entry("–")


def searched(results: dict[str, Any]) -> Table:
    """Say for each search how many combinations were tried and which was taken; every trial is in ``results.json``."""
    names = ["model", "domain", "task", "method", "settings of", "combinations", "seeds", "chosen", "metric"]
    names += ["dev, chosen", "dev, best", "dev, worst", "dev ECE"]
    note = (
        "Settings were chosen by the mean over seeds on the dev split, before the test split was read. Of the "
        "combinations whose score is no more than a tolerance below the best ("
        + ", ".join(f"{100 * value:g}" for value in sorted({row["tolerance"] for row in results.get("searched", [])}))
        + " points), the one with the lowest expected calibration error was taken. Combinations: tried, of those that "
        "are possible. Scores in points of 100; on dev the chosen one is flattered by the choice."
    )
    numeric = [False] * 5 + [True] * 2 + [False] * 2 + [True] * 4
    table = Table("Chosen on dev", note, names, numeric)
    for row in results.get("searched", []):
        done = [trial for trial in row["trials"] if trial["state"] == "done"]
        failed = sum(trial["state"] == "failed" for trial in row["trials"])
        taken = next((trial for trial in done if trial["chosen"]), None)
        scores = [trial["score"] for trial in done]
        count = f"{row['tried']} of {row['possible']}" + (f", {failed} failed" if failed else "")
        cells = [Entry(row["model"]), Entry(row["domain"]), Entry(row["task"]), Entry(", ".join(row["methods"]))]
        cells += [Entry(row["stage"]), Entry(count, row["tried"]), Entry(str(len(row["seeds"])), len(row["seeds"]))]
        settings = row["chosen"] or {}
        cells.append(Entry(", ".join(f"{name} {_value(value)}" for name, value in settings.items()) or "–"))
        cells.append(Entry(metric_name(row["metric"])))
        cells += [_points(taken and taken["score"]), _points(max(scores, default=None))]
        cells += [_points(min(scores, default=None)), _points(taken and taken["ece"])]
        table.rows.append(cells)
    return table


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _points(value: float | None) -> Entry:
    return DASH if value is None else Entry(plain(100 * value), value)
