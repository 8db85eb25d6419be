"""Studies of causal models: label likelihoods and instruction-following next to fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from acclimate.base.errors import UserError
from acclimate.evaluation.prompts import part_of_dev
from acclimate.study.compare import compare
from acclimate.study.job import RunContext
from acclimate.study.jobs import prompting
from acclimate.tasks import finetune as finetuning
from tests.cases import each
from tests.study.fakes import World, graph_of, of_kind, study, write_task
from tests.tasks.choice.toy import task_of
from tests.tiny import decoder_tokenizer, tiny_model


@pytest.fixture
def chat(folder):
    """A study of a decoder with a chat template, whose task is also answered without fine-tuning."""
    tokenizer = decoder_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tiny_model("llama").save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    write_task(folder / "intent", "intent", test=[f"text {number}" for number in range(60)])
    task = {
        "path": str(folder / "intent"),
        "likelihood": {"template": "{text}\n\nLabel:", "words": {"a": "alpha"}, "score": "mean"},
    }
    return study(
        folder,
        models=[str(folder / "llama")],
        methods=["none", "lm"],
        domains=[{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}],
        evaluate={"documents": 20, "instructions": True},
        adapt_seeds=3,
    )


def answers(share):
    """Return a fake measurement in which a model is right on a share of the items."""

    def likelihood(model, texts, labels, **settings):
        assert settings == {
            "template": "{text}\n\nLabel:",
            "examples": [],
            "words": {"a": "alpha"},
            "score": "mean",
            "max_length": 1024,
        }
        assert labels == ["a", "b", "c"] and texts[0] == ("text 0", None)
        right = share(model) * len(texts)
        predicted = [(number + (number >= right)) % 3 for number in range(len(texts))]
        return SimpleNamespace(predicted=predicted, truncated=1)

    def instructions(model):
        followed = [number < share(model) * 50 for number in range(50)]
        return {"followed": followed, "answers": [""] * 50, "prompts": [""] * 50, "share": 0.0, "unfinished": 4}

    return {"likelihood": lambda model: partial(likelihood, model), "others": {"instructions": instructions}}


def test_both_measurements_are_compared_with_the_base_model(chat, tmp_path, no_report):
    def share(model):
        return 0.3 if str(model).endswith("llama") else 0.8

    world = World()
    world._kind = lambda model: "none" if str(model).endswith("llama") else "mlm"
    backend = world.backend(**answers(share))
    results = compare(chat, tmp_path / "out", progress=False, backend=backend)
    tables = {table.title: table for table in results.tables}
    words = tables["Classification by the likelihood of label words"]
    model, domain, task, method, accuracy, _, *difference = words.rows[1]
    assert (model, domain, task, method, accuracy) == ("llama", "cs", "intent", "lm", pytest.approx(80))
    assert words.rows[0][3:5] == ["base model", pytest.approx(30)] and words.rows[0][6:] == [None] * 3
    assert difference[0] == "+50.0" and difference[2] == "helped" and "too long" in words.note
    sheet = tables["Instruction-following"].rows
    assert [row[2:4] for row in sheet] == [["base model", 30.0], ["lm", 80.0]]
    assert sheet[1][4] == "+50.0" and sheet[1][6] == "helped" and sheet[1][7] == 4
    assert {row.method for row in results.scores} == {"none", "lm"}, "fine-tuned scores have tables of their own"
    page = (tmp_path / "out" / "results.md").read_text()
    assert "Instruction-following" in page and "likelihood of label words" in page
    again = compare(chat, tmp_path / "out", progress=False, backend=backend)
    assert again["tables"] == results["tables"] and not again.jobs.done


def test_one_adaptation_gives_no_verdict(chat, tmp_path, no_report):
    world = World()
    world._kind = lambda model: "none"
    backend = world.backend(**answers(lambda model: 0.5 if str(model).endswith("llama") else 1))
    results = compare({**chat, "adapt_seeds": [0]}, tmp_path / "out", progress=False, backend=backend)
    sheet, words = (table.rows[1] for table in results.tables)
    assert {words[8], sheet[6]} == {"no verdict"} and {words[6], sheet[4]} == {"+50.0"}


def test_a_base_model_is_measured_once_and_encoders_are_not(chat, folder):
    graph = graph_of({**chat, "models": [str(folder / "llama"), str(folder / "model")]})
    jobs = [*of_kind(graph, "likelihood"), *of_kind(graph, "instructions")]
    assert len(jobs) == 2 * (1 + 3) and {job.place.model for job in jobs} == {"llama"}
    assert len(of_kind(graph, "likelihood", method=None)) == 3, "one entry per seed of adaptation"


def test_tasks_of_other_domains_show_forgetting_without_fine_tuning(chat, folder):
    other = {"path": str(folder / "aspect"), "likelihood": True}
    graph = graph_of({**chat, "other_tasks": [other]})
    assert len(of_kind(graph, "likelihood", task="aspect", method="lm")) == 3
    assert not of_kind(
        graph_of({**chat, "other_tasks": [{**other, "likelihood": False}]}), "likelihood", task="aspect"
    )


@each(
    ("changes", "message"),
    [
        ({"model": "model", "instructions": False}, "'likelihood' of the task 'intent' needs a causal language model"),
        ({"model": "model", "task": False}, "'evaluate.instructions' needs a causal language model"),
        ({"task": {"template": "Label:"}}, "has no place for the text"),
        ({"task": {"template": "{text} {x}"}}, "has {x}, which the task does not have"),
        ({"task": {"shots": [-1]}}, "likelihood.shots"),
        ({"task": {"words": {"d": "x"}}}, "label 'd'"),
        ({"task": {"score": "best"}}, "score"),
        ({"template": None}, "the tokenizer of 'llama' has none"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(chat, folder, changes, message):
    model = folder / changes.get("model", "llama")
    task = {"path": str(folder / "intent"), "likelihood": changes.get("task", True)}
    if "template" in changes:
        decoder_tokenizer().save_pretrained(model)
        (model / "chat_template.jinja").unlink()
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    evaluate = {"instructions": changes.get("instructions", True)}
    with pytest.raises(UserError, match=message):
        graph_of({**chat, "models": [str(model)], "domains": domains, "evaluate": evaluate})


class Guarded(list):
    """Rows that cannot be read while a prompt is chosen."""

    choosing = False

    def __getattribute__(self, name):
        assert not Guarded.choosing, f"the choice reads test: {name}"
        return super().__getattribute__(name)

    def __iter__(self):
        assert not Guarded.choosing, "the choice reads test"
        return super().__iter__()

    def __getitem__(self, place):
        assert not Guarded.choosing, "the choice reads test"
        return super().__getitem__(place)


def guard(monkeypatch, module):
    """Forbid to read test while a module chooses; return the list of its choices."""
    choose, made = module.choose_prompts, []

    def choosing(*arguments):
        Guarded.choosing = True
        try:
            made.append(choose(*arguments))
        finally:
            Guarded.choosing = False
        return made[-1]

    monkeypatch.setattr(module, "choose_prompts", choosing)
    return made


def test_the_choice_reads_neither_test_nor_other_models(chat, folder, monkeypatch):
    made = guard(monkeypatch, prompting)
    write_task(folder / "intent", "intent", dev=[f"dev {number}" for number in range(70)])
    chat["domains"][0]["tasks"][0]["likelihood"] = True
    jobs = of_kind(graph_of(chat), "likelihood")
    asked = []

    def classify(texts, labels, *, template, examples, **settings):
        asked.append((len(texts), template, len(examples)))
        return SimpleNamespace(predicted=[number % 3 for number in range(len(texts))], truncated=0)

    backend = World().backend(likelihood=lambda model: classify)
    for job, tests in ((jobs[0], 8), (next(job for job in jobs if job.place.method == "lm"), 1)):
        asked.clear()
        task = replace(job.task, test=Guarded(job.task.test))
        result = replace(job, task=task, model=jobs[0].model).run(RunContext(backend, folder))
        assert len(asked) == 8 + tests and len({(template, shots) for _, template, shots in asked}) == 8
        assert {shots for *_, shots in asked} == {0, 4}
        assert len(result.prompts) == 8 and sum(prompt.predicted is not None for prompt in result.prompts) == tests
        assert [size for size, *_ in asked][:8] == [70 if tests == 8 else len(part_of_dev(range(70), 0, 3))] * 8
    assert set(made[0]) == {0, 1, 2} and len(made) == 2


def test_a_model_of_multiple_choice_chooses_its_prompt_on_dev(tiny_llama, monkeypatch):
    made = guard(monkeypatch, finetuning)
    options = {"epochs": 0, "max_length": 64, "progress": False, "precision": "fp32"}
    task = task_of(train=8, dev=12, test=6, context=True)
    result = finetuning.finetune(tiny_llama, replace(task, test=Guarded(task.test)), every_prompt=True, **options)
    mine = result.prompts[result.chosen]
    assert len(result.prompts) == 8 and made == [{0: result.chosen}] and mine.predicted == result.predicted
    assert mine.dev == max(prompt.dev for prompt in result.prompts) == result.dev_metrics["accuracy"]
    assert all(len(prompt.predicted) == 6 for prompt in result.prompts)
    assert f"with {mine.shots} solved examples, chosen on dev" in "\n".join(result.describe())
    given = {"template": mine.template, "shots": mine.shots}
    alone = finetuning.finetune(tiny_llama, replace(task, dev=[]), **options, **given)
    assert alone.predicted == result.predicted and alone.prompts is None


def test_templates_of_a_file(tiny_llama, tiny_bert, tmp_path):
    options, task = {"epochs": 0, "max_length": 64, "progress": False}, task_of(train=8, dev=8, test=6)
    (tmp_path / "own.yaml").write_text('- "{question}"\n- "{question}\\n{choices}\\nAnswer:"\n')
    result = finetuning.finetune(tiny_llama, task, template=tmp_path / "own.yaml", shots="0,2", **options)
    assert [(prompt.template[:10], prompt.shots) for prompt in result.prompts] == [
        ("{question}", shots) for _ in "ab" for shots in (0, 2)
    ]
    (tmp_path / "own.yaml").write_text("a: b")
    for given, message in (
        ({"template": tmp_path / "own.yaml"}, "needs a list of texts"),
        ({"template": tmp_path / "none.yaml"}, "cannot be read"),
        ({"template": "{context}"}, r"write \{question\} where it belongs"),
        ({"template": "{question}", "epochs": 1}, "'template' is chosen for models that are not trained"),
    ):
        with pytest.raises(UserError, match=message):
            finetuning.finetune(tiny_llama, task, **{**options, **given})
    with pytest.raises(UserError, match="Several prompts need a dev split"):
        finetuning.finetune(tiny_llama, replace(task, dev=[]), shots=(0, 1), **options)
