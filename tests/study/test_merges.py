"""Merged models as rows of a study: one per adapted model, measured like it."""

from __future__ import annotations

import pytest

from acclimate.errors import UserError
from acclimate.study import StudyConfig, compare
from tests.cases import each
from tests.study.fakes import World, graph_of, study
from tests.tiny import TEXTS, save_tiny

HALF = {"of": "mlm", "method": "interpolation", "alpha": 0.5}


def test_merged_models_are_measured_beside_the_adapted_ones(folder, tmp_path, no_report):
    chat = {"of": "mlm", "method": "chat-vector", "instruct": str(save_tiny("bert", folder / "chat"))}
    config = study(folder, methods=["none", "mlm"], merges=[chat, HALF], seeds=2, adapt_seeds=2)
    world = World()
    results = compare(config, tmp_path / "out", progress=False, backend=world.backend())
    labels = ["none", "mlm", "mlm + chat vector", "mlm + base model, alpha 0.5"]
    assert [row.method for row in results.scores] == labels
    assert {row.method for row in results.losses} == set(labels[1:])
    assert [(row.label, row.name) for row in results.methods][2:] == [
        (labels[2], "chat-vector"), (labels[3], "interpolation"),
    ]  # fmt: skip
    merges = [call for call in world.arguments if call["kind"] == "merge"]
    adapted = {str(tmp_path / "out" / row.folder) for row in results.adaptations}
    assert len(merges) == 4 and {call["model"] for call in merges} == adapted and len(adapted) == 2
    assert [call.get("weights") or call["alpha"] for call in merges] == [1.0, 1.0, 0.5, 0.5]
    assert merges[0]["instruct"] == chat["instruct"] and merges[0]["base"] == config["models"][0]
    assert results.scores[1].comparison is not None and results.scores[2].comparison is not None
    assert world.calls["adapt"] == 2
    # the time of the adaptation counts for the merged model
    assert results.scores[2].stage_seconds["adaptation"] == results.scores[1].stage_seconds["adaptation"] > 0
    compare(config, tmp_path / "out", progress=False, backend=world.backend())
    assert world.calls["merge"] == 4


def test_identity_of_merges(folder):
    def keys(**changes) -> set[str]:
        graph = graph_of(study(folder, methods=["none", "mlm"], merges=[{**HALF, **changes}], seeds=1))
        return {job.key for job in graph.jobs.values() if job.name == "merge"}

    assert keys() == keys(label="another") != keys(alpha=0.25)
    plain = graph_of(study(folder, methods=["none", "mlm"], seeds=1))
    merged = graph_of(study(folder, methods=["none", "mlm"], merges=[HALF], seeds=1))
    assert plain.jobs.keys() < merged.jobs.keys()  # stored results stay valid


@each(
    ("entry", "message"),
    [
        ({"of": "mln"}, "Did you mean 'mlm'"),
        ({"of": "none"}, "method under 'of'"),
        ({"alpha": None}, "interpolation needs 'alpha'"),
        ({"alpha": 2}, "merges.*alpha"),
        ({"weight": 1}, "interpolation has no 'weight'"),
        ({"method": "chat-vector", "alpha": None}, "chat-vector needs 'instruct'"),
        ({"method": "chat-vector", "instruct": "x"}, "chat-vector has no 'alpha'"),
        ({"method": "chat-vector", "alpha": None, "instruct": "./nowhere"}, "nowhere"),
        ({"method": "soup"}, "merges.*method"),
        ({"label": "mlm"}, "is duplicated"),
    ],
)
def test_mistakes_in_merges(folder, tmp_path, entry, message):
    merge = {key: value for key, value in {**HALF, **entry}.items() if value is not None}
    config = study(folder, methods=["none", "mlm"], merges=[merge])
    with pytest.raises(UserError, match=message):
        compare(config, tmp_path / "out", progress=False, backend=World().backend())


def test_a_method_that_is_searched_cannot_be_merged(folder, tmp_path):
    config = study(folder, methods=["none", "mlm"], merges=[HALF], search={"adapt": {"learning_rate": [1e-4, 1e-5]}})
    with pytest.raises(UserError, match="are searched"):
        compare(config, tmp_path / "out", progress=False, backend=World().backend())


def test_merges_beside_a_search_of_fine_tuning(folder, tmp_path, no_report):
    search = {"seeds": 1, "finetune": {"learning_rate": [1e-5, 1e-3]}}
    config = study(folder, methods=["none", "mlm"], merges=[HALF], seeds=1, search=search)
    results = compare(config, tmp_path / "out", progress=False, backend=World().backend())
    assert [row.methods for row in results.searches] == [["none"], ["mlm"]]
    assert [row.method for row in results.scores].count("mlm + base model, alpha 0.5") == 1


def test_relative_paths_start_at_the_study_file(folder):
    (folder / "s.yaml").write_text(
        "models: [model]\nmethods: [none, mlm]\ndomains: [{name: d, corpus: cs.txt}]\n"
        "merges: [{of: mlm, method: chat-vector, instruct: ./chat, weight: 0.5}]\n"
    )
    (spec,) = StudyConfig.load(folder / "s.yaml").sections["merges"]
    assert spec.instruct == str(folder / "chat") and spec.label == "mlm + 0.5 chat vector"


def test_a_real_study_with_an_interpolation(tiny_bert, folder, tmp_path, no_report):
    general = folder / "general.txt"
    general.write_text("\n".join(TEXTS[:4]))
    config = {
        "models": [str(tiny_bert)], "methods": ["mlm"], "general": str(general), "adapt_seeds": 1, "seeds": 1,
        "evaluate": {"max_length": 24},
        "domains": [{"name": "d", "corpus": str(folder / "cs.txt")}],
        "adapt": {"steps": 8, "batch_size": 4, "max_length": 24, "precision": "fp32"},
        "merges": [{**HALF, "alpha": 0, "label": "base"}, {**HALF, "alpha": 1, "label": "adapted"}],
    }  # fmt: skip
    results = compare(config, tmp_path / "out", progress=False)
    losses = {(row.method, row.text): row for row in results.losses}
    for text in {row.text for row in results.losses}:
        adapted = losses["adapted", text]
        assert adapted.nats == pytest.approx(losses["mlm", text].nats, abs=1e-6)
        assert losses["base", text].nats == pytest.approx(adapted.before, abs=1e-6)
        assert adapted.nats != pytest.approx(adapted.before, abs=1e-4)
