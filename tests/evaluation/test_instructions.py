"""Instruction-following: the checks, the included prompts, and the generation of answers."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.evaluation import instructions
from acclimate.evaluation.instructions import CHECKS, Instruction, generate_answers, read_instructions
from acclimate.labs.benchmarks.instructions import inspect_instructions
from acclimate.models import generating
from tests.cases import each
from tests.tiny import decoder_tokenizer, tiny_model

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
GOOD_AND_BAD = [
    ("sentences", {"count": 2}, "It is cold. Is it?", "It is cold."),
    ("sentences", {"count": 1}, "Version 2.5 is out", "One. Two"),
    ("sentences", {"count": 1}, 'He said "no."', 'He said "no." Then'),
    ("words", {"most": 3}, "a well-known don't", "one two three four"),
    ("words", {"least": 2}, "one two", "one"),
    ("number", {}, "1,000.5", "7 days"),
    ("one_of", {"choices": ["yes", "no"]}, "Yes.", "Yes, it is"),
    ("bullets", {"count": 2}, "Here:\n- a\n* b", "- a\n- b\n- c"),
    ("bullets", {"count": 1, "only": True}, "- a", "Here:\n- a"),
    ("numbered", {"count": 2}, "1. a\n2) b", "1. a\n3. b"),
    ("paragraphs", {"count": 2}, "a\n\nb", "a\nb"),
    ("comma_list", {"count": 2}, "red apples, pears.", "Here are two: red apples, pears and more"),
    ("json", {"keys": ["a"]}, '```json\n{"a": 1}\n```', '{"a": 1, "b": 2}'),
    ("json", {"items": 2}, "[1, 2]", 'Sure: [1, 2]'),
    ("uppercase", {}, "HOT, 30 °C", "Hot"),
    ("lowercase", {}, "hot", "123"),
    ("contains", {"words": ["tea"], "least": 2}, "Tea and tea", "tea and teapot"),
    ("avoids", {"words": ["big"]}, "bigger", "Big"),
    ("contains_text", {"texts": ["<<", ">>"]}, "<<a>>", "<<a>"),
    ("avoids_text", {"texts": ["z"]}, "snow", "Zoo"),
    ("starts", {"text": '"'}, "“cold”", "cold"),
    ("ends", {"text": "Have fun!"}, "Run. Have fun! ", "Have fun"),
    ("line", {"text": "***"}, "a\n***\nb", "a ***\nb"),
]  # fmt: skip


@each(("name", "arguments", "good", "bad"), GOOD_AND_BAD)
def test_checks(name, arguments, good, bad):
    instruction = Instruction("", [{"check": name, **arguments}])
    assert instruction.is_followed(good) and not instruction.is_followed(bad) and not instruction.is_followed(" ")


@settings(max_examples=30, deadline=None)
@given(st.text() | st.text(alphabet='-*[]{}",.1 \n').map(lambda text: text * 50))
@example("[" * 100_000)
def test_any_answer_can_be_checked(answer):
    assert {type(one.is_followed(answer)) for one in read_instructions()} == {bool}


def test_all_checks_have_to_pass():
    both = Instruction("", [{"check": "uppercase"}, {"check": "words", "most": 1}])
    assert both.is_followed("HOT") and not both.is_followed("VERY HOT") and not both.is_followed("hot")


def test_the_included_instructions():
    found = read_instructions()
    assert 40 <= len(found) == len({one.prompt for one in found}) <= 60
    assert {check["check"] for one in found for check in one.checks} == CHECKS.keys()
    assert {name for name, *_ in GOOD_AND_BAD} == CHECKS.keys()
    refusal = "I am sorry, I cannot do that"
    assert sum(one.is_followed(refusal) for one in found) < 0.3 * len(found)


@each(
    ("line", "message"),
    [
        ("", "has no instruction"),
        ("{", "own.jsonl:1: expected a JSON object"),
        ("[]", "expected a JSON object"),
        ('{"prompt": "a", "checks": []}', "at least one check"),
        ('{"prompt": "a", "checks": [{}]}', "name of a check"),
        ('{"prompt": "a", "checks": [{"check": "word"}]}', "Did you mean 'words'"),
        ('{"prompt": "a", "checks": [{"check": "sentences"}]}', "the arguments of the check 'sentences' are wrong"),
        (
            '{"prompt": "a", "checks": [{"check": "starts", "text": 3}]}',
            "the arguments of the check 'starts' are wrong: 'text' must be a text",
        ),
        ('{"prompt": "a", "checks": [{"check": "sentences", "count": "2"}]}', "'count' must be an integer"),
        ('{"prompt": "a", "checks": [{"check": "json", "keys": "b"}]}', "'keys' must be a list of texts"),
        ('{"prompt": "a", "checks": [{"check": "bullets", "count": 2, "only": 1}]}', "'only' must be true or false"),
        ('{"prompt": "\\ud83d", "checks": [{"check": "uppercase"}]}', "half of a surrogate pair"),
        ("[" * 100_000, "expected a JSON object"),
    ],
)
def test_files_that_cannot_be_used(line, message, tmp_path):
    (tmp_path / "own.jsonl").write_text(line)
    with pytest.raises(UserError, match=message):
        read_instructions(tmp_path / "own.jsonl")


def test_answers_of_a_batch_are_those_of_single_prompts(monkeypatch):
    """Compared with greedy decoding step by step, without cache or padding."""
    model, tokenizer = tiny_model("llama"), decoder_tokenizer()
    tokenizer.chat_template = TEMPLATE
    prompts = ["the food", "cold soup and a slow waiter", "is it?"]
    answers, unfinished = generate_answers(model, tokenizer, prompts, 6)
    expected, finished = [], 0
    for prompt in prompts:
        ids = tokenizer(f"user: {prompt}\na:", add_special_tokens=False)["input_ids"]
        made = []
        with torch.no_grad():
            while len(made) < 6 and tokenizer.eos_token_id not in made:
                made.append(int(model(input_ids=torch.tensor([ids + made])).logits[0, -1].argmax()))
        expected.append(tokenizer.decode(made, skip_special_tokens=True))
        finished += tokenizer.eos_token_id in made
    assert answers == expected and unfinished == len(prompts) - finished
    monkeypatch.setattr(generating, "micro_batch_tokens", lambda model, **_: 1)
    assert generate_answers(model, tokenizer, prompts, 6)[0] == expected


def test_a_model_is_compared_with_its_base(tmp_path, monkeypatch):
    for name in ("base", "adapted"):
        model, tokenizer = tiny_model("llama"), decoder_tokenizer()
        tokenizer.chat_template = TEMPLATE
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    answers = iter([["YES"] * 10, ["yes"] * 6 + ["NO"] * 4])
    monkeypatch.setattr(instructions, "generate_answers", lambda *_: (next(answers), 0))
    lines = [{"prompt": f"answer {n}", "checks": [{"check": "uppercase"}]} for n in range(10)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = inspect_instructions(
        tmp_path / "adapted", tmp_path / "base", tmp_path / "out.json", prompts=tmp_path / "own.jsonl"
    )
    assert (report["after"]["share"], report["before"]["share"]) == (1.0, 0.4)
    assert report["difference"]["difference"] == pytest.approx(0.6) and report["difference"]["verdict"] == "helped"
    assert json.loads((tmp_path / "out.json").read_text()) == report


def test_models_that_cannot_answer_are_refused(tiny_bert, tiny_llama):
    with pytest.raises(UserError, match="has no chat template"):
        inspect_instructions(tiny_llama)
    with pytest.raises(UserError, match="masked language model, which cannot answer"):
        inspect_instructions(tiny_bert)


def test_what_cannot_be_measured_is_found_before_the_work(tiny_bert, tmp_path, monkeypatch):
    tiny_model("llama").save_pretrained(tmp_path / "model")
    tokenizer = decoder_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(
        UserError, match=r"answer of 160 do not fit into the 128 positions of '.*model'; .*--max-tokens"
    ):
        inspect_instructions(tmp_path / "model")
    monkeypatch.setattr(instructions, "generate_answers", None)
    for base, message in ((tmp_path / "no", "no model folder"), (tiny_bert, "masked language model")):
        with pytest.raises(UserError, match=message):
            inspect_instructions(tmp_path / "model", base)
