"""Each side at its best: settings and prompts searched for each, and what a search for one side alone would show."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from acclimate.base.errors import UserError
from acclimate.results.scores import Comparison
from acclimate.study.compare import compare
from acclimate.study.jobs.head_to_head import HeadToHead, count_head_to_head
from tests.cases import each
from tests.study.fakes import World, graph_of, study, write_task
from tests.tiny import decoder_tokenizer, tiny_model

pytestmark = pytest.mark.usefixtures("no_report")
ITEMS = 150
LOW, HIGH = 1e-5, 1e-4
"""The best learning rate of the base model, and that of the adapted one."""


def finetune(model, task, *, seed=0, progress=True, **options):
    """Both models are equally good, each with its own learning rate, and much worse with the other one."""
    best = LOW if str(model).endswith("model") else HIGH
    rng = np.random.default_rng([seed, int(options["learning_rate"] * 1e7), best == LOW, len(task.name)])
    gold = np.random.default_rng(3).integers(3, size=ITEMS)
    right = rng.random(ITEMS) < (0.8 if options["learning_rate"] == best else 0.5)
    predicted = np.where(right, gold, (gold + 1) % 3)
    return SimpleNamespace(
        task=task.name,
        seed=seed,
        metrics=dict.fromkeys(("accuracy", "macro_f1", "micro_f1"), float(right.mean())),
        gold=gold.tolist(),
        predicted=predicted.tolist(),
        labels=["a", "b", "c"],
        seconds=1.0,
        train_size=9,
        scoring=task.scoring().details(),
    )


@pytest.fixture
def searched(folder):
    tasks = [str(folder / name) for name in ("intent", "aspect")]
    domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": tasks}
    search = {"seeds": 2, "finetune": {"learning_rate": [LOW, HIGH]}, "biased": True}
    return study(folder, methods=["none", "lm"], domains=[domain], search=search, adapt_seeds=3, leakage="off")


@pytest.mark.slow
def test_a_search_for_one_side_shows_a_gain_that_is_none(searched, tmp_path):
    world = World()
    world._kind = lambda model: "mlm"
    results = compare(searched, tmp_path / "out", progress=False, backend=world.backend(finetune=finetune))
    fair, biased = results.rows["head_to_head"]
    assert [row["chosen"]["learning_rate"] for row in results["searches"]] == [LOW, HIGH] * 2
    assert (fair.biased, fair.tasks, fair.helped, fair.hurt) == (False, 2, 0, 0)
    assert (biased.biased, biased.helped, biased.searched) == (True, 2, "fine-tuning settings")
    assert biased.difference.difference == pytest.approx(0.3, abs=0.06)
    assert fair.difference.low < 0 < fair.difference.high
    (warning,) = HeadToHead.caveats(results)
    assert "alone, it helped on 2 of 2 tasks and hurt on 0, instead of 0 and 0" in warning
    assert [row[3].text for row in HeadToHead.tables(results)[0].rows] == ["each side", "the method alone (biased)"]
    assert {row.method: row.summaries["accuracy"].mean > 0.7 for row in results.scores} == {"none": True, "lm": True}
    again = compare(searched, tmp_path / "out", progress=False, backend=world.backend(finetune=finetune))
    assert again.rows == results.rows and not again.jobs.done
    plain = {**searched, "search": {**searched["search"], "biased": False}}
    fewer = compare(plain, tmp_path / "out", progress=False, backend=world.backend(finetune=finetune))
    assert "head_to_head" not in fewer.rows and not fewer.jobs.done and fewer["scores"] == results["scores"]


def test_a_biased_search_needs_a_search_per_method(searched):
    with pytest.raises(UserError, match="biased"):
        graph_of({**searched, "search": {**searched["search"], "per": "task"}})


PROMPTS = ["{text} is", "Text: {text} Label:", "{text}"]


@pytest.fixture
def prompted(folder):
    """A study of a decoder with three prompts."""
    tiny_model("llama").save_pretrained(folder / "llama")
    decoder_tokenizer().save_pretrained(folder / "llama")
    tasks = []
    for name in ("intent", "aspect"):
        write_task(
            folder / name, name, test=[f"{name} {n}" for n in range(ITEMS)], dev=[f"dev {n}" for n in range(30)]
        )
        tasks.append({"path": str(folder / name), "likelihood": {"template": PROMPTS}})
    domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": tasks}
    return study(folder, models=[str(folder / "llama")], methods=["none", "lm"], domains=[domain], adapt_seeds=3)


def likelihood(model, texts, labels, *, template, **settings):
    """The base model needs the first prompt, and adapted ones the second; the third suits neither."""
    best = 0 if str(model).endswith("llama") else 1
    shares = {best: 0.8, 2: 0.4}
    number = PROMPTS.index(template)
    rng = np.random.default_rng([7, number, best, len(texts), len(texts[0][0])])
    gold = np.arange(len(texts)) % 3
    right = rng.random(len(texts)) < shares.get(number, 0.5)
    return SimpleNamespace(predicted=np.where(right, gold, (gold + 1) % 3).tolist(), truncated=0)


def test_each_model_gets_its_own_prompt(prompted, tmp_path):
    world = World()
    world._kind = lambda model: "none" if str(model).endswith("llama") else "mlm"
    backend = world.backend(likelihood=lambda model: partial(likelihood, model))
    results = compare(prompted, tmp_path / "out", progress=False, backend=backend)
    tables = {table.title: table for table in results.tables}
    scores = tables["Classification by the likelihood of label words"]
    assert [row[4] for row in scores.rows] == pytest.approx([80] * 4, abs=10)
    assert {row[-1] for row in scores.rows if row[3] == "lm"} == {"no difference shown"}, "the effect is the prompt's"
    chosen = tables["Prompts of each model"].rows
    assert {(row[3], row[4], row[5], row[6]) for row in chosen} == {
        ("base model", repr(PROMPTS[0]), 0, "0, 1, 2"),
        ("lm", repr(PROMPTS[1]), 0, "0, 1, 2"),
    }
    assert all(row[8] < 60 < 70 < row[7] == row[9] for row in chosen)
    fair, biased = results.rows["head_to_head"]
    assert (fair.searched, fair.tasks, fair.helped) == ("prompts", 2, 0)
    assert (biased.biased, biased.helped) == (True, 2)
    (warning,) = HeadToHead.caveats(results)
    assert warning.startswith("With prompts that were chosen for 'lm' alone, it helped on 2 of 2 tasks")
    again = compare(prompted, tmp_path / "out", progress=False, backend=backend)
    assert again.rows == results.rows and not again.jobs.done


@pytest.mark.slow
def test_equal_models_with_their_own_prompts_differ_in_one_of_twenty_tasks(folder, tmp_path):
    """20 prompts, whose accuracies are the same for both sides in another order; each task is a world."""
    tiny_model("llama").save_pretrained(folder / "llama")
    decoder_tokenizer().save_pretrained(folder / "llama")
    prompts, worlds, dev, test = [f"{n} {{text}}" for n in range(20)], 60, 90, 300
    texts = {"train": ["a", "b"], "dev": [f"d {n}" for n in range(dev)], "test": [f"t {n}" for n in range(test)]}
    tasks = []
    for world in range(worlds):
        write_task(
            folder / f"task{world}", f"task{world}", **{s: [f"{w} {world}" for w in t] for s, t in texts.items()}
        )
        tasks.append({"path": str(folder / f"task{world}"), "likelihood": {"template": prompts}})

    def answer(model, texts, labels, *, template, **settings):
        """Each item has a difficulty for all, one for a prompt and side, and one for each model."""
        side, number = int(not str(model).endswith("llama")), prompts.index(template)
        split, _, world = texts[0][0].split()
        best = np.random.default_rng([1, side, int(world)]).permutation(20)[number]
        seeds = ([2], [3, side, number], [4, number, *str(model).encode()[-40:]])
        noise = [np.random.default_rng([*seed, int(world), ord(split)]).normal(size=1000) for seed in seeds]
        places = [int(text.split()[1]) for text, _ in texts]
        hard = ((noise[0] + noise[1] / 2 + noise[2] / 2) / np.sqrt(1.5))[places]
        gold = np.asarray(places) % 2
        right = hard < stats.norm.ppf(0.5 + 0.01 * best)
        return SimpleNamespace(predicted=np.where(right, gold, 1 - gold).tolist(), truncated=0)

    world = World()
    world._kind = lambda model: "none" if str(model).endswith("llama") else "mlm"
    backend = world.backend(likelihood=lambda model: partial(answer, model))
    domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": tasks}
    config = study(folder, models=[str(folder / "llama")], methods=["none", "lm"], domains=[domain], adapt_seeds=3)
    results = compare({**config, "leakage": "off"}, tmp_path / "out", progress=False, backend=backend)
    fair, biased = results.rows["head_to_head"]
    assert fair.tasks == worlds and fair.unanswered == 0
    assert stats.binomtest(fair.helped + fair.hurt, worlds, 0.05, "greater").pvalue > 0.01
    assert biased.helped > 0.15 * worlds, "what one side alone would seem to gain"


@each(
    ("template", "message"),
    [([], "likelihood.template"), (["{text}", "Label:"], "has no place for the text"), (PROMPTS, "the task has none")],
)
def test_prompts_that_cannot_be_searched(prompted, folder, template, message):
    if message == "the task has none":
        (folder / "intent" / "dev.jsonl").unlink()
    prompted["domains"][0]["tasks"][0]["likelihood"] = {"template": template}
    with pytest.raises(UserError, match=message):
        graph_of(prompted)


def test_the_counts_have_intervals_over_tasks():
    def entry(difference, verdict):
        return Comparison(difference=difference, low=0, high=0, p=0.5, verdict=verdict, before=0, after=0)

    differences = [0.1, 0.2, -0.05, 0.0, 0.02]
    verdicts = ["helped", "helped", "hurt", "no difference shown", "no verdict"]
    entries = [entry(*pair) for pair in zip(differences, verdicts, strict=True)]
    row = count_head_to_head("m", "lm", False, "prompts", list(zip(entries, "abcde", strict=True)))
    assert (row.tasks, row.unanswered, row.helped, row.hurt) == (5, 1, 2, 1)
    z = stats.norm.ppf(0.975)  # Wilson, 1927
    middle, margin = (0.5 + z**2 / 8) / (1 + z**2 / 4), z / (1 + z**2 / 4) * np.sqrt(0.25 / 4 + z**2 / 64)
    assert (row.helped_low, row.helped_high) == pytest.approx((middle - margin, middle + margin))
    oracle = stats.ttest_1samp(differences, 0).confidence_interval()
    assert (row.difference.low, row.difference.high) == pytest.approx(tuple(oracle), abs=0.01)
    twice = count_head_to_head("m", "lm", False, "prompts", list(zip(entries * 2, "abcde" * 2, strict=True)))
    assert (twice.tasks, twice.test_sets, twice.helped) == (10, 5, 4)
    ends = twice.difference.low, twice.difference.high
    assert ends == pytest.approx((row.difference.low, row.difference.high)), "two tasks on one test set are one"
    assert twice.helped_high - twice.helped_low > 0.9 * (row.helped_high - row.helped_low)
