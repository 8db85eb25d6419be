"""Replay: shares of the tokens, budgets, and runs that read several texts."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.replay_options import list_replayed, read_shares
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.chat import Chats, plain_ids, tokenize_chats
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.sampler import MixtureSampler
from acclimate.engine.steps import Engine
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each
from tests.kills import killed
from tests.tiny import TEXTS, decoder_tokenizer, save_tiny

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
GENERAL = [f"they {text} or {text} {number}" for text in TEXTS for number in range(2)]
SHORT = {"batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}

sources = st.lists(
    st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 20)), min_size=2, max_size=4
)


def sampler(given_sources, batch_size, seed=0):
    lengths = [np.array(each) for each, _ in given_sources]
    total = sum(weight for _, weight in given_sources)
    shares = [weight / total for _, weight in given_sources]
    return MixtureSampler(lengths, shares, batch_size, seed), lengths, shares


def in_turn(mix, lengths, changes, steps):
    """Choose texts token by token: after each, every source that has read less than is scheduled gets a text."""
    first = np.cumsum([0, *map(len, lengths)])
    read, taken, chosen = [0] * len(lengths), [0] * len(lengths), []
    scheduled = [0.0] * len(lengths)
    for step in range(steps):
        if step in dict(changes):
            shares, start, total = dict(changes)[step], scheduled, 0

        def late(total):
            now = [begin + total * share for begin, share in zip(start, shares, strict=True)]  # noqa: B023
            return now, [i for i, share in enumerate(shares) if share and read[i] < now[i]]  # noqa: B023

        while len(chosen) < (step + 1) * mix.batch_size:
            behind = late(total + 1)[1]
            if not behind:
                total += 1
                continue
            number = behind[0]  # further sources that are behind may be left for the next step
            (index,) = mix._sources[number].between(taken[number], taken[number] + 1)
            chosen.append(int(first[number]) + index)
            read[number] += int(lengths[number][index])
            taken[number] += 1
        while not late(total + 1)[1]:
            total += 1
        scheduled = late(total)[0]
    return chosen


@settings(deadline=None, max_examples=40)
@given(sources, st.integers(1, 12), st.integers(0, 3), st.data())
def test_steps_read_what_the_rule_chooses_text_by_text(given_sources, batch_size, seed, data):
    mix, lengths, shares = sampler(given_sources, batch_size, seed)
    changes = [(0, shares)]
    for step in sorted(data.draw(st.sets(st.integers(1, 14), max_size=4))):
        weight = st.sampled_from([0, 0, *range(1, 9)])
        weights = data.draw(st.lists(weight, min_size=len(lengths), max_size=len(lengths)))
        if sum(weights):
            changes.append((step, [weight / sum(weights) for weight in weights]))
            mix.change(*changes[-1])
    expected = in_turn(mix, lengths, changes, 15)
    for step in (14, *range(15)):  # a resumed run starts in the middle
        assert sorted(mix.of(step)) == sorted(expected[step * batch_size : (step + 1) * batch_size])


@settings(deadline=None, max_examples=8)
@given(sources, st.integers(1, 12), st.data())
def test_realized_tokens_follow_shares_that_change_at_every_step(given_sources, batch_size, data):
    """The deviation is that of single texts, however often the shares change."""
    mix, lengths, _ = sampler(given_sources, batch_size)
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    scheduled, before = np.zeros(len(lengths)), 0
    for step in range(40):
        shares = rng.dirichlet(np.ones(len(lengths))) * (rng.random(len(lengths)) < 0.7)
        shares = shares / shares.sum() if shares.any() else np.eye(len(lengths))[0]
        mix.change(step, shares)
        read = mix.read(step + 1)
        scheduled += shares * (sum(read) - before)
        before = sum(read)
        for texts, share in zip(np.split(np.array(mix.of(step)), 1), [shares], strict=True):
            number = np.searchsorted(np.cumsum([len(each) for each in lengths]), texts, side="right")
            assert all(share[number] > 0)
    longest = max(map(max, lengths))
    assert np.abs(np.array(mix.read(40)) - scheduled).max() <= (2 * len(lengths) + 1) * longest
    assert np.abs(np.array(mix.read(40)) - mix.scheduled(40)).max() <= longest + 1


@settings(deadline=None, max_examples=25)
@given(sources, st.integers(1, 12), st.integers(1, 100))
def test_each_source_is_within_a_text_of_its_share(given_sources, batch_size, steps):
    mix, lengths, shares = sampler(given_sources, batch_size)
    read = mix.read(steps)
    every = np.concatenate(lengths)
    assert sum(read) == sum(int(every[index]) for step in range(steps) for index in mix.of(step))
    longest = int(every.max())
    for tokens, share in zip(read, shares, strict=True):
        assert abs(tokens - share * sum(read)) <= len(shares) * longest + 1
        if sum(read) > 100 * (len(shares) * longest + 1):
            assert abs(tokens / sum(read) - share) < 0.01


@settings(deadline=None, max_examples=30)
@given(sources, st.integers(1, 12), st.sampled_from([0.3, 1, 2.5]))
def test_epochs_are_those_of_the_domain_text(given_sources, batch_size, epochs):
    mix, lengths, _ = sampler(given_sources, batch_size)
    steps = mix.steps_for(epochs)
    wanted = int(np.ceil(epochs * len(lengths[0])))

    def domain_texts(count):
        return sum(index < len(lengths[0]) for step in range(count) for index in mix.of(step))

    assert domain_texts(steps) >= wanted
    assert steps == 1 or domain_texts(steps - 1) <= wanted


def test_each_source_is_read_in_epochs_and_no_step_has_duplicates():
    chance = np.random.default_rng(0)
    mix = MixtureSampler([chance.integers(1, 90, 60), chance.integers(1, 30, 40)], [0.7, 0.3], 12, 3)
    read = []
    for step in range(60):
        texts = mix.of(step)
        assert len(set(texts)) == 12
        read += texts
    for first, count in ((0, 60), (60, 40)):
        mine = [index for index in read if first <= index < first + count]
        for epoch in range(len(mine) // count):
            assert sorted(mine[epoch * count : (epoch + 1) * count]) == list(range(first, first + count))


def test_a_late_step_needs_no_earlier_ones():
    lengths = [np.arange(1, 90), np.arange(1, 30)]
    late = MixtureSampler(lengths, [0.9, 0.1], 16, 0)
    assert len(late.of(10**9)) == 16
    assert late.read(10**9)[1] / sum(late.read(10**9)) == pytest.approx(0.1, abs=1e-6)


def run(model, out, **options):
    return adapt(model, Corpus.of(DOCUMENTS), "mlm", out, **{**SHORT, **options})


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_shares_are_realized_and_recorded(tiny_bert, tmp_path, caplog):
    (tmp_path / "general.txt").write_text("\n".join(GENERAL))
    (tmp_path / "more.txt").write_text("\n".join(TEXTS[:3]))
    given_shares = {str(tmp_path / "general.txt"): 0.2, str(tmp_path / "more.txt"): 0.1}
    result = run(tiny_bert, tmp_path / "out", epochs=3, replay=given_shares)
    assert [text["name"] for text in result.mix] == ["domain text", "general.txt", "more.txt"]
    assert [text["share"] for text in result.mix] == [0.7, 0.2, 0.1]
    for text in result.mix:
        assert text["realized"] == pytest.approx(text["share"], abs=0.01)
    assert sum(text["tokens"] for text in result.mix) == result.tokens
    assert result.mix[0]["epochs"] == pytest.approx(3, abs=0.2)
    assert result.mix[2]["epochs"] > 3  # a short text repeats
    manifest = read_json(tmp_path / "out" / "acclimate.json")
    assert manifest["result"]["mix"] == result.mix
    assert [entry["share"] for entry in manifest["replay"]] == [0.2, 0.1]
    last = json.loads((tmp_path / "out" / "log.jsonl").read_text().splitlines()[-1])
    assert last["mix"].keys() == {"domain text", "general.txt", "more.txt"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| replayed text 1 | 20.0% | " in card and "general.txt" not in card
    again = run(tiny_bert, tmp_path / "out", epochs=3, replay=given_shares)
    assert (again.mix, again.steps) == (result.mix, result.steps)


def test_a_token_budget_counts_all_tokens(tiny_bert, tmp_path):
    result = run(tiny_bert, tmp_path / "out", tokens=2000, replay={Corpus.of(GENERAL): 0.3})
    assert result.tokens == pytest.approx(2000, rel=0.1)
    assert result.mix[1]["realized"] == pytest.approx(0.3, abs=0.02)


def test_a_share_of_zero_is_no_replay(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "with", steps=3, replay={Corpus.of(GENERAL): 0})
    run(tiny_bert, tmp_path / "without", steps=3)
    with_replay, without = weights(tmp_path / "with"), weights(tmp_path / "without")
    assert all(torch.equal(with_replay[name], without[name]) for name in without)
    assert "mix" not in (tmp_path / "with" / "log.jsonl").read_text()


def test_a_killed_run_resumes_with_the_same_texts(tiny_bert, tmp_path):
    options = {"steps": 6, "save_every": 2, "replay": {Corpus.of(GENERAL): 0.25}}
    whole = run(tiny_bert, tmp_path / "whole", **options)
    with killed(3):
        run(tiny_bert, tmp_path / "cut", **options)
    cut = run(tiny_bert, tmp_path / "cut", **options)
    assert cut.mix == whole.mix
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.needs("dga")
def test_importance_is_that_of_the_domain_text(tiny_bert, tmp_path):
    measured = []
    for name, options in (("with", {"replay": Corpus.of(GENERAL)}), ("without", {})):
        adapt(
            tiny_bert, Corpus.of(DOCUMENTS), "dga importance_tokens=200", tmp_path / name, steps=2,
            **SHORT, **options,
        )  # fmt: skip
        measured.append(read_json(tmp_path / name / "importance.json"))
    assert measured[0] == measured[1]
    one, other = weights(tmp_path / "with"), weights(tmp_path / "without")
    assert any(not torch.equal(one[name], other[name]) for name in one)


@each(
    ("options", "message"),
    [
        ({"replay": 0.1}, "'replay' gives the share 0.1 but no text"),
        ({"replay_share": 0.1}, "Give it as replay: wiki.txt=0.1"),
        ({"replay": "memory:6", "chat": "a"}, "Give it as replay: chat:dialogues.jsonl=0.05"),
        ({"replay": ["memory:6=0.1", "reservoir:5=0.1"]}, "keeps texts twice"),
        ({"replay": {"a.txt": 0.7, "chat:b.jsonl": 0.4}}, "leave nothing for the domain text"),
        ({"replay": {"a.txt": 1.2}}, "less than 1, not 1.2"),
        ({"replay": {"a.txt": "much"}}, "less than 1, not 'much'"),
        ({"replay": ["a.txt=0.1", "b.txt"]}, "'b.txt' has none"),
        ({"replay": "missing.txt"}, "There is no file 'missing.txt'"),
        ({"replay": "empty.txt"}, "no usable document"),
        ({"replay": "chat:c.jsonl"}, "for causal language models; a masked language model"),
    ],
)
def test_invalid_sources_are_explained(tiny_bert, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the food\n")
    (tmp_path / "empty.txt").write_text("\n")
    for name in ("b.jsonl", "c.jsonl"):
        (tmp_path / name).write_text('{"prompt": "the", "response": "food"}\n')
    with pytest.raises(UserError, match=message):
        run(tiny_bert, tmp_path / "out", steps=1, **options)
    assert not (tmp_path / "out").exists()


TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ': ' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """The folder of a tiny decoder with a chat template, and a file of conversations."""
    folder = tmp_path_factory.mktemp("talking")
    save_tiny("llama", folder / "llama")
    tokenizer = decoder_tokenizer("llama")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "llama")
    turns = [(number, {"prompt": text, "response": f"the {text}"}) for number, text in enumerate(TEXTS)]
    (folder / "chat.jsonl").write_text("\n".join(json.dumps(row) for _, row in turns))
    return folder / "llama", folder / "chat.jsonl"


def test_a_tokenizer_without_a_chat_template_is_refused_before_any_text_is_tokenized(talking, tmp_path, monkeypatch):
    plain = save_tiny("llama", tmp_path / "plain")
    monkeypatch.setattr(importlib.import_module("acclimate.adaptation.inputs"), "tokenize", None)
    with pytest.raises(UserError, match="no chat template"):
        adapt(plain, Corpus.of(TEXTS), "lm", tmp_path / "out", replay=f"chat:{talking[1]}", steps=1, progress=False)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_only_answers_are_learned(talking, layout):
    """Loss and gradients equal transformers' with labels at the answers, next to texts that are learned whole."""
    model, file = talking
    loaded = load_language_model(model)
    attach(loaded.model)
    chats = list(tokenize_chats(Chats(file), loaded.tokenizer, 80))
    texts = [np.array(loaded.tokenizer(text)["input_ids"]) for text in TEXTS[:3]]
    plain = transformers.AutoModelForCausalLM.from_pretrained(model)
    total, count = torch.zeros(()), 0
    for row in [*chats, *texts]:
        ids = torch.tensor(plain_ids(row))[None].long()
        labels = torch.where(torch.tensor(row)[None] < 0, -100, ids)
        assert (labels[:, 1:] >= 0).any()
        count += (found := int((labels[:, 1:] >= 0).sum()))
        total = total + plain(input_ids=ids, labels=labels).loss * found
    (total / count).backward()
    collator = Collator.of(loaded.tokenizer, RandomMasking(), loaded.kind, 10_000, layout)
    batches = collator([*chats, *texts], np.random.default_rng(0))
    assert sum(int((batch.labels >= 0).sum()) for batch in batches) == count
    terms = Engine(loaded.model, [LanguageModelling()]).step(batches)
    assert terms["clm"].item() == pytest.approx((total / count).item(), rel=1e-5)
    gradients = {name: value.grad for name, value in plain.named_parameters()}
    for name, value in loaded.model.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], atol=1e-5, rtol=1e-3)


def test_conversations_are_mixed_in(talking, tmp_path):
    model, file = talking
    result = adapt(
        model, Corpus.of(DOCUMENTS), "lm", tmp_path / "out", **{**SHORT, "max_length": 80},
        epochs=3, replay={Corpus.of(GENERAL): 0.2, f"chat:{file}": 0.3},
    )  # fmt: skip
    assert [text["name"] for text in result.mix] == ["domain text", "memory", "chat.jsonl"]
    whole = tokenize_chats(Chats(file), transformers.AutoTokenizer.from_pretrained(model), 1000)
    assert result.mix[2]["documents"] == len(TEXTS)
    assert result.mix[2]["truncated"] == sum(whole.lengths > 80) > 0
    for text, share in zip(result.mix, (0.5, 0.2, 0.3), strict=True):
        assert text["realized"] == pytest.approx(share, abs=0.02)
    assert sum(text["tokens"] for text in result.mix) == result.tokens


def test_what_is_read_and_left_out_of_replayed_texts_is_said(talking, tmp_path, capsys, caplog):
    model, file = talking
    broken = tmp_path / "chat.jsonl"
    broken.write_text(file.read_text() + '\n{"messages": [{"role": "user", "content": [1]}]}\n')
    general = tmp_path / "general.txt"
    general.write_text("\n".join([*GENERAL, GENERAL[0]]))
    replay = {str(general): 0.2, f"chat:{broken}": 0.3}
    for number, progress in enumerate((False, True, False)):  # the rows are in the cache from the second on
        caplog.clear()
        adapt(
            *(model, Corpus.of(DOCUMENTS), "lm", tmp_path / f"out-{number}"),
            **{**SHORT, "max_length": 80, "progress": progress}, steps=1, replay=replay,
        )  # fmt: skip
        said = capsys.readouterr().err if progress else caplog.text
        assert f"{len(TEXTS):,} conversations from 1 source; left out: 1 broken; first problem: " in said
        assert not progress or f"Replay: {len(GENERAL)} documents from 1 source; left out: 1 duplicate" in said


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["a.txt=0.1", "b=c.txt=0.2", "d.txt", "e.txt=1.5", "=0.1", "f=x", "g.txt="]), max_size=4)
    | st.dictionaries(st.text(max_size=3), st.floats() | st.text(max_size=4) | st.booleans() | st.none(), max_size=3)
    | st.text(max_size=8)
)
def test_sources_keep_their_form_or_get_a_valid_share_each(sources):
    try:
        found = read_shares(sources)
    except ValueError:
        return
    if isinstance(found, dict):
        assert found and all(0 <= share < 1 for share in found.values())
    else:
        assert found == sources


def test_replay_of_the_domain_text_is_said(tiny_bert, tmp_path, caplog):
    (tmp_path / "text.txt").write_text("\n".join(DOCUMENTS))
    adapt(
        tiny_bert, tmp_path / "text.txt", "mlm", tmp_path / "out", steps=1, replay=f"{tmp_path / 'text.txt'}=0.2",
        **SHORT,
    )  # fmt: skip
    assert "'text.txt' is replayed and is domain text as well" in caplog.text


def test_flags_set_the_share_of_each_source():
    given = AdaptOptions("m", replay=["a.txt=0.1", "b=c.txt=.25", "chat:c.jsonl=0.2"])
    assert given.replay == {"a.txt": 0.1, "b=c.txt": 0.25, "chat:c.jsonl": 0.2}
    several = list_replayed(["chat:c.jsonl", "a.txt", "memory:5", "b.txt"])
    assert several == [("text", ["a.txt", "b.txt"], 0.1), ("chat", "c.jsonl", 0.1), ("memory", 5, 0.1)]


def test_a_method_that_does_not_train_refuses_replay(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="does not train"):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "none", tmp_path / "out", replay=Corpus.of(GENERAL), **SHORT)
