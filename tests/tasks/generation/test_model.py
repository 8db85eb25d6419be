"""Generated answers: prompts, masks, batches, stop strings, scorers, adapters, and what a tiny model can learn."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from acclimate.base.errors import UserError
from acclimate.data.chat import special_tokens
from acclimate.data.task_kinds import find_task_kind, load_task
from acclimate.labs.inspection.leakage import inspect_leakage
from acclimate.models import generating
from acclimate.models.generating import Decoding
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import evaluation_texts, item_texts
from acclimate.tasks.kinds.generation.data import Prompted
from acclimate.tasks.kinds.generation.model import cached_scorer, join_answer, load_answer_model
from acclimate.tasks.prediction import predict
from tests.cases import each
from tests.servers import completion, serve
from tests.tiny import decoder_tokenizer, save_tiny, tiny_model

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
WORDS = "food good waiter kind cold soup slow".split()
QUIET = {"progress": False, "precision": "fp32", "max_length": 64, "max_new_tokens": 6}


def row_of(split, number):
    """A row whose answer is the last word of its question."""
    chance = random.Random(f"{split}{number}")
    words = chance.choices(WORDS, k=chance.randint(1, 3))
    return {"question": " ".join(words), "answers": [words[-1], f"the {number}th"]}


def task_of(train=24, dev=6, test=8):
    sizes = {"train": train, "dev": dev, "test": test}
    return load_task({split: [row_of(split, n) for n in range(count)] for split, count in sizes.items()}, name="copy")


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "model"
    tokenizer = decoder_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tiny_model("llama").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def greedy(model, tokenizer, ids, count):
    """Tokens step by step, without cache, padding or the attention of training."""
    made = []
    with torch.no_grad():
        while len(made) < count and tokenizer.eos_token_id not in made:
            made.append(int(model(input_ids=torch.tensor([[*ids, *made]])).logits[0, -1].argmax()))
    return tokenizer.decode(made, skip_special_tokens=True)


def test_answers_do_not_depend_on_the_batch_or_the_order(chat, tiny_llama, monkeypatch):
    items = [Prompted("the food", ()), Prompted("cold soup and a slow waiter", (), "on the menu"), Prompted("a?", ())]
    for path in (chat, tiny_llama):
        head = load_answer_model(path, 100)
        head.decoding = Decoding(6)
        bare = AutoModelForCausalLM.from_pretrained(path).eval()
        texts = [
            f"<s>user\n{item.text}</s>\n<s>assistant\n"
            if path == chat
            else "<s>" + f"{item.context}\n\n" * bool(item.context) + f"Question: {item.question}\nAnswer:"
            for item in items
        ]
        read = [head.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        expected = [greedy(bare, head.tokenizer, ids, 6) for ids in read]
        assert [one.text for one in head.write(items, "fp32")] == expected
        assert [one.text for one in head.write(items[::-1], "fp32")] == expected[::-1]
        with monkeypatch.context() as patch:
            patch.setattr(generating, "micro_batch_tokens", lambda model, **_: 1)
            assert [one.text for one in head.write(items, "fp32")] == expected
        whole = expected[1]
        stop = whole[2:4]
        head.decoding = Decoding(6, stop=("not in it", stop))
        cut = head.write(items, "fp32")[1]
        assert cut[:2] == (whole[: whole.index(stop)], True)
        head.decoding = Decoding(6, temperature=2.0, seed=1)
        sampled = head.write(items, "fp32")
        head.decoding = Decoding(6, temperature=2.0, seed=2)
        assert sampled != head.write(items, "fp32")
        head.decoding = Decoding(6, temperature=2.0, seed=1)
        assert sampled == head.write(items, "fp32")


def learned_text(head, row):
    """The tokens that are learned, and what is read before the first."""
    places = [place for place, token in enumerate(row["continuation"]) if token != -100]
    first = places[0] + 1
    return head.tokenizer.decode(row["input_ids"][:first]), head.tokenizer.decode(row["continuation"][places])


def test_only_the_answer_and_its_end_are_learned_after_the_prompt_of_a_prediction(chat, tiny_llama):
    item, shot = Prompted("who </s> was?", ("the waiter", "he"), "on day 3"), Prompted("is it?", ("fresh",))
    for path in (chat, tiny_llama):
        head = load_answer_model(path, 120)
        head.shots = [shot, item]  # an item never sees its own answer
        (row,) = head.features([item])
        before, learned = learned_text(head, row)
        (prompt,) = head._encode([item], 120, answered=False)
        assert before == head.tokenizer.decode(~prompt)
        if path == chat:
            assert "is it?</s>\n<s>assistant\nfresh</s>\n" in before and learned == "the waiter</s>"
            assert "who < /s> was?" in before and "on day 3\n\n" in before
        else:
            assert before == "<s>Question: is it?\nAnswer: fresh\n\non day 3\n\nQuestion: who </s> was?\nAnswer:"
            assert learned == " the waiter</s>"
            (end,) = [place for place, token in enumerate(row["continuation"]) if token == 2]
            assert (row["input_ids"][: end + 1] != 2).all()  # the token in the question is text
        assert "he" not in learned.split() and "waiter" not in before
        inputs = head.collate([row, *head.features([shot])])
        wanted = inputs["continuation"]
        with torch.no_grad():
            logits = head.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
            expected = (losses.sum(1) / (wanted != -100).sum(1)).mean()
            torch.testing.assert_close(head.run(head.model, inputs).loss, expected)
    assert special_tokens(head.tokenizer)


def test_long_prompts_lose_examples_then_the_start_of_their_context(tiny_llama, caplog):
    head = load_answer_model(tiny_llama, 50)
    head.shots = [Prompted("is it?", ("fresh",))]
    long = Prompted("who was kind?", ("the waiter",), "x " * 200 + "at the end")
    rows = head.features([long, Prompted("a?", ("b",))])
    before, learned = learned_text(head, rows[0])
    assert len(rows[0]["input_ids"]) <= 50 and learned == " the waiter</s>"
    assert "fresh" not in before and "at the end\n\nQuestion: who was kind?\nAnswer:" in before
    assert "fresh" in learned_text(head, rows[1])[0]
    assert "1 of 2 prompts are longer than 50 tokens" in caplog.text
    with pytest.raises(UserError, match="A prompt does not fit into 10 tokens"):
        head._encode([long], 10, answered=False)


def test_examples_are_from_train_alone(tiny_llama, monkeypatch):
    """Whatever the split that is measured, its prompts hold train rows and the item."""
    rows = {split: [{"question": f"{split} {n}", "answers": [f"{split} answer {n}"]} for n in range(9)]
            for split in ("train", "dev", "test")}  # fmt: skip
    task = load_task(rows, name="t")
    seen = {}
    for seed in (0, 1):
        read = seen[seed] = []
        monkeypatch.setattr(
            "acclimate.tasks.kinds.generation.model.write_texts",
            lambda model, tokenizer, rows, decoding, read=read: (
                read.extend(tokenizer.batch_decode(rows)) or [generating.Written("x", True)] * len(rows)
            ),
        )
        made = finetune(tiny_llama, task, epochs=0, shots=3, seed=seed, **{**QUIET, "max_length": 120})
        assert made.metrics["f1"] == 0 and len(read) == 18
        for number, prompt in enumerate(read):
            own = f"{'dev' if number < 9 else 'test'} {number % 9}"
            assert prompt.count("train answer") == 3 and prompt.endswith(f"Question: {own}\nAnswer:")
            assert "dev answer" not in prompt and "test answer" not in prompt
    assert seen[0] != seen[1]


SCORER = """
def judge(question, answer, references):
    "The prompt of a judge."
    with open(FILE, "a") as calls:
        calls.write("x")
    return 0.5 if answer else 0
"""


def test_a_model_behind_an_endpoint_scores_answers():
    with serve(lambda prompt, number: completion("0.5, since half is there")) as server:
        scorer = cached_scorer(f"{server.url} model=judge")
        assert scorer(join_answer("q?", "an answer", ["a", "b"])) == [0.5]
        assert all(part in server.prompts[0] for part in ("q?", "an answer", "a\nb"))


def test_a_scorer_a_pattern_and_a_saved_model(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    file, calls = tmp_path / "judges.py", tmp_path / "calls"
    file.write_text(f"FILE = {str(calls)!r}\n{SCORER}")
    people = tmp_path / "people.jsonl"
    labels = [("a", 1.0), ("b", 0.5), ("", 0.0)]
    people.write_text("".join(json.dumps({"question": "q", "answer": a, "score": s}) + "\n" for a, s in labels))
    task, out = task_of(), tmp_path / "out"
    options = {**QUIET, "epochs": 0, "scorer": f"{file}:judge", "answer_pattern": r"\w(?s:.*)"}
    made = finetune(tiny_llama, task, out=out, scorer_labels=people, **options)
    assert next(iter(made.metrics)) == "score" and made.metrics["score"] == 0.5
    agreement = made.metrics["scorer_agreement"]
    assert agreement == {"rows": 3, "correlation": pytest.approx(0.866, abs=1e-3), "difference": pytest.approx(1 / 6)}
    assert made.metrics["unfinished"] == 1.0
    answers = {json.dumps(one) for one in made.predicted}
    assert len(calls.read_text()) <= 8 + 6 + 3 and answers
    before = len(calls.read_text())
    again = finetune(tiny_llama, task, **options)
    assert len(calls.read_text()) == before and again.predicted == made.predicted  # from the cache
    line = json.loads((out / "predictions.jsonl").read_text().splitlines()[0])
    assert line["gold"] == list(task.test[0].references) and line["scores"]["score"] == 0.5
    assert line["predicted"] == [line["output"].strip(), 0.5] or line["predicted"][0] in line["output"]
    settings = json.loads((out / "generation.json").read_text())
    assert settings["decoding"]["max_new_tokens"] == 6 and settings["answer_pattern"] and not settings["shots"]
    found = predict(out, [{"question": one.question} for one in task.test], None, progress=False)
    assert [row["answer"] for row in found.rows] == [one[0] for one in made.predicted]
    assert found.rows[0]["answer"] in found.rows[0]["output"]
    (tmp_path / "wrong.py").write_text(file.read_text().replace("return 0.5", "return 2"))
    options["scorer"] = f"{tmp_path / 'wrong.py'}:judge"
    with pytest.raises(UserError, match=r"The scorer 'judge' failed .* a score is from 0 to 1, not 2"):
        finetune(tiny_llama, task, **options)
    with pytest.raises(UserError, match="'scorer_labels' needs a scorer"):
        finetune(tiny_llama, task, scorer_labels=people, **{**options, "scorer": None})


@each(("options", "words"), [
    ({"shots": 2}, "'shots' is for tasks of generation, .* and 'reviews' is classification"),
    ({"answer_pattern": "a"}, "'answer_pattern' is for tasks of generation"),
    ({"answer_pattern": "("}, "'answer_pattern' must be a regular expression"),
    ({"stop": [""]}, "'stop' must be texts that are not empty"),
    ({"adapter": "lora"}, "'adapter' is for retrieval models"),
])  # fmt: skip
def test_options_of_generation_are_refused_elsewhere(options, words, tiny_llama):
    rows = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(20)]
    with pytest.raises(UserError, match=words):
        finetune(tiny_llama, load_task(rows, name="reviews"), progress=False, **options)


def test_what_cannot_write_or_be_probed_is_refused_by_name(tiny_bert):
    task = task_of()
    with pytest.raises(UserError, match="an encoder, which cannot write answers; use a decoder"):
        finetune(tiny_bert, task, **QUIET)
    with pytest.raises(UserError, match="of the kind 'generation', which cannot be learned from one state per text"):
        find_task_kind(task).probe(task)


def test_contamination_is_a_question_with_its_answer():
    question, answer = "which of the many waiters on the long menu was kind to all", "the one who had cold soup again"
    rows = {split: [{"question": f"{question} {split} {n}", "answers": [f"{answer} {split} {n}"]} for n in range(3)]
            for split in ("train", "test")}  # fmt: skip
    task = load_task(rows, name="t")
    (first, *_), texts = evaluation_texts(task)["test"], item_texts(task)
    assert first == f"{question} test 0\n{answer} test 0" == texts["test"][0]
    corpus = [f"{question} test 0", f"so {question} test 1 and {answer} test 1 it was"]
    report = inspect_leakage([task], corpus, near=0.95, progress=False)
    assert report["texts"][0]["found"] == 1


def test_an_adapter_is_trained_and_merged(tiny_llama, tmp_path):
    pytest.importorskip("peft")
    made = finetune(tiny_llama, task_of(), adapter="lora r=2", epochs=1, out=tmp_path / "out", **QUIET)
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_llama, tmp_path / "out"))
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed and all(".self_attn." in name or ".mlp." in name for name in changed)
    assert (
        predict(tmp_path / "out", [row_of("test", 0)], None, progress=False).rows[0]["answer"] == made.predicted[0][0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("has_template", [False, True])
def test_a_tiny_model_learns_to_copy_the_last_word(has_template, chat, tiny_llama, tmp_path):
    task = task_of(train=400, dev=20, test=60)
    options = {**QUIET, "epochs": 12, "learning_rate": 5e-3, "batch_size": 16}
    made = finetune(chat if has_template else tiny_llama, task, out=tmp_path / "out", **options)
    assert made.metrics["exact_match"] > 0.8 and made.metrics["unfinished"] < 0.1
    labelled = predict(tmp_path / "out", [row_of("test", n) for n in range(60)], None, progress=False)
    assert labelled.scores[0][0] == pytest.approx(made.metrics["f1"])


@pytest.mark.slow
def test_a_study_with_another_kind_of_task(tiny_llama, tmp_path):
    """Its scores have intervals over groups, and a probe leaves it out by name."""
    from acclimate.study.compare import compare

    save_tiny("llama", tmp_path / "model")
    for split, count in (("train", 24), ("dev", 6), ("test", 12)):
        lines = [json.dumps({**row_of(split, n), "context": f"menu {n // 3}"}) for n in range(count)]
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / f"{split}.jsonl").write_text("\n".join(lines))
    corpus = str(tmp_path / "corpus.txt")
    Path(corpus).write_text("\n".join(f"the {word} was {n}" for n, word in enumerate(WORDS * 30)))
    file = tmp_path / "study_judges.py"
    file.write_text(f"FILE = {str(tmp_path / 'calls')!r}\n{SCORER}")
    task = {"path": str(tmp_path / "copy"), "task_kind": "generation"}
    study = {
        "name": "answers", "models": [str(tmp_path / "model")], "methods": ["none", "lm"], "seeds": 2,
        "domains": [{"name": "d", "corpus": corpus, "heldout": corpus, "tasks": [task]}],
        "adapt": {"steps": 1, "batch_size": 4, "max_length": 16}, "evaluate": {"max_length": 16}, "probe": True,
        "finetune": {"max_length": 64, "epochs": 1, "max_new_tokens": 4, "shots": 1, "scorer": f"{file}:judge"},
    }  # fmt: skip
    results = compare(study, tmp_path / "out", progress=False)
    assert not results.failures
    assert {(row.metric, row.kind) for row in results.scores} == {("score", "generation")}
    assert all(row.summaries["exact_match"].mean is not None for row in results.scores)
    assert "copy" in (tmp_path / "out" / "report.html").read_text()
