"""Settings are chosen on dev, test is read once with them, and the results list the combinations that were tried."""

from __future__ import annotations

import itertools
import json

import pytest

from acclimate.base.errors import UserError
from acclimate.results.scores import SearchRow
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import Choice, plan
from acclimate.study.search import TrialScore, choose, search_stages
from acclimate.study.sections import combinations
from acclimate.study.summary import CHOSEN, used_parameters
from tests.cases import each
from tests.study.fakes import of_kind, read
from tests.study.searching import BEST, Trials, searching, write_task

pytestmark = pytest.mark.usefixtures("no_report")


def run(folder, out, trials, **changes):
    return compare(searching(folder, **changes), out, progress=False, backend=trials.backend())


def test_every_combination_on_dev_and_the_best_on_test_once(folder, tmp_path):
    trials = Trials()
    results = run(folder, tmp_path / "out", trials)
    tried = list(trials.of("finetune", test=False))
    assert len(tried) == 2 * 3 * 2  # methods, rates, seeds of the search
    assert {call["learning_rate"] for call in tried} == {3e-5, BEST, 3e-4}
    tested = list(trials.of("finetune", test=True))
    assert [(call["learning_rate"], call["seed"]) for call in tested] == [(BEST, 0), (BEST, 1), (BEST, 2)] * 2
    assert trials.calls.index(tested[0]) > trials.calls.index(tried[-1])
    rows = {row["methods"][0]: row for row in results["searches"]}
    assert set(rows) == {"none", "mlm"}
    assert rows["mlm"]["chosen"] == {"learning_rate": BEST}
    assert (rows["mlm"]["tried"], rows["mlm"]["possible"], rows["mlm"]["seeds"]) == (3, 3, [3, 4])
    assert [trial["chosen"] for trial in rows["mlm"]["trials"]] == [False, True, False]
    assert rows["mlm"]["trials"][1]["score"] == pytest.approx(0.9)
    assert trials.world.calls["adapt"] == 2  # fine-tuning alone is searched, so its combinations share one
    again = Trials()
    assert run(folder, tmp_path / "out", again)["searches"] == results["searches"]
    assert not again.calls


def test_a_metric_that_dev_does_not_have_is_found_before_anything_is_tried(folder):
    rows = {"train": [{"text": "a", "label": ["x"]}, {"text": "b", "label": []}]}
    rows["dev"], rows["test"] = rows["train"], [{**row, "id": f"7_s{n}"} for n, row in enumerate(rows["train"])]
    config = searching(folder)
    config["domains"][0]["tasks"][0]["metric"] = "document_f1"
    for split, held in rows.items():
        (folder / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    with pytest.raises(UserError, match="is document_f1, which its dev split does not have"):
        read(config, Trials())


def test_a_search_does_not_depend_on_the_test_split(folder):
    def keys(marker):
        values = searching(folder)
        write_task(folder / "task", marker)
        inputs = read(values, Trials())
        (stage,) = search_stages(inputs, {})
        return [{job.key for job in of_kind(graph, "finetune")} for graph in (stage.graph, plan(inputs))]

    before, after = keys("TEST"), keys("OTHER")
    assert before[0] == after[0]
    assert not before[1] & after[1]


def test_the_jobs_of_a_search_have_other_seeds(folder):
    teacher = {"label": "kl", "teacher": {"model": "model", "method": "none"}, "students": ["other"]}
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text('{"model_type": "bert", "hidden_size": 4}')
    lists = {"finetune": {"learning_rate": [3e-5, BEST]}, "distill": {"teacher_penalty": [0, 0.3], "epochs": [3, 4]}}
    models = [str(folder / name) for name in ("model", "other")]
    inputs = read(searching(folder, models=models, distill=[teacher], search=lists, adapt_seeds=None), Trials())
    searched = [job for stage in search_stages(inputs, {}) for job in stage.graph.jobs.values()]
    final = list(plan(inputs).jobs.values())
    kinds = ("adapt", "finetune", "teacher", "distill")

    def seeds(jobs):
        """The random seeds that jobs train with."""
        found = [job.options["seed"] if job.name == "adapt" else job.seed for job in jobs if job.name in kinds]
        assert {job.name for job in jobs} >= set(kinds)
        return set(found)

    assert seeds(final) == {0, 1, 2} and not seeds(searched) & seeds(final)


def test_an_interrupted_search_resumes(folder, tmp_path):
    whole = run(folder, tmp_path / "whole", Trials())
    killed = Trials()

    def dies(*args, **options):
        if len(killed.calls) == 5:
            raise KeyboardInterrupt
        return Trials.finetune(killed, *args, **options)

    killed.finetune = dies
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", killed)
    again = Trials()
    results = run(folder, tmp_path / "out", again)
    assert len(again.calls) == 2 * 3 * 2 + 6 - 5
    assert results["searches"] == whole["searches"]


@pytest.mark.needs("dga")
def test_settings_of_adaptation_and_of_a_method(folder, tmp_path):
    dga = {"name": "dga", "search": {"contrast_weight": [0.5, 1], "adapt": {"learning_rate": ["1e-4", "2e-4"]}}}
    trials = Trials()
    results = run(folder, tmp_path / "out", trials, methods=["none", dga], search={"seeds": 1})
    assert StudyConfig.of(searching(folder, methods=["none", dga])).methods[1].label == "dga"
    runs = [call for call in trials.world.arguments if call["kind"] == "adapt"]
    made = [(call["settings"]["contrast_weight"], call["learning_rate"], call["seed"]) for call in runs]
    assert made == [(0.5, 1e-4, 4), (1, 1e-4, 4), (0.5, 2e-4, 4), (1, 2e-4, 4), (0.5, 1e-4, 0)]
    (row,) = results["searches"]
    # All are equal, so the first is chosen.
    assert row["chosen"] == {"adapt.learning_rate": 1e-4, "contrast_weight": 0.5}
    assert len(list(trials.of("finetune", test=True))) == 6
    (adapted,) = results["adaptations"]
    assert adapted["task"] == "task"  # another task may choose otherwise


def test_one_setting_for_all_methods(folder, tmp_path):
    trials = Trials()
    table = {("none", 3e-5): 0.9, ("none", BEST): 0.7, ("mlm", 3e-5): 0.5, ("mlm", BEST): 0.8}

    def score(model, rate):
        return table["mlm" if "models" in str(model) else "none", rate], 0.1

    plain = trials.finetune

    def finetune(model, task, **options):
        trials.score = lambda given: score(model, given["learning_rate"])
        return plain(model, task, **options)

    trials.finetune = finetune
    grid = {"seeds": 1, "finetune": {"learning_rate": [3e-5, BEST]}}
    results = run(folder, tmp_path / "own", trials, search=grid)
    assert [row["chosen"]["learning_rate"] for row in results["searches"]] == [3e-5, BEST]
    results = run(folder, tmp_path / "same", trials, search={**grid, "per": "task"})
    (row,) = results["searches"]
    assert row["methods"] == ["none", "mlm"] and row["chosen"] == {"learning_rate": BEST}  # 0.75 against 0.7
    assert [trial["score"] for trial in row["trials"]] == pytest.approx([0.7, 0.75])


def test_a_task_may_have_values_of_its_own_to_try(folder, tmp_path):
    task = {"path": str(folder / "task"), "search": {"epochs": [1, 2]}}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    trials = Trials()
    results = run(folder, tmp_path / "out", trials, domains=domains, methods=["none"], search=None)
    assert [trial["settings"] for trial in results["searches"][0]["trials"]] == [{"epochs": 1}, {"epochs": 2}]
    assert results["searches"][0]["seeds"] == [3, 4, 5]


def test_ties_are_broken_by_calibration_and_then_by_order():
    def scored(name, score, ece):
        return TrialScore(Choice({"finetune": {"name": name}}), "done", [score - 0.01, score + 0.01], ece)

    def chosen(trials, tolerance=0.0):
        return choose(trials, tolerance).choice.settings["name"]

    trials = [scored("a", 0.80, 0.2), scored("b", 0.81, 0.3), scored("c", 0.81, 0.1), scored("d", 0.79, 0.01)]
    assert chosen(trials) == "c"
    assert chosen(trials, 0.01) == "c"
    assert chosen(trials, 0.02) == "d"
    assert chosen([scored("a", 0.5, None), scored("b", 0.6, None), scored("c", 0.6, None)], 0.2) == "b"
    failed = TrialScore(Choice(), "failed", [], errors=("no",))
    assert chosen([failed, scored("a", 0.5, 0.1)]) == "a"
    assert choose([failed], 0) is None
    assert choose([TrialScore(Choice(), "missing", []), scored("a", 0.5, 0.1)], 0) is None


def test_what_fails_is_left_out_and_reported(folder, tmp_path, caplog):
    trials = Trials()
    trials.fails_at = 3e-4
    results = run(folder, tmp_path / "out", trials)  # no error, as another combination could be chosen
    assert [trial["state"] for trial in results["searches"][0]["trials"]] == ["done", "done", "failed"]
    assert "learning_rate=0.0003 failed" in caplog.text
    assert len(results["failures"]) == 4 and len(results["scores"]) == 2
    trials.fails_at = BEST
    grid = {"seeds": 1, "finetune": {"learning_rate": [BEST]}}
    with pytest.raises(UserError, match="2 of 3 jobs failed"):
        run(folder, tmp_path / "none", trials, search=grid)
    results = json.loads((tmp_path / "none" / "results.json").read_text())
    assert results["searches"][0]["chosen"] is None and not results["scores"]


def test_an_adaptation_that_fails_is_left_out_and_reported(folder, tmp_path, caplog):
    trials, grid = Trials(), {"seeds": 1, "adapt": {"learning_rate": [1e-4, 1e-2]}}

    def adapt(*arguments, learning_rate=None, **options):
        if learning_rate == 1e-2:
            raise RuntimeError("the loss is not a number")
        return trials.world.adapt(*arguments, **options)

    def again(**options):
        fresh = trials.world.backend(adapt=adapt, finetune=trials.finetune)
        return compare(searching(folder, search=grid), tmp_path / "out", progress=False, backend=fresh, **options)

    assert again(shard="1/1")["jobs"]["left"] == 0 and (tmp_path / "out" / "results.json").exists()
    results = again()  # no error, as another combination could be chosen
    (row,) = (row for row in results["searches"] if row["methods"] == ["mlm"])
    assert row["chosen"] == {"adapt.learning_rate": 1e-4}
    assert "adapt.learning_rate=0.01 failed and is not compared: RuntimeError: the loss is not a number" in caplog.text
    assert len(results["scores"]) == 2 and len(results["failures"]) == 2
    grid["adapt"]["learning_rate"] = [1e-2]
    with pytest.raises(UserError, match="jobs failed"):
        again()


@pytest.mark.needs("dga")
def test_the_results_have_the_parameters_that_were_used(folder, tmp_path):
    methods = ["none", {"name": "dga", "search": {"contrast_weight": [0.5, 1]}}]
    results = run(folder, tmp_path / "out", Trials(), methods=methods, search={"seeds": 1})
    (row,) = results["searches"]
    (made,) = (method for method in results["methods"] if method["label"] == "dga")
    assert made["parameters"]["contrast_weight"] == row["chosen"]["contrast_weight"]
    assert made["parameters"]["temperature"] == 0.05
    assert row["chosen"]["contrast_weight"] == 0.5
    rows = [
        SearchRow.from_dict({**row, "task": name, "chosen": {"contrast_weight": value}})
        for name, value in (("a", 0.5), ("b", 1))
    ]
    assert used_parameters({"contrast_weight": 1, "x": 2}, "dga", rows) == {"contrast_weight": CHOSEN, "x": 2}
    assert used_parameters({"contrast_weight": 1}, "none", rows) == {"contrast_weight": 1}


def test_a_task_without_dev_does_not_prevent_a_search_on_another(folder, tmp_path):
    values = searching(folder, search=None)
    tasks = [{"path": str(write_task(folder / "task")), "search": {"epochs": [1, 2]}}]
    tasks.append({"path": str(write_task(folder / "no dev", dev=False)), "name": "nodev"})
    values["domains"][0]["tasks"] = tasks
    trials = Trials()
    results = compare(values, tmp_path / "out", progress=False, backend=trials.backend())
    assert {row["task"] for row in results["searches"]} == {"task"}
    assert {row["task"] for row in results["scores"]} == {"task", "nodev"}


def test_shards_wait_for_the_search(folder, tmp_path, capsys):
    config, out = searching(folder), tmp_path / "out"
    for shard, done in (("1/2", False), ("2/2", False), ("1/2", True)):
        trials = Trials()
        results = compare(config, out, shard=shard, backend=trials.backend())
        assert bool(list(trials.of("finetune", test=True))) == (shard == "2/2" or done)
    assert results["scores"] and (out / "results.json").exists()


def test_a_report_of_an_unfinished_search(folder, tmp_path):
    config, out = searching(folder), tmp_path / "out"
    compare(config, out, shard="1/2", progress=False, backend=Trials().backend())
    trials = Trials()
    results = compare(config, out, report_only=True, progress=False, backend=trials.backend())
    assert not trials.calls and not results["scores"]
    assert {row["chosen"] is None for row in results["searches"]} >= {True}
    assert results["jobs"]["missing"]


LISTS = {"a": [1, 2, 3], "b": ["x", "y"], "c": [0.1, 0.2]}


def test_combinations():
    every = [dict(zip("abc", values, strict=True)) for values in itertools.product(*LISTS.values())]
    assert combinations(LISTS, "all", 0) == every
    assert combinations(LISTS, 99, 0) == every
    drawn = combinations(LISTS, 5, 0)
    assert len(drawn) == 5 and [every.index(one) for one in drawn] == sorted(every.index(one) for one in drawn)
    assert drawn == combinations(LISTS, 5, 0) != combinations(LISTS, 5, 1)
    start = {"a": 1, "b": "x", "c": 0.1}
    changed = [{"a": 2}, {"a": 3}, {"b": "y"}, {"c": 0.2}]
    assert combinations(LISTS, "one-factor", 0) == [start, *({**start, **change} for change in changed)]
    assert combinations({}, "all", 0) == [{}]
    huge = {str(place): list(range(10)) for place in range(30)}
    assert len(combinations(huge, 3, 0)) == 3


@pytest.mark.needs("dga")
@each(
    ("changes", "message"),
    [
        (
            {"search": {"finetune": {"learning_rat": [1]}}},
            "unknown option 'learning_rat'. Did you mean 'learning_rate'",
        ),
        ({"search": {"finetune": {"learning_rate": 1}}}, "'learning_rate' needs a list of values to try"),
        ({"search": {"finetune": {"epochs": [-1]}}}, "'epochs' must be at least 0, not -1"),
        ({"search": {"finetune": {"epochs": [1, None]}}}, "a value to try for 'epochs' is empty"),
        ({"search": {"combinations": "some", "finetune": {"epochs": [1]}}}, "combinations"),
        ({"search": {"adapt": {"learning_rat": [1]}}}, "search.adapt: unknown option 'learning_rat'"),
        ({"search": {"adapt": {"seed": [1, 2]}}}, "'search.adapt.seed' cannot be set for one method"),
        ({"methods": [{"name": "dga", "search": {"contrast": [1]}}]}, "contrast_weight"),
        ({"search": {"per": "task", "adapt": {"learning_rate": [1]}}}, "with 'per: method'"),
    ],
)
def test_mistakes_are_found_before_any_job_runs(folder, changes, message):
    with pytest.raises(UserError, match=message):
        read(searching(folder, **changes), Trials())


def test_a_task_without_dev_cannot_be_searched(folder):
    values = searching(folder)
    (folder / "task" / "dev.jsonl").unlink()
    with pytest.raises(UserError, match="'task' has no dev split"):
        read(values, Trials())
