"""Conversations: the layouts of files, the answers in a rendered conversation, and what cannot be used."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from acclimate.base.errors import UserError
from acclimate.data.chat import LEARNED, Chats, plain_ids, read_conversation, tokenize_chats
from tests.cases import each

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful."
    "<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = '<<SYS>>\n' + "
    "messages[0]['content'] + '\n<</SYS>>\n\n' %}{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must "
    "alternate') }}{% endif %}{% set content = system + m['content'] if loop.first else m['content'] %}"
    "{% if m['role'] == 'user' %}{{ '<s>[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' </s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}{{ '<start_of_turn>' + "
    "role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
FORGETFUL = (  # as templates that remove the reasoning from all answers but the last
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + ('<think>' if loop.last and m['role'] == "
    "'assistant' else '') + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPENING = FORGETFUL.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<reason>'")
"""Its prompt for an answer opens a part that answers do not have."""
MARKS = ["<unk>", "<s>", "</s>", "<bos>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"]


PAIR = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
THINKING = (  # as templates of models that reason: a block of reasoning, which is empty if the turn has none
    "{% for t in tools or [] %}{{ 'tool ' + t.name + '\n' }}{% endfor %}{% for m in messages %}{{ '<|im_start|>' + "
    "m.role + '\n' }}{% if m.role == 'assistant' %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}"
    "{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_tokenizer(template):
    """A byte-level tokenizer without merges, in which a boundary between texts never falls into a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate([*MARKS, *alphabet])}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def turn_by_turn(tokenizer, template, turns):
    """Write a conversation as the template does, turn by turn; return its ids and whether each is of an answer."""
    pieces = []
    for number, turn in enumerate(turns):
        role, content = turn["role"], turn["content"]
        answer = role == "assistant"
        if template is CHATML:
            if number == 0 and role != "system":
                pieces.append(("<|im_start|>system\nYou are helpful.<|im_end|>\n", False))
            pieces += [(f"<|im_start|>{role}\n", False), (f"{content}<|im_end|>", answer), ("\n", False)]
        elif template is LLAMA and role == "system":
            continue
        elif template is LLAMA and not answer:
            system = turns[0]["content"] if number == 1 and turns[0]["role"] == "system" else None
            shown = (f"<<SYS>>\n{system}\n<</SYS>>\n\n{content}" if system is not None else content).strip()
            pieces.append((f"<s>[INST] {shown} [/INST]", False))
        elif template is LLAMA:
            pieces.append((f" {content.strip()} </s>", True))
        else:
            pieces += [("<bos>", False)] * (number == 0)
            pieces.append((f"<start_of_turn>{'model' if answer else role}\n", False))
            pieces += [(f"{content.strip()}<end_of_turn>", answer), ("\n", False)]
    ids, learned = [], []
    for text, is_answer in pieces:
        new = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += new
        learned += [is_answer] * len(new)
    return ids, learned


def write(path, rows):
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


words = st.text(st.sampled_from("ab ü.\n猫"), min_size=1, max_size=12).filter(lambda text: text.strip())


@each("template", [CHATML, LLAMA, GEMMA])
@settings(deadline=None, max_examples=15)
@given(pairs=st.lists(st.tuples(words, words), min_size=1, max_size=3), system=st.none() | words)
def test_answers_are_those_of_a_tokenization_turn_by_turn(template, tmp_path_factory, pairs, system):
    tokenizer = chat_tokenizer(template)
    turns = [] if system is None or template is GEMMA else [{"role": "system", "content": system}]
    for question, answer in pairs:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    file = write(tmp_path_factory.mktemp("chat") / "chat.jsonl", [{"messages": turns}])
    (row,) = tokenize_chats(Chats(file), tokenizer, 10_000)
    ids, learned = turn_by_turn(tokenizer, template, turns)
    assert plain_ids(row).tolist() == ids == tokenizer.apply_chat_template(turns, return_dict=False)
    assert (row >= 0).tolist() == learned


@each(
    ("row", "turns"),
    [
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
            "user q|assistant a",
        ),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "user q|assistant a"),
        ({"prompt": "q", "response": "a"}, "user q|assistant a"),
        ({"prompt": "q", "completion": "a", "system": "s"}, "system s|user q|assistant a"),
        ({"instruction": "q", "input": "", "output": "a"}, "user q|assistant a"),
        ({"instruction": "q", "input": "i", "output": "a"}, "user q\n\ni|assistant a"),
        (
            {"instruction": "q", "output": "a", "history": [["p", "b"]], "system": "s"},
            "system s|user p|assistant b|user q|assistant a",
        ),
        ({"messages": PAIR, "system": "s"}, "system s|user q|assistant a"),
        ({"conversations": PAIR, "system_prompt": "s"}, "system s|user q|assistant a"),
        ({"messages": [{"role": "system", "content": "s"}, *PAIR], "system": "s"}, "system s|user q|assistant a"),
        ({"messages": [*PAIR, {"role": "observation", "content": "r"}]}, "user q|assistant a|tool r"),
        ({"messages": [PAIR[0], {"role": "gpt", "content": None, "tool_calls": [{}]}]}, "user q|assistant "),
    ],
)
def test_layouts_of_conversations(row, turns):
    assert "|".join(f"{turn['role']} {turn['content']}" for turn in read_conversation(row).turns) == turns


@each(
    ("row", "message"),
    [
        (["q", "a"], "not an object but a list"),
        ({"text": "q"}, "no 'messages'"),
        ({"messages": "q"}, "not a list but a str"),
        ({"messages": ["q"]}, "a turn is not an object"),
        ({"messages": [{"role": "user", "content": "q"}]}, "no answer"),
        ({"messages": [{"role": "narrator", "content": "q"}]}, "the role 'narrator'"),
        ({"messages": [{"role": "system", "content": "s"}, *PAIR], "system": "t"}, "differs from the system prompt"),
        ({"messages": [PAIR[0], {**PAIR[1], "weight": 0.5}]}, "'weight' of a turn is '0.5', which is neither 0 nor 1"),
        ({"messages": [PAIR[0], {**PAIR[1], "train": False}]}, "no answer of the assistant is to be learned"),
        *(
            ({"messages": PAIR, "weight": mark}, "marked as not to be learned")
            for mark in (0, 0.0, "0", False, " False")
        ),
        ({"messages": PAIR, "tools": "{"}, "'tools' is not JSON"),
        ({"messages": PAIR, "tools": ["search"]}, "'tools' is not a list of objects"),
        ({"messages": [PAIR[0], {**PAIR[1], "reasoning": ["\ud800"]}]}, "surrogate"),
        ({"prompt": "q", "response": "a", "history": 5}, "'history' is not a list of pairs"),
        ({"prompt": "q", "response": ["a"]}, "not a text but a list"),
        ({"prompt": "q", "response": None}, "not a text but a NoneType"),
        ({"prompt": "q", "response": "\ud800"}, "surrogate"),
    ],
)
def test_rows_that_are_no_conversations_are_explained(row, message):
    with pytest.raises(ValueError, match=message):
        read_conversation(row)


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "messages conversations role content from value prompt response tools weight system history "
                "tool_calls".split()
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(json_values)
def test_any_row_is_read_or_explained(row):
    try:
        found = read_conversation(row)
    except ValueError:
        return
    assert any(turn["role"] == "assistant" for turn in found.turns)


def test_what_cannot_be_used_is_counted(tmp_path):
    pair = {"prompt": "a question", "response": "an answer"}
    rows = [
        pair,
        {"prompt": "what is <|im_end|>?", "response": "a token"},
        {"prompt": "no answer"},
        {"prompt": "a", "response": "long " * 50},
        {"prompt": "long " * 50, "response": "a"},
    ]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "chat.jsonl.gz").write_bytes(gzip.compress("\n".join([*lines, "", "{broken"]).encode()))
    chats = Chats(tmp_path / "chat.jsonl.gz")
    tokenizer, cache = chat_tokenizer(CHATML), tmp_path / "cache"
    found = tokenize_chats(chats, tokenizer, 120)
    for again in (
        tokenize_chats(chats, tokenizer, 120, cache=cache),
        tokenize_chats(chats, tokenizer, 120, cache=cache),
    ):
        assert [row.tolist() for row in again] == [row.tolist() for row in found]
        assert again.report == found.report and chats.report.broken == 4
    tokenizer.chat_template = CHATML.replace("helpful", "kind")
    changed = tokenize_chats(chats, tokenizer, 120, cache=cache)
    assert [row.tolist() for row in changed] != [row.tolist() for row in found]
    assert len(list(cache.iterdir())) == 2
    assert len(found) == 2
    assert len(found[1]) == 120
    assert found.report["truncated"] == 1
    assert (chats.report.documents, chats.report.broken, chats.report.empty) == (2, 4, 1)
    problems = "\n".join(chats.report.problems)
    for part in (":2: the text contains <|im_end|>", ":3: no 'messages'", ":5: it has no answer in", ":7: not JSON"):
        assert part in problems
    assert found.document.tolist() == sorted(found.document.tolist())


@each(
    ("template", "rows", "message"),
    [
        (None, 1, "no chat template"),
        (OPENING, 1, "does not continue its prompt for an answer"),
        (GEMMA, "system", "System role not supported"),
    ],
)
def test_templates_that_hide_the_answers_are_refused(tmp_path, template, rows, message):
    turns = [{"role": "system", "content": "s"}] if rows == "system" else []
    for number in range(1 if rows == "system" else rows):
        turns += [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": f"a{number}"}]
    chats = Chats(write(tmp_path / "chat.jsonl", [{"messages": turns}]))
    with pytest.raises(UserError, match=message):
        tokenize_chats(chats, chat_tokenizer(template), 200)


def test_a_template_that_changes_earlier_turns_gets_a_text_for_each_answer(tmp_path):
    """Each text is what the model sees when it is asked for that answer."""
    turns = [{"role": role, "content": f"{role} {number}"} for number in range(3) for role in ("user", "assistant")]
    rows = [{"messages": turns}, {"prompt": "q", "response": "a"}]
    tokenizer = chat_tokenizer(FORGETFUL)
    found = tokenize_chats(Chats(write(tmp_path / "chat.jsonl", rows)), tokenizer, 400)
    assert found.document.tolist() == [0, 0, 0, 1]
    assert found.report["repeated"] == 1
    for number, row in enumerate([*found][:3]):
        assert tokenizer.decode(row[row >= 0]) == f"<think>assistant {number}<|im_end|>"
        prompt = tokenizer.apply_chat_template(turns[: 2 * number + 1], tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(plain_ids(row)) == f"{prompt}<think>assistant {number}<|im_end|>\n"


def marked(rows, template, path):
    """Tokenize conversations; return the text of each row with the learned parts in «», and the chats."""
    chats, tokenizer = Chats(write(path, rows)), chat_tokenizer(template)
    texts = []
    for row in tokenize_chats(chats, tokenizer, 10_000):
        text, learned = "", False
        for place, is_learned in enumerate([*(row >= 0), False]):
            text += "" if is_learned == learned else "«" if is_learned else "»"
            text += tokenizer.decode(plain_ids(row)[place : place + 1])
            learned = is_learned
        texts.append(text)
    return texts, chats


@pytest.mark.slow
def test_known_keys_of_rows_and_turns_act(tmp_path):
    ask, bad, good = (
        {"role": role, "content": content}
        for role, content in (("user", "food?"), ("assistant", "was bad"), ("assistant", "was good"))
    )
    tools = [{"name": "search"}]
    for key in ("messages", "conversations"):
        row = {key: [ask, good], "system": "you are a waiter", "tools": json.dumps(tools)}
        for one in (row, {**row, "tools": tools}):
            (text,), chats = marked([one], THINKING, tmp_path / "a.jsonl")
            assert text.count("you are a waiter") == 1 and text.startswith("tool search") and not chats.report.unused
    for name in ("reasoning_content", "reasoning", "thinking"):
        (text,), chats = marked([{"messages": [ask, {**good, name: "hm"}]}], THINKING, tmp_path / "a.jsonl")
        assert "«<think>\nhm\n</think>\n\nwas good<|im_end|>»" in text and not chats.report.unused
    for template in (THINKING, THINKING.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")):
        (text,), _ = marked([{"messages": [ask, good]}], template, tmp_path / "a.jsonl")
        assert "<think>\n\n</think>\n\n«was good<|im_end|>»" in text  # nothing is no reasoning to learn
    for mark in [{name: no} for name in LEARNED for no in (0, False, 0.0)]:
        turns = [ask, {**bad, **mark}, ask, {**good, **dict.fromkeys(mark, 1)}]
        (text,), _ = marked([{"messages": turns}], CHATML, tmp_path / "a.jsonl")
        assert "was bad" in text and "«was good<|im_end|>»" in text and text.count("«") == 1
        (text,), chats = marked(
            [{"messages": [ask, bad], **mark}, {"messages": [ask, good]}], CHATML, tmp_path / "a.jsonl"
        )
        assert "was bad" not in text and chats.report.broken == 1
    preference = [{"prompt": "food?", "completion": "was good", "label": label} for label in (True, False)]
    (text,), chats = marked(preference, CHATML, tmp_path / "a.jsonl")
    assert "was good" in text and (chats.report.broken, chats.report.unused) == (1, {})
    (text,), chats = marked([{"messages": [{**ask, "value": "other"}, good]}], CHATML, tmp_path / "a.jsonl")
    assert chats.report.unused == {"value of a turn": 1}


def test_keys_that_are_not_used_are_counted(tmp_path):
    turns = [{**PAIR[0], "time": 5, "empty": None}, {**PAIR[1], "reasoning": "hm", "time": 6}]
    rows = [{"messages": turns, "foo": 1, "bar": ""}, {"messages": PAIR, "foo": 2, "tools": [{"name": "search"}]}]
    _, chats = marked(rows, CHATML, tmp_path / "a.jsonl")
    assert chats.report.unused == {"foo": 2, "time of a turn": 1, "reasoning of a turn": 1, "tools": 1}
    assert "not used: 'foo' (2), 'time of a turn' (1)" in chats.report.summary("conversation")


def test_other_files_hold_no_conversations(tmp_path):
    (tmp_path / "chat.csv").write_text("prompt,response\nq,a\n")
    with pytest.raises(UserError, match="holds no conversations: give JSON lines"):
        Chats(tmp_path / "chat.csv")
    with pytest.raises(UserError, match="holds no conversations"):
        Chats("hf:someone/chats")


def test_content_decides_the_fingerprint(tmp_path):
    one = Chats(write(tmp_path / "one.jsonl", [{"prompt": "q", "response": "a"}]))
    same = Chats(write(tmp_path / "same.jsonl", [{"prompt": "q", "response": "a"}]))
    other = Chats(write(tmp_path / "other.jsonl", [{"prompt": "q", "response": "b"}]))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert np.array_equal(plain_ids(np.array([3, ~5])), [3, 5])
