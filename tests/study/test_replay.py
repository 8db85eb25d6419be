"""Replay in studies: which text is replayed by default, and that no measured document is."""

from __future__ import annotations

import json

import pytest

from acclimate.adaptation.replay_options import SelfReplay
from acclimate.base.errors import UserError
from acclimate.study.compare import prepare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import plan, read_study
from acclimate.study.inputs import StudyInputs
from acclimate.study.summary import replay_notes
from tests.study.fakes import World, files, of_kind, study, write_task

LINES = [f"general document number {number} of many" for number in range(80)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = files(tmp_path_factory.mktemp("study"))
    (folder / "decoder").mkdir()
    (folder / "decoder" / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "decoder" / "model.safetensors").write_bytes(b"other weights")
    (folder / "chat.jsonl").write_text('{"prompt": "q", "response": "a"}\n')
    return folder


def planned(folder, model="decoder", **changes) -> tuple[StudyInputs, list]:
    values = study(folder, models=[str(folder / model)], methods=["none", "lm"], **changes)
    inputs = read_study(StudyConfig.of(values), World().backend())
    return inputs, of_kind(plan(inputs), "adapt")


def test_a_decoder_replays_the_general_text_that_is_not_measured(folder):
    inputs, (job,) = planned(folder)
    (text, share), *others = job.options["replay"].items()
    assert share == 0.1 and not others
    assert len(inputs.general.texts) == 20
    assert sorted(text) == sorted(set(LINES) - set(inputs.general.texts))
    assert [entry["share"] for entry in job.settings["read"]] == [0.1]
    (note,) = replay_notes(inputs)
    assert "10 % of the training tokens come from general.txt" in note and "(decoder: lm)" in note


def test_an_encoder_replays_nothing_by_default(folder):
    inputs, (job,) = planned(folder, "model")
    assert "replay" not in job.options and job.settings["read"] == []
    assert replay_notes(inputs) == []


def test_shares_turn_it_on_and_off(folder):
    _, (job,) = planned(folder, "model", adapt={"tokens": 1000, "replay": 0.3})
    assert list(job.options["replay"].values()) == [0.3]
    _, (off,) = planned(folder, adapt={"tokens": 1000, "replay": 0})
    assert "replay" not in job.options.keys() - {"replay"} and "replay" not in off.options
    values = study(folder, models=[str(folder / "decoder")], methods=[{"name": "lm", "adapt": {"replay": 0.25}}])
    inputs = read_study(StudyConfig.of(values), World().backend())
    (own,) = of_kind(plan(inputs), "adapt")
    assert list(own.options["replay"].values()) == [0.25]


def test_no_measured_document_is_replayed_from_files_of_ones_choice(folder):
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "heldout": str(folder / "heldout.txt")}]
    sources = {str(folder / "general.txt"): 0.1, str(folder / "heldout.txt"): 0.2}
    sources[f"chat:{folder / 'chat.jsonl'}"] = 0.05
    adapt = {"tokens": 1000, "replay": sources}
    inputs, (job,) = planned(folder, domains=domains, adapt=adapt)
    measured = {*inputs.general.texts, *inputs.heldout["cs"].texts}
    assert list(job.options["replay"].values()) == [0.1, 0.2, 0.05]
    for text, whole in zip(job.options["replay"], (80, 60), strict=False):
        assert not measured & set(text)
        assert len(list(text)) == whole - 20


def test_the_identity_of_a_job_covers_what_it_replays(folder):
    keys = set()
    other = folder / "other.txt"
    other.write_text("some other general text\n")
    for adapt in ({}, {"replay": 0.2}, {"replay": 0}, {"replay": str(other)}):
        _, (job,) = planned(folder, adapt={"tokens": 1000, **adapt})
        keys.add(job.key)
    assert len(keys) == 4
    copy = folder / "copy.txt"
    copy.write_bytes(other.read_bytes())
    _, (job,) = planned(folder, adapt={"tokens": 1000, "replay": str(copy)})
    assert job.key in keys


def test_a_study_that_measures_all_of_its_general_text_says_so(folder, caplog):
    evaluate = {"documents": 100}
    _, (job,) = planned(folder, evaluate=evaluate)
    assert "replay" not in job.options
    assert "every document of the general text is measured on, so none is replayed to decoder" in caplog.text
    other = folder / "other.txt"
    other.write_text("some other general text\n")
    for replay, warns in (({str(other): 0.1}, False), ({f"chat:{folder / 'chat.jsonl'}": 0.1}, True)):
        caplog.clear()
        planned(folder, evaluate=evaluate, adapt={"tokens": 1000, "replay": replay})
        assert ("none is replayed to decoder" in caplog.text) == warns
    with pytest.raises(UserError, match=r"the share of 'adapt.replay' needs text that is not measured on"):
        planned(folder, evaluate=evaluate, adapt={"tokens": 1000, "replay": 0.1})


def test_replayed_documents_with_test_texts_are_found_and_removed(folder, tmp_path):
    task = write_task(tmp_path / "task", "task")
    leaky = tmp_path / "leaky.txt"
    text = "the quick brown fox of the test split jumps over every lazy dog of the whole wide corpus"
    row = json.dumps({"text": text, "label": "a"})
    (task / "test.jsonl").write_text(row + "\n" + (task / "test.jsonl").read_text())
    leaky.write_text(f"{text}\nanother document\n")
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(task)]}]
    for leakage, left in (("report", 2), ("remove", 1)):
        adapt = {"tokens": 1000, "replay": str(leaky)}
        values = study(folder, models=[str(folder / "decoder")], domains=domains, adapt=adapt, leakage=leakage)
        inputs, found = prepare(read_study(StudyConfig.of(values), World().backend()), progress=False)
        assert [row.flagged for row in found.corpora if row.domain == "leaky.txt (replayed)"] == [1]
        job = of_kind(plan(inputs), "adapt")[0]
        (replayed,) = job.options["replay"]
        assert len(list(replayed)) == left


def test_sources_are_relative_to_the_study_file(folder, tmp_path):
    values = {
        "models": ["m"],
        "methods": ["none", {"name": "lm", "adapt": {"replay": "other.txt=0.2"}}],
        "domains": [{"name": "d", "corpus": "text"}],
        "adapt": {"replay": ["a.txt", "hf:org/data", "chat:b.jsonl", "memory:5"]},
    }
    config = StudyConfig.of(values).relative_to(tmp_path)
    assert config.adapt.replay == [str(tmp_path / "a.txt"), "hf:org/data", f"chat:{tmp_path / 'b.jsonl'}", "memory:5"]
    assert config.methods[1].adapt["replay"] == {str(tmp_path / "other.txt"): 0.2}
    json.dumps(config.resolved())


def test_pulls_to_the_base_model_count_where_they_are_given_and_read_no_measured_document(folder):
    inputs, (plain,) = planned(folder)
    _, (off,) = planned(folder, adapt={"tokens": 1000, "rules": []})
    more = ([], "ewc strength=10")
    methods = ["none", "lm", *({"name": "lm", "label": str(rule), "adapt": {"rules": rule}} for rule in more)]
    values = study(folder, models=[str(folder / "decoder")], methods=methods)
    # Jobs with equal keys are one job.
    same, other = of_kind(plan(read_study(StudyConfig.of(values), World().backend())), "adapt")
    assert same.key == plain.key and off.settings.keys() == plain.settings.keys()
    ((identity,), (rule,)) = other.settings["rules"], other.options["rules"]
    assert other.key != plain.key and identity["strength"] == 10
    text = rule.text
    assert sorted(text) == sorted(set(LINES) - set(inputs.general.texts))
    assert identity["text"] == text.fingerprint
    with pytest.raises(UserError, match=r"'adapt.rules.ewc' needs text that is not measured on"):
        planned(folder, general=None, adapt={"tokens": 1000, "rules": "ewc strength=1", "replay": 0})


@pytest.mark.needs("upsample")
def test_a_mix_and_its_sources_are_those_of_the_file(folder):
    """Paths are relative to the file, measured documents are left out, and the identity is that of the content."""
    (folder / "law.txt").write_text(
        "\n".join([*LINES[:20], *(f"law document number {number}" for number in range(9))])
    )
    adapt = {"tokens": 1000, "sources": {"law": "law.txt"}, "mix": {"fixed": {"domain": 1, "law": 3}}}
    method = {"name": "lm", "label": "last", "adapt": {"mix": "upsample", "sources": {"law": "law.txt"}}}
    values = study(folder, models=[str(folder / "decoder")], methods=["none", "lm", method], adapt=adapt)
    inputs = read_study(StudyConfig.of(values).relative_to(folder), World().backend())
    one, other = of_kind(plan(inputs), "adapt")
    assert one.settings["mix"] == {"name": "fixed", "weights": {"domain": 1, "law": 3}}
    assert other.settings["mix"]["name"] == "upsample" and one.key != other.key
    law, general = one.settings["read"]
    assert (law["name"], general["share"]) == ("law", 0.1)
    assert one.options["mix"].weights == {"domain": 1, "law": 3}
    measured = set(inputs.general.texts)
    assert set(one.options["sources"]["law"]) == set((folder / "law.txt").read_text().splitlines()) - measured
    assert any("law.txt is the source 'law'" in note and "decoder: last" in note for note in replay_notes(inputs))
    with pytest.raises(UserError, match="source of the mix 'fixed' 'wiki'"):
        planned(folder, adapt={**adapt, "sources": {"law": str(folder / "law.txt")}, "mix": "fixed wiki=1"})


def test_the_monitor_measures_the_held_out_and_the_general_text_of_the_study(folder):
    inputs, (plain,) = planned(folder)
    _, (job,) = planned(folder, adapt={"tokens": 1000, "monitor": True, "patience": 3})
    assert job.key != plain.key and "general" not in plain.settings and plain.heldout is None
    assert list(job.options["general"]) == list(inputs.general.texts) and job.options["monitor"]
    assert job.heldout.texts == inputs.heldout["cs"].texts
    measuring = {"monitor": True, "patience": 3, "general": job.options["general"].fingerprint}
    assert measuring.items() <= job.settings.items()
    pilot = job.next_pilot(inputs.checkpoints[job.place.model], [], 1)
    assert not {"monitor", "patience", "general"} & pilot.options.keys()
    with pytest.raises(UserError, match="the study itself sets 'general'"):
        planned(folder, adapt={"tokens": 1000, "general": "general.txt"})


def test_what_models_write_themselves_is_replayed_instead_of_general_text(folder):
    keys = set()
    for given in ("self=0.2", "self=0.2 top_p=0.9", {"self": 0.3}):
        inputs, (job,) = planned(folder, adapt={"tokens": 1000, "replay": given})
        ((source, share),) = job.options["replay"].items()
        assert isinstance(source, SelfReplay) and share == job.settings["read"][0]["share"]
        keys.add(job.key)
        (note,) = replay_notes(inputs)
        assert "come from self, text that each model writes before it is adapted (decoder: lm)" in note
    assert len(keys) == 3
    values = {"models": ["m"], "methods": ["lm"], "domains": [{"name": "d", "corpus": "text"}]}
    config = StudyConfig.of(values | {"adapt": {"replay": ["self=0.1", "a.txt=0.2"]}}).relative_to(folder)
    assert config.adapt.replay == {"self": 0.1, str(folder / "a.txt"): 0.2}
