"""Replay of text that the model writes before it is adapted."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import chisquare

import acclimate.adaptation.self_replay as self_replay
from acclimate import adapt
from acclimate.adaptation.adapt import plan_run
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.replay_options import SelfReplay, list_replayed, read_shares, written_by
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder, read_json
from acclimate.base.options import build
from acclimate.data.documents import Corpus
from tests.adaptation.test_mixture import DOCUMENTS, TEMPLATE, weights
from tests.cases import each
from tests.kills import killed
from tests.tiny import decoder_tokenizer, save_tiny

SHORT = {"batch_size": 8, "learning_rate": 1e-3, "max_length": 24, "precision": "fp32", "progress": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny decoder that ends some texts, and whose generation settings ask for no plain sampling."""
    folder = save_tiny("llama", tmp_path_factory.mktemp("model") / "llama")
    made = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        made.lm_head.weight *= 25
        made.lm_head.weight[2] *= 2
    made.generation_config.update(repetition_penalty=3.0, top_k=2, min_new_tokens=6, do_sample=True)
    made.save_pretrained(folder)
    tokenizer = decoder_tokenizer("llama")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(self_replay, "CHUNK", 8)


def run(model, out, replay="self=0.3 chat=no length=24", **options):
    return adapt(model, Corpus.of(DOCUMENTS), "lm", out, replay=replay, **{**SHORT, "steps": 6, **options})


def chunks():
    return sorted((cache_folder() / "self").rglob("*.jsonl"))


def test_what_is_written_has_the_distribution_of_the_model(model, monkeypatch):
    """First tokens, and second ones given the first, are those of a softmax over the logits, with temperature."""
    monkeypatch.setattr(self_replay, "CHUNK", 4000)
    for temperature in (1.0, 0.5):
        writer = self_replay._Writer(SelfReplay(temperature, model=str(model)), 3, None, "fp32")
        loaded = writer.loaded
        rows = []
        monkeypatch.setattr(
            "acclimate.models.generating._read",
            lambda tokenizer, row, final, stop, rows=rows: rows.append(row) or self_replay.Written("", False),
        )
        start = self_replay.start_ids(loaded)
        writer._sample([start] * 4000, 2, 0, lambda count: None)
        first = Counter(row[0] for row in rows)
        wanted = following(loaded.model, start, temperature)
        check(first, wanted)
        likely = next(int(one) for one in np.argsort(-wanted) if one != loaded.tokenizer.eos_token_id)
        found = Counter(row[1] for row in rows if row[0] == likely)
        check(found, following(loaded.model, [*start, likely], temperature))


def following(model, ids: list[int], temperature: float) -> np.ndarray:
    with torch.inference_mode():
        return (model(torch.tensor([ids])).logits[0, -1].double() / temperature).softmax(-1).numpy()


def check(found: Counter[int], wanted: np.ndarray) -> None:
    total = sum(found.values())
    often = np.flatnonzero(wanted * total >= 5)
    counts = [*(found[int(one)] for one in often), total - sum(found[int(one)] for one in often)]
    expected = np.array([*wanted[often], 1 - wanted[often].sum()]) * total
    keep = expected > 1
    assert chisquare(np.array(counts)[keep], expected[keep], sum_check=False).pvalue > 1e-3
    assert total > 50 and keep.sum() > 3


def test_a_killed_run_continues_and_reads_the_same_texts(model, tmp_path, monkeypatch):
    """It writes no chunk twice, and ends with the weights and the texts of a run that was not interrupted."""
    write, numbers = self_replay._Writer.write, []

    def stop_once(self, number, on_step):
        numbers.append(number)
        if numbers == [0, 1]:
            raise KeyboardInterrupt
        return write(self, number, on_step)

    made = []
    for name in ("whole", "cut"):
        monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / name))
        if name == "cut":
            monkeypatch.setattr(self_replay._Writer, "write", stop_once)
            with pytest.raises(KeyboardInterrupt):
                run(model, tmp_path / "c")
            with killed(3):
                run(model, tmp_path / "c", save_every=2)
        result = run(model, tmp_path / name[0], save_every=2)
        made.append((result.mix, {path.name: path.read_bytes() for path in chunks()}, weights(result.out)))
    (mix, texts, whole), (other, resumed, cut) = made
    assert mix == other and texts == resumed and len(texts) > 2
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert numbers == [0, 1, *range(1, len(numbers) - 1)]
    count = len(numbers)
    run(model, tmp_path / "seed", seed=5, layout="packed")  # another training shares them
    assert len(numbers) == count
    shorter = run(model, tmp_path / "timed", "self=0.3 chat=no length=24 tokens=50", steps=None, max_minutes=0.001)
    assert len(numbers) == count and shorter.mix[1]["name"] == "self"


def test_only_texts_that_ended_end_in_their_rows(model, tmp_path, monkeypatch):
    made = []
    write = self_replay.write_rows
    monkeypatch.setattr(self_replay, "write_rows", lambda *args: made.append(write(*args)) or made[-1])
    result = run(model, tmp_path / "out", "self=0.4 chat=no length=12")
    (rows,) = made
    folder = chunks()[0].parent
    counts = [read_json(path) for path in sorted(folder.glob("*.json"))]
    whole, cut = (sum(one[name] for one in counts) for name in ("whole", "cut"))
    last = {int(rows.document[place]): rows[place][-1] for place in range(len(rows))}
    ended = [bool(end == 2) for end in last.values()]
    assert sum(ended) == whole > 0 and len(ended) - sum(ended) == cut > 0
    assert result.mix[1]["share"] == 0.4 and result.mix[1]["documents"] == whole + cut
    assert sum(one["tokens"] for one in counts) >= 0.4 * 0.9 * result.tokens
    assert [entry["share"] for entry in read_json(result.out / "acclimate.json")["replay"]] == [0.4]


def test_a_chat_model_answers_its_own_questions(model, tmp_path, monkeypatch):
    made = {}
    write = self_replay.write_rows
    monkeypatch.setattr(
        self_replay, "write_rows", lambda given, *args: made.setdefault(given.chat, write(given, *args))
    )
    monkeypatch.setattr(self_replay, "CHUNK", 64)
    result = run(model, tmp_path / "out", "self=0.4 tokens=40 length=60", max_length=60)
    assert [(one["name"], one["share"]) for one in result.mix[1:]] == [("self", 0.2), ("self (chat)", 0.2)]
    for row in made[True]:
        answer = row[row >= 0]
        assert len(answer) and (row < 0).any() and (answer[-1] == 2 or len(row) == 60)  # or it is cut
    rows = [json.loads(line) for path in chunks() for line in path.read_text().splitlines()]
    roles = [[turn["role"] for turn in row["messages"]] for row in rows if "messages" in row]
    assert roles and all(one == ["user", "assistant"] for one in roles)
    card = (result.out / "README.md").read_text()
    assert "| self (chat) | 20.0% |" in card


@pytest.mark.needs("teachers")
def test_the_model_before_teaches_what_it_wrote(model, tmp_path):
    method = {"teachers": {"teachers": {"self": str(model)}}}
    options = {"replay": "self=0.3 chat=no length=24", "steps": 2, **SHORT}
    result = adapt(model, Corpus.of(DOCUMENTS), method, tmp_path / "out", **options)
    assert result.losses["teachers"] > 0


def test_a_dry_run_and_a_share_of_zero_write_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    planned = plan_run(build(AdaptOptions, model, Corpus.of(DOCUMENTS), out=tmp_path / "out", replay="self", **SHORT))
    assert planned.steps and len(planned.mixture.texts) == 3
    run(model, tmp_path / "none", "self=0", steps=1)
    assert not chunks()


def test_models_that_cannot_write_are_refused(tiny_bert, model, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"masked language model does not write text.*--replay wiki\.txt"):
        run(tiny_bert, tmp_path / "out", "self")
    plain = save_tiny("gpt2", tmp_path / "plain")
    with pytest.raises(UserError, match="no chat template"):
        run(plain, tmp_path / "out", "self chat=yes")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (plain / name).is_file():
            content = {k: v for k, v in read_json(plain / name).items() if not k.startswith(("bos_", "eos_"))}
            (plain / name).write_text(json.dumps(content | ({"bos_token_id": None, "eos_token_id": None})))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with pytest.raises(UserError, match="no token that begins or ends a text"):
        run(plain, tmp_path / "out", "self")
    for seed, nothing in enumerate([self_replay.Written("", True), self_replay.Written(" \n", False, [9])], 9):
        monkeypatch.setattr(self_replay, "write_texts", lambda *given, made=nothing, **_: [made] * len(given[2]))
        with pytest.raises(UserError, match="nothing but empty texts"):
            run(model, tmp_path / "out", f"self chat=no seed={seed}")


@each(
    ("given", "message"),
    [
        ("self top=1", "Unknown parameter of replay 'self' 'top'"),
        ("self top_p=2", "'top_p'"),
        ("self length=0", "'length'"),
        ("self model=x", "model"),
        (["self", "wiki.txt"], "a share for each source"),
        ("self=1.5", "less than 1"),
    ],
)
def test_options_that_do_not_fit_are_explained(given, message):
    with pytest.raises(ValueError, match=message):
        read_shares(given)


def test_options_follow_the_name():
    shared = read_shares(["self=0.2 top_p=0.9 chat=no", "wiki.txt=0.1"])
    assert shared == {"self top_p=0.9 chat=no": 0.2, "wiki.txt": 0.1}
    assert read_shares("self top_p=0.9") == "self top_p=0.9"
    (one,) = list_replayed("self top_p=0.9 length=64 chat=yes")
    assert one.what == SelfReplay(top_p=0.9, length=64, chat=True) and one.share == 0.1


def test_later_stages_replay_what_the_model_before_the_first_wrote():
    assert written_by("self", "base") == {SelfReplay(model="base"): 0.1}
    assert written_by({"self top_p=0.5": 0.2, "memory:5": 0.1}, "base") == {
        SelfReplay(top_p=0.5, model="base"): 0.2,
        "memory:5": 0.1,
    }
    for given in ("a.txt", ["a.txt", "b.txt"], {"a.txt": 0.2}, Corpus.of(DOCUMENTS), None, 0.1):
        assert written_by(given, "base") == given
