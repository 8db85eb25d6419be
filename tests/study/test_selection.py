"""Studies that select the text to adapt to, and the control of a selection."""

from __future__ import annotations

import json

import pytest

from acclimate import compare
from acclimate.base.errors import UserError
from acclimate.data.pool import count_words
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.study.fakes import World, files, graph_of, of_kind, read, study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of a study, and a pool with documents that are like the texts of its task."""
    folder = files(tmp_path_factory.mktemp("selection") / "data")
    lines = [f"cooking onions and butter, part {number}" for number in range(100, 300)]
    lines += [f"intent train text {number} in other words" for number in range(300, 400)]
    (folder / "pool.txt").write_text("\n".join(lines))
    (folder / "words.txt").write_text("onions\n")
    return folder


def selecting(folder, select, methods=("none", "mlm"), **changes):
    corpus = {"from": str(folder / "pool.txt"), "select": select, **changes.pop("corpus", {})}
    domain = {"name": "cs", "corpus": corpus, "tasks": [str(folder / "intent")], **changes.pop("domain", {})}
    return study(folder, domains=[domain], methods=list(methods), **changes)


def test_a_domain_reads_what_is_selected_and_its_control_as_many_tokens(folder):
    methods = ["none", "mlm", {"name": "mlm", "select": "random"}, {"name": "mlm", "label": "all", "select": []}]
    inputs = read(selecting(folder, {"nearest": {"k": 5}}, methods))
    chosen, control, whole = (list(inputs.corpus("cs", label)) for label in ("mlm", "mlm (select=random)", "all"))
    assert chosen and all(text.startswith("intent") for text in chosen)
    assert abs(sum(count_words(control)) - sum(count_words(chosen))) <= 8 and set(control) < set(whole)
    assert not {*whole, *chosen} & {*inputs.heldout["cs"].texts}
    jobs = {job.place.method: job for job in of_kind(graph_of(selecting(folder, {"nearest": 5}, methods)), "adapt")}
    assert len({job.key for job in jobs.values()}) == 3
    assert jobs["mlm"].corpus.fingerprint == inputs.corpora["cs"].fingerprint


def test_given_held_out_text_is_never_selected(folder):
    held = folder / "held.txt"
    held.write_text("\n".join(f"intent train text {number} in other words" for number in range(300, 400, 2)))
    inputs = read(selecting(folder, {"nearest": 50}, domain={"heldout": str(held)}, evaluate={"documents": 50}))
    assert not {*inputs.corpora["cs"]} & {*inputs.heldout["cs"].texts} and len([*inputs.corpora["cs"]]) == 50


def test_a_target_replaces_the_texts_of_the_task(folder):
    target = folder / "target.txt"
    target.write_text("butter and onions\n")
    inputs = read(selecting(folder, "nearest k=4", corpus={"target": str(target)}))
    assert all("onions" in text for text in inputs.corpora["cs"]) and len([*inputs.corpora["cs"]]) == 4


def test_results_report_and_removed_contamination_have_the_selection(folder, tmp_path, monkeypatch):
    methods = ["none", "mlm", {"name": "mlm", "select": "random"}]
    values = selecting(folder, ["nearest k=5"], methods, leakage="remove", adapt_seeds=1)
    results = compare(values, tmp_path / "out", backend=World().backend(), progress=False)
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = [(row["method"], [account["name"] for account in row["accounts"]]) for row in stored["selections"]]
    assert rows == [(None, ["nearest"]), ("mlm (select=random)", ["random"])]
    assert stored["selections"][0]["accounts"][0].get("kept", []) == []  # no texts
    (table,) = [table for table in results.tables if table.title == "Selection and transforms of text"]
    assert [row[2].split()[0] for row in table.rows] == ["nearest", "random"]
    assert "Selection and transforms of text" in (tmp_path / "out" / "report.html").read_text()
    searched = {row["domain"] for row in stored["contamination"] if row.get("train_of") is None}
    assert searched == {"cs", "cs (mlm (select=random))"}


def test_evaluation_texts_in_selected_text_are_removed_for_all_rows(folder):
    pool = folder / "leaky.txt"
    leak = "intent test text 1 which has more than eight words in it"
    pool.write_text("\n".join([leak, *(f"intent train text {number} in other words" for number in range(300, 360))]))
    task = folder / "leaky"
    task.mkdir()
    for split, texts in (("train", ["intent train text", "another"]), ("test", [leak, "short one"])):
        rows = [{"text": text, "label": "ab"[place]} for place, text in enumerate(texts)]
        (task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    methods = ["none", "mlm", {"name": "mlm", "select": {"random": {"share": 1.0}}}]
    domain = {"corpus": {"from": str(pool), "select": {"nearest": 60}}, "tasks": [str(task)]}
    inputs = read(selecting(folder, None, methods, domain=domain, leakage="remove"))
    for label in ("mlm", methods[2]["name"] + " (select=random share=1.0)"):
        texts = list(inputs.corpus("cs", label))
        assert leak not in texts and len(texts) > 40


@pytest.mark.needs("tapt")
@each(
    ("values", "message"),
    [
        ({"select": "nearset"}, "Did you mean 'nearest'"),
        ({"select": {"nearest": {"k": 0}}}, "k must be at least 1"),
        ({"select": "random"}, "has no size here"),
        ({"select": 5}, "A selection is NAME"),
        ({"select": "nearest", "corpus": {"selct": 1}}, "unknown key 'selct'"),
        ({"select": "nearest", "domain": {"tasks": []}}, "the text of a task"),
        ({"select": "nearest", "methods": [{"name": "none", "select": "random"}]}, "is not adapted"),
        ({"select": "nearest", "methods": ["none", {"name": "tapt", "select": "random"}]}, "does not apply"),
    ],
)
def test_mistakes_are_explained(folder, values, message):
    with pytest.raises(UserError, match=message):
        read(selecting(folder, **values))


def test_selections_are_stored_as_written_and_their_files_found(folder):
    config = StudyConfig.of(selecting(folder, ["nearest k=5", {"task": 2}]))
    assert config.domains[0].select == [{"nearest": {"k": 5}}, {"task": {"times": 2}}]
    assert StudyConfig.of(config.resolved()).domains == config.domains
    assert not {"select", "target"} & StudyConfig.of(study(folder)).resolved()["domains"][0].keys()
