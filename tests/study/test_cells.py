"""Keys change when anything that decides a result changes, and only then; what is stored comes back."""

from __future__ import annotations

import dataclasses

import pytest

from acclimate.corpus.documents import subsample_documents
from acclimate.errors import UserError
from acclimate.study import Parts, StudyConfig
from acclimate.study.cells import Cell, CellStore
from acclimate.study.identity import digest, model_fingerprint, texts_identity
from acclimate.study.plan import make_plan
from tests.cases import each
from tests.study.fakes import World, files, study


def keys(folder, **changes) -> dict[str, set[str]]:
    plan = make_plan(StudyConfig.of(study(folder, **changes)), World().parts())
    found: dict[str, set[str]] = {"adapt": set(), "loss": set(), "finetune": set()}
    for cell in plan.cells.values():
        found[cell.kind].add(cell.key)
    return found


@pytest.fixture
def folder(tmp_path):
    return files(tmp_path / "data")


def test_counts_of_cells(folder):
    found = keys(folder)
    assert {kind: len(some) for kind, some in found.items()} == {"adapt": 2, "loss": 6, "finetune": 9}


@each(
    "changes",
    [
        {"name": "other", "title": "Other", "notes": ["x"], "samples": [{"text": "a"}]},
        {"methods": ["none", "mlm", {"name": "dga", "label": "renamed", "contrast_weight": 0.0, "temperature": 0.05}]},
        {"adapt": {"tokens": 200_000, "batch_size": 64, "save_every": 10}},
        {"finetune": {"epochs": 3, "learning_rate": 3e-5}},
        {"seeds": [2, 0, 1]},
        {"baseline": "mlm"},
        {"adapt_seeds": [0]},
    ],
)
def test_what_decides_nothing_changes_no_key(folder, changes):
    assert keys(folder, **changes) == keys(folder)


@each(
    ("changes", "kinds"),
    [
        ({"adapt": {"tokens": 300_000}}, {"adapt", "loss", "finetune"}),
        ({"adapt": {"tokens": 200_000, "learning_rate": 2e-4}}, {"adapt", "loss", "finetune"}),
        ({"adapt": {"tokens": 200_000, "seed": 1}}, {"adapt", "loss", "finetune"}),
        ({"finetune": {"epochs": 4}}, {"finetune"}),
        ({"finetune": {"epochs": 3, "select": "dev"}}, {"finetune"}),
        ({"evaluate": {"documents": 20, "max_length": 64}}, {"loss"}),
        ({"evaluate": {"documents": 19}}, {"loss"}),
    ],
)
def test_what_decides_changes_just_the_keys_it_decides(folder, changes, kinds):
    before, after = keys(folder), keys(folder, **changes)
    assert {kind for kind in before if before[kind] != after[kind]} == kinds


def test_parameters_of_a_method_change_its_cells_alone(folder):
    before = keys(folder)
    after = keys(folder, methods=["none", "mlm", {"name": "dga", "label": "dga, no contrast", "contrast_weight": 0.5}])
    assert len(before["adapt"] & after["adapt"]) == 1  # mlm
    assert len(before["finetune"] & after["finetune"]) == 6  # none and mlm


def test_other_text_weights_or_task_change_keys(folder):
    before = keys(folder)
    (folder / "intent").write_text("other labels")
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
    plan = make_plan(StudyConfig.of(study(folder)), World().parts())
    measured = set(plan.texts["domain cs"].texts)
    assert measured and not measured & set(plan.corpora["cs"])


def test_several_adaptation_seeds_go_round(folder):
    plan = make_plan(StudyConfig.of(study(folder, adapt_seeds=[7, 8], seeds=5, methods=["mlm"])), World().parts())
    used = [cell.labels["adapt_seed"] for cell in plan.entries if cell.kind == "finetune"]
    assert used == [7, 8, 7, 8, 7]
    assert [cell.labels["adapt_seed"] for cell in plan.entries if cell.kind == "adapt"] == [7, 8]


def test_a_budget_of_its_own_takes_the_place_of_the_shared_one(folder):
    methods = ["mlm", {"name": "dga", "label": "short", "adapt": {"steps": 5}}]
    plan = make_plan(StudyConfig.of(study(folder, methods=methods)), World().parts())
    options = [plan.adapt[cell.key] for cell in plan.entries if cell.kind == "adapt"]
    assert [(entry.get("tokens"), entry.get("steps")) for entry in options] == [(200_000, None), (None, 5)]


def test_store_gives_back_what_it_was_given_and_only_that(tmp_path):
    store, cell = CellStore(tmp_path), Cell("loss", {"model": "a"}, {"method": "mlm"})
    assert store.result(cell) is None
    store.fail(cell, "no luck", 0.1)
    assert store.result(cell) is None
    store.finish(cell, {"nats": 2.5}, 0.1)
    assert store.result(cell) == {"nats": 2.5}
    assert store.result(Cell("loss", {"model": "b"})) is None
    (tmp_path / "cells" / f"{cell.key}.json").write_text("{half")
    assert store.result(cell) is None


def test_digest_sees_values_not_their_order_or_type_of_number():
    assert digest({"a": 1, "b": {2, 1}}) == digest({"b": frozenset([1, 2]), "a": 1.0})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest({"a": True}) != digest({"a": 1})
    assert digest({"a": None}) != digest({"a": "None"})


def test_choice_of_texts_does_not_depend_on_their_order():
    texts = [f"text {i}" for i in range(100)]
    assert subsample_documents(texts, 10) == subsample_documents(reversed(texts), 10)
    assert len(subsample_documents(texts[:3], 10)) == 3
    assert texts_identity(["ab", "c"]) != texts_identity(["a", "bc"])


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="There is no model folder"):
        model_fingerprint(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"no config\.json"):
        model_fingerprint(str(tmp_path))
    assert model_fingerprint("roberta-base") == "roberta-base"


def test_keys_of_stored_studies_stay_as_they_are(folder):
    """The keys were stored by version 0.1: a keyword of ``finetune`` that came later must not change them."""
    parts = dataclasses.replace(World().parts(), finetune_defaults=Parts().finetune_defaults)

    def made(**changes):
        plan = make_plan(StudyConfig.of(study(folder, methods=["none"], seeds=2, general=None, **changes)), parts)
        return [cell.key for cell in plan.entries if cell.kind == "finetune"]

    assert made() == ["0a5f23275af8720c", "6b528c8fd52fc17c"]
    assert made(finetune={"select": "dev"}) == ["f120818b4aaad790", "0821aad575b0ada7"]
    task = {"path": str(folder / "intent"), "negative": "b"}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    assert made(domains=domains)[0] not in made()
