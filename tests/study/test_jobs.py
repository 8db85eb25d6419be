"""Identity of jobs: a key changes if and only if something that determines the result changes; stored results."""

from __future__ import annotations

import pytest

from acclimate.base.errors import UserError
from acclimate.base.records import Record, fingerprint, texts_fingerprint
from acclimate.data.documents import subsample_documents
from acclimate.models.checkpoints import model_fingerprint
from acclimate.study.executor import JobStore
from acclimate.study.job import FORMAT, Job, Place
from tests.cases import each
from tests.study.fakes import graph_of, of_kind, read, study, write_task

KINDS = ("adapt", "lm_loss", "finetune")


def keys(folder, **changes) -> dict[str, set[str]]:
    graph = graph_of(study(folder, **changes))
    return {kind: {job.key for job in of_kind(graph, kind)} for kind in KINDS}


def test_number_of_jobs(folder):
    assert [len(some) for some in keys(folder).values()] == [2, 6, 9]


@pytest.mark.needs("dga")
@each(
    "changes",
    [
        {"name": "other", "title": "Other", "notes": ["x"], "samples": [{"text": "a"}]},
        {"methods": ["none", "mlm", {"name": "dga", "label": "renamed", "contrast_weight": 0.0, "temperature": 0.05}]},
        {"adapt": {"tokens": 200_000, "batch_size": 64, "save_every": 10}},
        {"finetune": {"epochs": 3, "learning_rate": 1e-4}},
        {"seeds": [2, 0, 1]},
        {"baseline": "mlm"},
        {"adapt_seeds": 1},
    ],
)
def test_what_cannot_change_a_result_changes_no_key(folder, changes):
    assert keys(folder, **changes) == keys(folder)


@each(
    ("changes", "kinds"),
    [
        ({"adapt": {"tokens": 300_000}}, {"adapt", "lm_loss", "finetune"}),
        ({"adapt": {"tokens": 200_000, "learning_rate": 2e-4}}, {"adapt", "lm_loss", "finetune"}),
        ({"adapt_seeds": [1]}, {"adapt", "lm_loss", "finetune"}),
        ({"finetune": {"epochs": 4}}, {"finetune"}),
        ({"finetune": {"epochs": 3, "select": "dev"}}, {"finetune"}),
        ({"evaluate": {"documents": 20, "max_length": 64}}, {"lm_loss"}),
        ({"evaluate": {"documents": 19}}, {"lm_loss"}),
    ],
)
def test_settings_change_the_keys_of_the_jobs_that_they_belong_to(folder, changes, kinds):
    before, after = keys(folder), keys(folder, **changes)
    assert {kind for kind in before if before[kind] != after[kind]} == kinds


@pytest.mark.needs("dga")
def test_parameters_of_a_method_change_its_jobs_alone(folder):
    before = keys(folder)
    after = keys(folder, methods=["none", "mlm", {"name": "dga", "label": "dga, no contrast", "contrast_weight": 0.5}])
    assert len(before["adapt"] & after["adapt"]) == 1  # mlm
    assert len(before["finetune"] & after["finetune"]) == 6  # none and mlm


def test_defaults_are_part_of_the_identity(folder, monkeypatch):
    """If a later version changes a default, the key must change too."""
    job = of_kind(graph_of(study(folder)), "finetune")[0]
    assert job.identity["settings"]["weight_decay"] == 0.01 and "weight_decay" not in job.options
    before = keys(folder)
    from acclimate.study import inputs

    plain = inputs.read_options
    changed = {**plain(), "finetune": {**plain()["finetune"], "weight_decay": 0.02}}
    monkeypatch.setattr(inputs, "read_options", lambda: changed)
    after = keys(folder)
    assert before["adapt"] == after["adapt"] and not before["finetune"] & after["finetune"]


def test_other_text_weights_or_task_change_keys(folder):
    before = keys(folder)
    write_task(folder / "intent", "other labels")
    task = keys(folder)
    assert task["adapt"] == before["adapt"] and not task["finetune"] & before["finetune"]
    (folder / "model" / "model.safetensors").write_bytes(b"weightS")
    weights = keys(folder)
    assert all(not weights[kind] & task[kind] for kind in weights)
    with (folder / "cs.txt").open("a") as file:
        file.write("one more document\n")
    text = keys(folder)
    assert not text["adapt"] & weights["adapt"]


def test_a_folder_that_was_moved_is_the_same(folder, tmp_path):
    before = keys(folder)
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert keys(moved)["finetune"] == before["finetune"]


def test_held_out_documents_are_not_trained_on(folder):
    inputs = read(study(folder))
    measured = set(inputs.heldout["cs"].texts)
    assert measured and not measured & set(inputs.corpora["cs"])


def test_seeds_of_fine_tuning_take_turns_with_several_adaptations(folder):
    graph = graph_of(study(folder, adapt_seeds=[7, 8], seeds=5, methods=["mlm"]))
    used = {job.place.seed: job.place.adapt_seed for job in of_kind(graph, "finetune")}
    assert used == {0: 7, 1: 8, 2: 7, 3: 8, 4: 7}
    assert [job.place.adapt_seed for job in of_kind(graph, "adapt")] == [7, 8]


@each(("seeds", "expected"), [(1, [4]), (2, [4, 5]), (3, [4, 5, 6]), (9, [4, 5, 6])])
def test_by_default_there_are_as_many_adaptations_as_seeds_up_to_three(folder, seeds, expected):
    values = study(folder, adapt_seeds=None, seeds=seeds, methods=["mlm"], adapt={"seed": 4})
    assert [job.options["seed"] for job in of_kind(graph_of(values), "adapt")] == expected


@pytest.mark.needs("dga")
def test_the_budget_of_a_method_replaces_that_of_the_study(folder):
    methods = ["mlm", {"name": "dga", "label": "short", "adapt": {"steps": 5}}]
    options = [job.options for job in of_kind(graph_of(study(folder, methods=methods)), "adapt")]
    assert [(entry.get("tokens"), entry.get("steps")) for entry in options] == [(200_000, None), (None, 5)]


class Nats(Record):
    nats: float


class Measurement(Job):
    """A job that belongs to no study."""

    model: str
    note: str = ""

    name = "measurement"
    result_type = Nats

    def run(self, context):
        return Nats(nats=2.5)


def test_the_store_returns_what_was_stored_and_only_that(tmp_path):
    store, job = JobStore(tmp_path), Measurement(place=Place(method="mlm"), model="a")
    assert store.result(job) is None
    store.fail(job, "out of memory", 0.1)
    assert store.result(job) is None and store.outcome(job).error == "out of memory"
    store.finish(job, Nats(nats=2.5), 0.1)
    assert store.result(job) == {"nats": 2.5} and store.result(job.at(method="dga")) is not None
    assert store.result(Measurement(place=Place(), model="b")) is None
    assert store.result(Measurement(place=Place(), model="a", note="x")) is None
    path = tmp_path / "jobs" / f"{job.key}.json"
    stored = path.read_text()
    for text in ("{half", stored.replace('"nats"', '"nuts"'), stored.replace(f'"format": {FORMAT}', '"format": 1')):
        path.write_text(text)
        assert store.result(job) is None


def test_fingerprints_see_values_not_their_order_or_type_of_number():
    assert fingerprint({"a": 1, "b": {2, 1}}) == fingerprint({"b": frozenset([1, 2]), "a": 1.0})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"a": True}) != fingerprint({"a": 1})
    assert fingerprint({"a": None}) != fingerprint({"a": "None"})


def test_the_sample_of_texts_does_not_depend_on_their_order():
    texts = [f"text {i}" for i in range(100)]
    assert subsample_documents(texts, 10) == subsample_documents(reversed(texts), 10)
    assert len(subsample_documents(texts[:3], 10)) == 3
    assert texts_fingerprint(["ab", "c"]) != texts_fingerprint(["a", "bc"])


def test_a_model_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match="There is no model folder"):
        model_fingerprint(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"no config\.json"):
        model_fingerprint(str(tmp_path))
    assert model_fingerprint("roberta-base") == "roberta-base"
