"""Results with everything that a report can show, and with texts that try to be markup."""

from __future__ import annotations

import copy

from acclimate.results import StudyResults

EVIL = "<script>window.evil = 1</script>"


def piece(text, fate="", became="", space=True, **more):
    return {"text": text, "space": space, "fate": fate, "became": became, **more}


def masked():
    """Two texts as two maskings hide them."""
    words = "the attention of a head is a distribution over the words of a text".split()
    plain = [piece(word, space=number > 0) for number, word in enumerate(words)]
    random = copy.deepcopy(plain)
    random[1]["fate"], random[4]["fate"] = "mask", "kept"
    random[7].update(fate="random", became=EVIL)
    chosen = copy.deepcopy(plain)
    for place in (1, 4, 7, 10):
        chosen[place]["important"] = True
    for place in (1, 4, 7):
        chosen[place]["fate"] = "mask"
    evil = [piece(EVIL, "mask", space=False), piece("is"), piece(EVIL, important=True)]
    return [
        {"place": "cs", "maskings": {"mlm, dga: random": random, "selective: selective": chosen}},
        {"place": "cs", "maskings": {"mlm, dga: random": evil}},
    ]


def importance(layers=6, heads=12):
    """Importances of heads, each at its place, and of many units, sorted."""
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


def moved(results, layers=7):
    """How far each method moved each layer, in every domain."""
    rows = []
    for number, run in enumerate(results["adaptations"]):
        each = [
            {"cka": 1 - 0.01 * (number + 1) * layer, "distance": 0.1 * layer, "share": 0.02 * layer, "cosine": 0.98}
            for layer in range(layers)
        ]
        embeddings = {"distance": 0.05, "share": 0.02, "cosine": 0.99}
        rows.append({**{name: run[name] for name in ("model", "domain", "method")}, "layers": each})
        rows[-1] |= {"embeddings": embeddings}
    return rows


def distilled(results):
    """How two rows of distillation came to agree with their teachers, on every task."""
    rows = []
    for task in dict.fromkeys((row["model"], row["domain"], row["task"]) for row in results["scores"]):
        for number, run in enumerate(results["methods"][1:3]):
            curve = [30.5 + number, 12.0 + 6 * number, 9.0 + 5 * number, 10.0 + 5 * number]
            scores = {"metric": "macro_f1", "teacher": 0.7, "before": 0.6, "after": 0.65}
            rows.append(
                {**dict(zip(("model", "domain", "task"), task, strict=True)), "method": run["label"], **scores}
            )
            rows[-1] |= {"disagreement": curve, "distilled_epochs": 2, "units": 64}
    return rows


def everything(results):
    """Results with masked texts, importances, distillations, and markup where a user could put it."""
    found = results.to_dict() if isinstance(results, StudyResults) else copy.deepcopy(results)
    found["masked"] = masked()
    found["moved"] = moved(results)
    found["distillations"] = distilled(results)
    found["notes"] = [EVIL]
    found["samples"] = [{"text": EVIL, "label": EVIL}]
    for run in found["adaptations"]:
        if run["method"].startswith("dga"):
            run["importance"] = importance()
    return found


def crowded(results, methods=20):
    """Results with many methods of long names, each with the curves and scores of one that was there."""
    found = everything(results)
    model = found["methods"][1]["label"]
    for number in range(methods - len(found["methods"])):
        label = f"{model}, the {number}th of the variants"
        found["methods"].append({**found["methods"][1], "label": label})
        for name in ("adaptations", "scores", "losses", "moved"):
            found[name] += [{**row, "method": label} for row in found[name] if row["method"] == model]
    return found
