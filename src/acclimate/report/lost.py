"""Evidence beside the scores: what was kept on other tasks, how far models moved, and what leaked into the text."""

from __future__ import annotations

from typing import Any

from acclimate.report.cells import Entry, Table, mean_entry, p_entry
from acclimate.report.words import VERDICTS, interval_text, method_name, metric_name, plain, signed

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
