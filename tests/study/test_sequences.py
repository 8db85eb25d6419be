"""Sequences in studies: chained adaptations, what is measured of them, and what an added domain costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from acclimate.adaptation.carried import Carried
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.labs.sequence.options import SequenceOptions
from acclimate.labs.sequence.planned import domain_orders, similar_order
from acclimate.labs.sequence.run import read_orders, sequence
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.study.fakes import World, files, graph_of, of_kind, read, study
from tests.test_cli import call
from tests.tiny import TEXTS, save_tiny

WORDS = ("cs", "food", "heldout")


class Learner(World):
    """A fake backend whose losses and scores are known functions of the domains that a model has learned."""

    def adapt(self, model, corpus, method="mlm", out=None, **options):
        made = super().adapt(model, corpus, method, out, **options)
        past = json.loads((Path(model) / "config.json").read_text()).get("learned", [])
        domain = " ".join(sorted({text.split()[0] for text in corpus}))
        learned = [*past, domain]
        (Path(out) / "config.json").write_text(json.dumps({"method": method, "learned": learned}))
        return made

    def lm_loss(self, model, texts, *, max_length):
        self._called("lm_loss", model=model)
        nats = planted(learned_by(model), texts[0].split()[0])
        return {"nats": nats, "masked": 2, "texts": 2, "per_text": [nats, nats], "per_text_masked": [1, 1]}


def learned_by(model) -> list[str]:
    return json.loads((Path(model) / "config.json").read_text()).get("learned", [])


def planted(learned: list[str], domain: str) -> float:
    """The loss on a domain: 3 at first, a nat less once learned, and 0.1 more for each later domain."""
    if domain not in " ".join(learned):
        return 3.0 + 0.01 * len(learned)
    after = next(len(learned) - 1 - place for place, one in enumerate(learned) if domain in one)
    return 2.0 + 0.1 * after


def sequences(folder, *, domains=2, tasks=False, **changes) -> dict:
    made = [
        {"name": name, "corpus": str(folder / f"{name}.txt")} | ({"tasks": [str(folder / "intent")]} if tasks else {})
        for name in WORDS[:domains]
    ]
    return study(
        folder, **{"domains": made, "methods": ["none", "mlm", "dga"], "sequence": True, "seeds": 1, **changes}
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return files(tmp_path_factory.mktemp("sequences") / "data")


def run(config, out, world=None):
    world = world or Learner()
    return compare(config, out, progress=False, backend=world.backend()), world


@pytest.mark.needs("dga")
def test_stages_are_chained_and_shared_between_orders_and_with_separate_models(shared):
    orders = [["cs", "food", "heldout"], ["cs", "heldout", "food"], ["food", "cs", "heldout"]]
    graph = graph_of(sequences(shared, domains=3, sequence={"orders": orders}, adapt_seeds=2))
    # per method and seed: three first stages, which are the separate models, four of two and six of three domains
    prefixes = {tuple(order[:count]) for order in orders for count in (1, 2, 3)} | {("heldout",)}
    assert len(of_kind(graph, "adapt")) == 2 * 2 * len(prefixes)
    for job in of_kind(graph, "adapt", role="sequence cs > heldout > food"):
        assert [one.place.role for one in job.chain] == [
            "sequence cs > heldout > food",
            "sequence cs > heldout",
            "sequence cs",
        ]
    (first,) = of_kind(graph, "adapt", role="sequence cs", method="mlm", adapt_seed=0)
    (alone,) = of_kind(graph, "adapt", role=None, domain="cs", method="mlm", adapt_seed=0)
    assert first.key == alone.key


@pytest.mark.needs("dga")
def test_an_added_domain_leaves_all_earlier_jobs_as_they_are(shared, tmp_path, no_report):
    config = sequences(shared, domains=2, tasks=True, seeds=2, adapt_seeds=1)
    first, world = run(config, tmp_path / "out")
    check_scores(first)
    before, adapted = {path.name for path in (tmp_path / "out" / "jobs").iterdir()}, world.calls["adapt"]
    longer = sequences(shared, domains=3, tasks=True, seeds=2, adapt_seeds=1)
    results, world = run(longer, tmp_path / "out")
    assert before <= {path.name for path in (tmp_path / "out" / "jobs").iterdir()}
    assert adapted == 2 * 3  # per method: two separate models, one of which is a first stage, and a second stage
    assert world.calls["adapt"] == 2 * 2  # the separate model of the new domain, and the third stage
    assert results.rows["sequence"][0].orders[0].domains == list(WORDS)
    _, world = run(longer, tmp_path / "out")
    assert not world.calls


def check_scores(results):
    """Scores have a matrix of their own, whose first row are the usual scores of the base model."""
    row = next(row for row in results.rows["sequence"] if row.measure == "score")
    matrix = row.orders[0].matrix
    assert matrix[1][1] is None and all(matrix[stage][0] is not None for stage in (0, 1, 2))
    base = next(score for score in results.scores if score.method == "none" and score.domain == "cs")
    assert matrix[0][0] == pytest.approx(base.summaries["macro_f1"].mean)
    assert {"average", "gain", "backward", "learning"} <= {*row.measures} and "forward" not in row.measures
    assert all(score.domain and score.method in ("none", "mlm", "dga") for score in results.scores)


@pytest.mark.needs("dga")
def test_measures_are_those_of_the_planted_losses(shared, tmp_path, no_report):
    orders = [["cs", "food", "heldout"], ["heldout", "food", "cs"]]
    spec = {"orders": orders, "methods": ["mlm", "dga"], "separate": ["mlm"], "joint": ["mlm"]}
    config = sequences(shared, domains=3, sequence=spec, adapt_seeds=2, seeds=2)
    results, world = run(config, tmp_path / "out")
    rows = {row.method: row for row in results.rows["sequence"]}
    assert list(rows) == ["mlm", "dga", "mlm, one model per domain", "mlm, all domains at once"]
    expected = [[3, 3, 3], [2, 3.01, 3.01], [2.1, 2, 3.02], [2.2, 2.1, 2]]
    for order in rows["mlm"].orders:
        assert np.allclose(order.matrix, expected)
        assert order.general == pytest.approx([3, 3.01, 3.02, 3.03]) and len(order.folders) == 2
        assert order.seconds == pytest.approx(3 * 62.5)
        assert all(learned_by(tmp_path / "out" / folder) == order.domains for folder in order.folders)
    measures = {name: spread.mean for name, spread in rows["mlm"].measures.items()}
    assert measures == pytest.approx(
        {"average": 2.1, "gain": 0.9, "forgetting": 0.15, "backward": -0.15, "forward": -0.015, "learning": 0.0}
    )
    assert rows["mlm"].measures["average"].seeds == pytest.approx([2.1, 2.1])
    assert rows["dga"].differences["average"].mean == pytest.approx(0) and rows["dga"].reference == "mlm"
    assert rows["mlm, one model per domain"].measures["average"].mean == pytest.approx(2.0)
    assert rows["mlm, all domains at once"].measures["gain"].mean == pytest.approx(1.0)
    joint = [call for call in world.arguments if call["kind"] == "adapt" and call["tokens"] == 600_000]
    assert len(joint) == 2 and {text.split()[0] for text in joint[0]["documents"]} == {*WORDS}
    assert {row.method for row in results.losses} == {"mlm"}  # only separate models are rows of the usual tables
    assert not [row for row in results.adaptations if row.method == "dga"]
    again = type(results).from_dict(json.loads(json.dumps(results.to_dict())))
    assert again.rows["sequence"] == results.rows["sequence"]


@pytest.mark.needs("dga")
@each(
    ("scores", "places"),
    [
        ("seen", {(1, "cs"), (2, "cs"), (2, "food"), (3, "cs"), (3, "food"), (3, "heldout")}),
        ("ends", {(1, "cs"), (2, "food"), (3, "cs"), (3, "food"), (3, "heldout")}),
        ("all", {(stage, name) for stage in (1, 2, 3) for name in WORDS}),
        ("none", set()),
    ],
)
def test_stages_at_which_tasks_are_scored(shared, scores, places):
    graph = graph_of(sequences(shared, domains=3, tasks=True, sequence={"scores": scores, "methods": "mlm"}))
    found = [job.place for job in of_kind(graph, "finetune", method="mlm") if job.place.role]
    assert {(place.role.count(">") + 1, place.domain) for place in found} == places


@pytest.mark.needs("dga")
def test_a_killed_sequence_resumes(shared, tmp_path, no_report):
    config, world = sequences(shared, domains=3, sequence={"methods": "mlm", "separate": []}), Learner()
    world.die_after = 6
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "out", world)
    started = world.calls["adapt"]
    results, rest = run(config, tmp_path / "out")
    assert started + rest.calls["adapt"] == 3 + 1 + 2  # three stages; dga has a model per domain
    assert results.rows["sequence"][0].measures["forgetting"].mean == pytest.approx(0.15)


@pytest.mark.needs("dga")
def test_orders_by_similarity_and_at_random(shared):
    texts = {
        "law": ["court law judge"] * 3,
        "food": ["soup bread"] * 2,
        "crime": ["judge court crime"],
        "cook": ["soup"],
    }
    assert similar_order(texts) == ("law", "crime", "food", "cook")
    drawn = [
        domain_orders(read(sequences(shared, domains=3, sequence={"orders": 4, "seed": seed}))) for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2] and len({*drawn[0]}) == 4
    assert domain_orders(read(sequences(shared, domains=3, sequence={"orders": "similarity"})))[0][0] == "cs"


@pytest.mark.needs("dga")
@each(
    ("changes", "words"),
    [
        ({"sequence": {"methods": ["mln"]}}, "did you mean 'mlm'"),
        ({"sequence": {"separate": ["none"]}}, "method under 'sequence': 'none'"),
        ({"sequence": {"orders": [["cs", "foo"]]}}, "did you mean 'food'"),
        ({"sequence": {"orders": [["cs", "food"], ["cs"]]}}, "name the same domains, and each once"),
        ({"sequence": {"orders": 3}}, "3 different orders are asked for, and the domains have 2"),
        ({"sequence": [{}, {}]}, "is a single section"),
        ({"sequence": {"order": "given"}}, "unknown key 'sequence"),
        ({"methods": ["none", {"name": "mlm", "on": "task"}], "tasks": True}, "adapts to each task separately"),
        (
            {"tasks": True, "methods": ["none", {"name": "mlm", "search": {"adapt": {"mask_rate": [0.1, 0.2]}}}]},
            "are searched for each domain",
        ),
    ],
)
def test_invalid_sections(shared, changes, words):
    with pytest.raises(UserError) as error:
        graph_of(sequences(shared, **changes))
    assert words.lower() in str(error.value).lower() and "\n" not in str(error.value).strip()


@pytest.mark.needs("dga")
def test_the_verb_writes_its_study_and_an_added_domain_extends_it(shared, tmp_path, no_report):
    given = {"methods": "mlm,dga", "separate": True, "progress": False, "tokens": 1000}
    general = [f"general text {number}" for number in range(300)]
    domains = {"cs": shared / "cs.txt", "food": [f"food document {number} of a few" for number in range(300)]}
    world = Learner()
    results = sequence(
        shared / "model", domains, tmp_path / "out", general=shared / "general.txt", backend=world.backend(), **given
    )
    assert world.calls["adapt"] == 2 + 2 + 1 and (tmp_path / "out" / "data" / "1.jsonl").is_file()
    written = StudyConfig.load(tmp_path / "out" / "study.yaml")
    assert written.sections["sequence"][0].separate == ["mlm"] and written.adapt.given()["tokens"] == 1000
    assert [row.method for row in results.rows["sequence"]] == ["mlm", "dga", "mlm, one model per domain"]
    assert "domains in sequence, dga: mean loss 2.050" in repr(results)
    more, rest = {**domains, "general": general}, Learner()
    changed = sequence(
        shared / "model", more, tmp_path / "out", general=shared / "general.txt", backend=rest.backend(), **given
    )
    assert rest.calls["adapt"] == 3 and changed.rows["sequence"][0].orders[0].domains == ["cs", "food", "general"]
    with pytest.raises(UserError, match="describes another study"):
        sequence(shared / "model", more, tmp_path / "out", backend=rest.backend(), **{**given, "tokens": 2000})


@each(
    ("given", "orders"),
    [
        ("given", "given"),
        ("similarity", "similarity"),
        (2, 2),
        ("3", 3),
        (["cs,food", "food, cs"], [["cs", "food"], ["food", "cs"]]),
        ([["cs", "food"]], [["cs", "food"]]),
    ],
)
def test_orders_as_options(given, orders):
    assert read_orders(build(SequenceOptions, "model", {"cs": "cs.txt"}, "out", orders=given).orders) == orders


@each(
    ("changes", "words"),
    [
        ({"tasks": {"law": "task"}}, "There is no domain 'law'"),
        ({"methods": "none"}, "at least one method that adapts"),
        ({"methods": "mlmm"}, "did you mean 'mlm'"),
        ({"orders": ["cs,foot"]}, "did you mean 'food'"),
        ({"settings": {"sequence.score": "all"}}, "score"),
    ],
)
def test_the_verb_refuses(shared, tmp_path, changes, words):
    domains = {"cs": shared / "cs.txt", "food": shared / "food.txt"}
    with pytest.raises(UserError) as error:
        sequence(shared / "model", domains, tmp_path / "out", progress=False, backend=Learner().backend(), **changes)
    assert words.lower() in str(error.value).lower()


@pytest.mark.slow
def test_a_real_model_from_the_command_line(tmp_path, no_report, monkeypatch, capsys):
    monkeypatch.setattr("acclimate.study.pricing.PILOT_SECONDS", 0.05)
    for name in ("cs", "food"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text} {name} {n}\n" for text in TEXTS for n in range(30)))
    model = save_tiny("bert", tmp_path / "model")
    words = ["sequence", "--model", model, "--out", tmp_path / "out", "--set", "adapt.replay=memory:8", "--quiet"]
    words += [
        "--set",
        "adapt.steps=1",
        "--set",
        "adapt.max_length=16",
        "--set",
        "evaluate.documents=4",
        "--set",
        "evaluate.max_length=16",
    ]
    domains = [word for name in ("cs", "food") for word in ("--domain", f"{name}={tmp_path / name}.txt")]
    code, output, error = call(monkeypatch, capsys, *words, *domains, "--dry-run")
    assert code == 0 and re.search(r"0 of \d+ jobs are done; the others take about", output), error
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    code, output, error = call(monkeypatch, capsys, *words, *domains)
    assert code == 0, error
    folder = Path(output.split("last domain, lm: ")[1].split("\n")[0])
    memory = Carried.read(folder).records["memory"]
    assert [len(part["texts"]) for part in memory] == [4, 4] and "Next, to train an end task:" in output
