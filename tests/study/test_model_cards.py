"""Model cards contain the measurements of a study."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from huggingface_hub import ModelCard

from acclimate.cards.writers import write_model_cards
from acclimate.results.scores import NOT_LEARNED, NOTHING_LEARNED, WITHHELD
from acclimate.results.study import ReportTable
from acclimate.study.compare import compare
from tests.cases import each
from tests.study.fakes import World, study


class ManifestWorld(World):
    """A backend whose adaptations write the same record as real ones."""

    def adapt(self, model, corpus, method="mlm", out=None, **options):
        result = super().adapt(model, corpus, method, out, **options)
        summary = {
            **{"method": result.method, "model": str(model), "settings": {}, "corpus": "c0ffee"},
            "seed": options["seed"],
            **{"result": {"steps": 40, "tokens": 200_000, "seconds": 1.0, "losses": {"mlm": 2.4}}},
            "text": {"documents": 300, "files": {"files": 1, "bytes": 9000, "datasets": []}},
        }
        (result.out / "acclimate.json").write_text(json.dumps(summary))
        return result


@pytest.mark.parametrize("adapt_seeds", [[0], [3, 4]])
def test_the_cards_say_what_the_study_measured(folder, tmp_path, adapt_seeds, no_report):
    values = study(folder, adapt_seeds=adapt_seeds)
    results = compare(values, tmp_path / "out", progress=False, backend=ManifestWorld(gain=0.3).backend())
    row = next(row for row in results["scores"] if row["method"] == "mlm")
    entry = row["difference"]["macro_f1"]
    runs = [run for run in results["adaptations"] if run["method"] == "mlm"]
    assert len(runs) == len(adapt_seeds)
    several = len(adapt_seeds) > 1
    for run in runs:
        made = ModelCard.load(tmp_path / "out" / run["folder"] / "README.md")
        score, domain, general = made.data.eval_results
        assert score.metric_value == pytest.approx(row["macro_f1"]["mean"], abs=1e-4)
        assert score.metric_args["low"] == pytest.approx(entry["low"], abs=1e-4)
        assert score.dataset_name == "intent" and "general text" in (domain.dataset_name, general.dataset_name)
        span = f"{100 * entry['low']:+.1f} to {100 * entry['high']:+.1f}"
        assert span in made.text and f"| {entry['verdict']} |" in made.text
        assert "1 file, 9.0 kB" in made.text
        assert (f"this model has seed {run['seed']}" in made.text) == several
        assert ("not the variance of the adaptation, so they allow no verdict" in made.text) == (not several)
        assert (entry["p"] is None) == (entry["verdict"] == WITHHELD) == (not several)
        assert made.data.model_name == "model-mlm-cs" + (f"-seed-{run['seed']}" if several else "")
    other = next(run for run in results["adaptations"] if run["method"] != "mlm")
    text = (tmp_path / "out" / other["folder"] / "README.md").read_text()
    assert span not in text  # each card has the numbers of its own model


def test_a_card_has_the_rows_of_tables_about_its_model_and_none_that_may_name_files(folder, tmp_path, no_report):
    results = compare(study(folder), tmp_path / "out", progress=False, backend=ManifestWorld().backend())
    run = next(run for run in results.adaptations if run.method == "mlm")
    lines = [
        [run.model, "cs", method, value] for method, value in (("none", 1.25), ("mlm", 2.5), ("mlm, intent", 3.75))
    ]
    shown = ReportTable(title="Pairs", columns=["model", "domain", "method", "value"], rows=lines)
    files = ReportTable(title="Texts", columns=["domain", "method", "text"], rows=[["cs", "mlm", "/home/me/cs.txt"]])
    results = replace(results, tables=[shown, files])
    write_model_cards(results, tmp_path / "out")
    text = (tmp_path / "out" / run.folder / "README.md").read_text()
    assert "## Pairs" in text and "| 2.500 |" in text and "1.250" not in text and "3.750" not in text
    assert "## Texts" not in text and "/home/me" not in text


@each("guess", [lambda rng, gold: [2] * len(gold), lambda rng, gold: rng.permutation(gold).tolist()])
def test_models_that_learned_nothing_give_no_answer(folder, tmp_path, capsys, guess):
    """All answers are equal, or do not depend on the item: in report, terminal, ``results.md`` and cards."""
    world = ManifestWorld()

    def finetune(model, task, *, seed=0, **options):
        made = world.finetune(model, task, seed=seed, **options)
        made.predicted = guess(np.random.default_rng([seed, len(str(model))]), made.gold)
        for name in ("accuracy", "macro_f1", "micro_f1"):
            made.metrics[name] = task.scoring().score(made.gold, made.predicted, name)
        return made

    values = study(folder, methods=["none", "mlm"], adapt_seeds=None)
    results = compare(values, tmp_path / "out", backend=world.backend(finetune=finetune))
    comparison = results.scores[1].comparison
    assert (comparison.verdict, comparison.p, comparison.p_holm, comparison.p_t) == (NOT_LEARNED, None, None, None)
    outputs = [capsys.readouterr().out]
    outputs += [(tmp_path / "out" / name).read_text() for name in ("results.md", "report.html")]
    for text in (" ".join(text.split()) for text in outputs):
        assert NOTHING_LEARNED in text
        assert text.lower().count("not learned") >= 3  # the headline and a table
    outputs += [(tmp_path / "out" / run.folder / "README.md").read_text() for run in results.adaptations]
    for text in outputs:
        assert "not learned" in text and "no difference shown |" not in text


def test_a_folder_without_a_record_gets_no_card(folder, tmp_path):
    results = compare(study(folder), tmp_path / "out", progress=False, backend=World().backend())
    assert not list((tmp_path / "out").rglob("README.md")) and results["adaptations"]
