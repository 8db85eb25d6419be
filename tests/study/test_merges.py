"""Merged models as rows of a study: one per adapted model, measured like it."""

from __future__ import annotations

import pytest

from acclimate.base.errors import UserError
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.jobs.merge import MergeSpec
from tests.cases import each
from tests.study.fakes import World, graph_of, study
from tests.tiny import TEXTS, save_tiny

HALF = {"of": "mlm", "method": {"interpolation": 0.5}}


def test_merged_models_are_measured_beside_the_adapted_ones(folder, tmp_path, no_report):
    instruct = str(save_tiny("bert", folder / "chat"))
    chat = {"of": "mlm", "method": {"chat-vector": {"instruct": instruct}}}
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
    assert [call.get("weight") or call["alpha"] for call in merges] == [1.0, 1.0, 0.5, 0.5]
    assert merges[0]["instruct"] == instruct and merges[0]["base"] == config["models"][0]
    assert results.scores[1].comparison is not None and results.scores[2].comparison is not None
    assert world.calls["adapt"] == 2
    # the time of the adaptation counts for the merged model
    assert results.scores[2].stage_seconds["adaptation"] == results.scores[1].stage_seconds["adaptation"] > 0
    compare(config, tmp_path / "out", progress=False, backend=world.backend())
    assert world.calls["merge"] == 4


@pytest.mark.needs("dga")
def test_models_of_several_methods_or_seeds_are_merged_with_each_other(folder, tmp_path, no_report):
    general = folder / "general.txt"
    general.write_text("\n".join(f"general text {number}" for number in range(30)))
    ties = {"of": ["mlm", "dga"], "method": "ties density=0.5 weights=1,2"}
    merges = [ties, {"of": "mlm", "method": "soup"}, {"of": "mlm", "method": "fisher", "label": "kept"}]
    config = study(
        folder, methods=["none", "mlm", "dga"], merges=merges, seeds=2, adapt_seeds=2, general=str(general),
        evaluate={"documents": 5},
    )  # fmt: skip
    world = World()
    results = compare(config, tmp_path / "out", progress=False, backend=world.backend())
    labels = ["mlm + dga, ties", "mlm, soup", "kept"]
    assert [row.method for row in results.scores][-3:] == labels
    calls = [call for call in world.arguments if call["kind"] == "merge"]
    by_method = {name: [call for call in calls if call["method"] == name] for name in ("ties", "soup", "fisher")}
    assert [len(found) for found in by_method.values()] == [2, 1, 2]
    adapted = {(row.method, row.seed): str(tmp_path / "out" / row.folder) for row in results.adaptations}
    seeds = sorted({seed for _, seed in adapted})
    assert by_method["ties"][0]["model"] == str([adapted["mlm", seeds[0]], adapted["dga", seeds[0]]])
    assert (by_method["ties"][0]["density"], by_method["ties"][0]["weights"]) == (0.5, (1, 2))
    assert by_method["soup"][0]["model"] == str([adapted["mlm", seed] for seed in seeds])
    assert by_method["soup"][0]["base"] is None and by_method["ties"][0]["base"] == config["models"][0]
    assert by_method["fisher"][1]["model"] == str([adapted["mlm", seeds[1]], config["models"][0]])
    domain, other = by_method["fisher"][0]["data"]
    assert len(list(domain)) > 5 and len(list(other)) == 25 and all(one.startswith("general") for one in other)
    scores = {row.method: row for row in results.scores}
    assert scores["mlm, soup"].stage_seconds["adaptation"] == 2 * scores["mlm"].stage_seconds["adaptation"]
    assert world.calls["adapt"] == 4
    compare(config, tmp_path / "out", progress=False, backend=world.backend())
    assert world.calls["merge"] == 5


@pytest.mark.needs("dga")
def test_a_merge_waits_for_all_models_and_is_blocked_if_one_fails(folder, tmp_path, no_report):
    config = study(folder, methods=["none", "mlm", "dga"], merges=[{"of": ["mlm", "dga"], "method": "ties"}], seeds=1)
    graph = graph_of(config)
    order = list(graph.jobs)
    (job,) = (one for one in graph.jobs.values() if one.name == "merge")
    assert len(job.needed) == 2 and all(order.index(one.key) < order.index(job.key) for one in job.needed)
    assert [one.key for one in job.chain] == [job.key, *(one.key for one in job.needed)]
    world = World()
    world.fail_on["adapt dga"] = RuntimeError("no memory")
    with pytest.raises(UserError, match="no memory"):
        compare(config, tmp_path / "out", progress=False, backend=world.backend())
    assert world.calls["merge"] == 0 and world.calls["finetune"] > 0


@pytest.mark.needs("dga")
def test_soups_are_selected_on_text_that_nothing_measures_and_layers_lie_in_another_model(folder, tmp_path, no_report):
    (folder / "held.txt").write_text("\n".join(f"held out text {number}" for number in range(30)))
    domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "heldout": str(folder / "held.txt")}
    merges = [
        {"of": "mlm", "method": "greedy-soup"},
        {"of": ["mlm", "dga"], "method": "layers layers=1"},
        {"of": "mlm", "method": "layers", "label": "kept"},
    ]
    config = study(folder, methods=["none", "mlm", "dga"], merges=merges, seeds=2, adapt_seeds=2, domains=[domain])
    world = World()
    results = compare(config, tmp_path / "out", progress=False, backend=world.backend())
    adapted = {(row.method, row.seed): str(tmp_path / "out" / row.folder) for row in results.adaptations}
    soup, *layers = [call for call in world.arguments if call["kind"] == "merge"]
    assert soup["model"] == str([adapted["mlm", 0], adapted["mlm", 1]])
    (text,) = soup["data"]
    measured = {one for call in world.arguments if call["kind"] == "lm_loss" for one in call["texts"]}
    assert len(list(text)) == 10 and not measured & set(text) and all(one.startswith("held") for one in text)
    base = config["models"][0]
    pairs = [(adapted["mlm", seed], adapted["dga", seed]) for seed in (0, 1)]
    pairs += [(base, adapted["mlm", seed]) for seed in (0, 1)]
    assert sorted(call["model"] for call in layers) == sorted(str([*pair]) for pair in pairs)
    assert MergeSpec.model_validate({"of": "mlm", "method": "layers"}).label == "base model + mlm, layers"
    scores = {row.method for row in results.losses}
    assert scores == {"mlm", "dga", "mlm, greedy-soup", "mlm + dga, layers", "kept"}


@each("rank", ["performance", "similarity"])
def test_each_domain_gets_the_models_of_other_domains_that_fit_it(folder, tmp_path, rank, no_report):
    texts = {name: [f"{name} text {number}" for number in range(9)] for name in "abc"}
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("\n".join(lines))
    domains = [
        {"name": name, "corpus": str(folder / f"{name}.txt"), "heldout": str(folder / "cs.txt")} for name in "abc"
    ]
    target = {"of": "mlm", "method": "ties", "target": True, "top": 1, "rank": rank}
    config = study(folder, methods=["none", "mlm"], merges=[target], seeds=2, adapt_seeds=2, domains=domains)
    world = World()
    results = compare(config, tmp_path / "out", progress=False, backend=world.backend())
    adapted = {(row.domain, row.seed): str(tmp_path / "out" / row.folder) for row in results.adaptations}
    merges = [call for call in world.arguments if call["kind"] == "merge"]
    assert len(merges) == 6 and world.calls["adapt"] == 6
    for call in merges:
        (own,) = {name for name, lines in texts.items() if list(call["target"]) == lines}
        others = [name for name in "abc" if name != own]
        assert call["model"] in [str([adapted[name, seed] for name in others]) for seed in (0, 1)]
        assert (call["top"], call["rank"]) == (1, rank)
        corpora = call["corpora"] and [list(one) for one in call["corpora"]]
        assert corpora == ([texts[name] for name in others] if rank == "similarity" else None)
    rows = [row for row in results.losses if row.method == "mlm of other domains, ties"]
    assert [row.domain for row in rows if row.text == "domain"] == ["a", "b", "c"]


def test_a_slope_is_in_the_label_and_the_identity(folder):
    merges = [{"of": "mlm", "method": f"lines alpha=0.2{slope}"} for slope in ("", " slope=0.1", " slope=0")]
    graph = graph_of(study(folder, methods=["none", "mlm"], merges=merges, seeds=1))
    assert len({job.key for job in graph.jobs.values() if job.name == "merge"}) == 3
    labels = [MergeSpec.model_validate(merge).label for merge in merges]
    assert labels == [f"mlm, scaled with depth by 0.2 to {end}" for end in (1, 0.3, 0.2)]


def test_identity_of_merges(folder):
    def keys(**changes) -> set[str]:
        graph = graph_of(study(folder, methods=["none", "mlm"], merges=[{**HALF, **changes}], seeds=1))
        return {job.key for job in graph.jobs.values() if job.name == "merge"}

    assert keys() == keys(label="another") != keys(method="interpolation alpha=0.25")
    plain = graph_of(study(folder, methods=["none", "mlm"], seeds=1))
    merged = graph_of(study(folder, methods=["none", "mlm"], merges=[HALF], seeds=1))
    assert plain.jobs.keys() < merged.jobs.keys()


@each(
    ("entry", "message"),
    [
        ({"of": "mln"}, "Did you mean 'mlm'"),
        ({"of": "none"}, "method under 'of'"),
        ({"method": "interpolation"}, "interpolation needs 'alpha'"),
        ({"method": "interpolation alpha=2"}, "merges.*alpha"),
        ({"alpha": 1}, "unknown key 'merges.*alpha'"),
        ({"method": "interpolation weight=1"}, "nknown parameter of .* 'interpolation' 'weight'"),
        ({"method": "chat-vector"}, "'chat-vector' needs the parameter 'instruct'"),
        ({"method": "chat-vector instruct=./nowhere"}, "nowhere"),
        ({"method": "greedy-soup"}, "soup of the models of all seeds, and there is one"),
        ({"of": ["mlm", "dga"], "method": "greedy-soup"}, "give more 'heldout' text than 'evaluate.documents'"),
        ({"method": "memory memory=./m"}, "merges.*memory is not for studies"),
        ({"of": ["mlm", "dga", "mlm"], "method": "layers"}, "layers needs two models"),
        ({"method": "ties", "target": True}, "selects 2 of 0 models of other domains; give more 'domains'"),
        ({"method": "ties weights=1", "target": True}, "'target' selects the models, which have equal weights"),
        ({"method": "layers", "target": True}, "'target' does not apply to layers"),
        ({"method": "fisher", "target": True}, "'target' does not apply to fisher"),
        ({"method": "ties", "top": 3}, "only read with 'target: true'"),
        ({"method": "sup"}, "Did you mean 'soup'"),
        ({"method": "soup"}, "soup of the models of all seeds, and there is one"),
        ({"of": ["mlm", "dga"]}, "interpolation merges the models of one method, not of 2"),
        ({"of": ["mlm"], "method": "ties weights=1,2"}, "There are 2 weights for 1 models"),
        ({"method": "soup weights=1"}, "a soup of all seeds has equal weights"),
        ({"method": "fisher"}, "give 'general'"),
        ({"of": ["mlm", "dgs"], "method": "ties"}, "Did you mean 'dga'"),
        ({"label": "mlm"}, "is duplicated"),
    ],
)
def test_mistakes_in_merges(folder, tmp_path, entry, message):
    merge = {key: value for key, value in {**HALF, **entry}.items() if value is not None}
    config = study(folder, methods=["none", "mlm", "dga"], merges=[merge], adapt_seeds=1)
    del config["general"]
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
        "merges: [{of: mlm, method: chat-vector instruct=./chat weight=0.5}]\n"
    )
    (spec,) = StudyConfig.load(folder / "s.yaml").sections["merges"]
    assert spec.merge.instruct == str(folder / "chat") and spec.label == "mlm + 0.5 chat vector"


@pytest.mark.slow
def test_a_real_study_with_an_interpolation(tiny_bert, folder, tmp_path, no_report):
    general = folder / "general.txt"
    general.write_text("\n".join(TEXTS[:4]))
    config = {
        "models": [str(tiny_bert)], "methods": ["mlm"], "general": str(general), "adapt_seeds": 1, "seeds": 1,
        "evaluate": {"max_length": 24},
        "domains": [{"name": "d", "corpus": str(folder / "cs.txt")}],
        "adapt": {"steps": 8, "batch_size": 4, "max_length": 24, "precision": "fp32"},
        "merges": [
            {"of": "mlm", "method": {"interpolation": share}, "label": label}
            for share, label in enumerate(("base", "adapted"))
        ],
    }  # fmt: skip
    results = compare(config, tmp_path / "out", progress=False)
    losses = {(row.method, row.text): row for row in results.losses}
    for text in {row.text for row in results.losses}:
        adapted = losses["adapted", text]
        assert adapted.nats == pytest.approx(losses["mlm", text].nats, abs=1e-6)
        assert losses["base", text].nats == pytest.approx(adapted.before, abs=1e-6)
        assert adapted.nats != pytest.approx(adapted.before, abs=1e-4)


@pytest.mark.slow
def test_a_real_study_selects_soups_and_experts_and_merges_layers(tiny_bert, folder, tmp_path, no_report):
    for place, name in enumerate("abc"):
        lines = [f"{text} {name}{number}" for number in range(12) for text in TEXTS[place::3]]
        (folder / f"{name}.txt").write_text("\n".join(lines[:-8]))
        (folder / f"{name}-held.txt").write_text("\n".join(lines[-8:]))
    config = {
        "models": [str(tiny_bert)], "methods": ["none", "mlm"], "adapt_seeds": 2, "seeds": 2,
        "evaluate": {"max_length": 24, "documents": 4},
        "domains": [
            {"name": name, "corpus": str(folder / f"{name}.txt"), "heldout": str(folder / f"{name}-held.txt")}
            for name in "abc"
        ],
        "adapt": {"steps": 2, "batch_size": 4, "max_length": 24, "precision": "fp32"},
        "merges": [
            {"of": "mlm", "method": "greedy-soup"},
            {"of": "mlm", "method": "layers layers=1"},
            {"of": "mlm", "method": "soup", "target": True, "top": 1, "label": "expert"},
            {"of": "mlm", "method": "soup", "target": True, "rank": "similarity", "label": "experts"},
        ],
    }  # fmt: skip
    results = compare(config, tmp_path / "out", progress=False)
    rows = {(row.method, row.domain) for row in results.losses}
    labels = ("mlm", "mlm, greedy-soup", "base model + mlm, layers", "expert", "experts")
    assert rows == {(label, domain) for label in labels for domain in "abc"}
    assert not [row for row in results.losses if row.method == "mlm" and row.difference is None]
