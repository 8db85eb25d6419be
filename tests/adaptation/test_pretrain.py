"""Pre-training from text to model folders: architectures, intermediate models, kills, and the command line."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file

import acclimate
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine.trainer import StepTrainer
from tests.cases import each
from tests.kills import counted, killed
from tests.test_cli import call
from tests.tiny import ENCODERS, TEXTS, tiny_tokenizer

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 66}
SHORT = {
    "steps": 5, "batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "warmup": 0.1,
    "precision": "fp32", "progress": False,
}  # fmt: skip


def run(out, architecture="bert", **options):
    options = {"changes": TINY, **SHORT, **options}
    return acclimate.pretrain(Corpus.of(DOCUMENTS), out, architecture=architecture, **options)


def same(first, second):
    a, b = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def load(encoders, decoders):
    """Load and use models with transformers alone; the code is also run where acclimate is never imported."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    for folder in encoders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        assert model.config.vocab_size == len(tokenizer)
        assert model.config.pad_token_id == tokenizer.pad_token_id
        text = tokenizer(f"the {tokenizer.mask_token} was good", return_tensors="pt")
        assert (text["input_ids"] == tokenizer.mask_token_id).sum() == 1
        assert model.eval()(**text).logits.isfinite().all()
        long = tokenizer("a b " * 99, truncation=True, return_tensors="pt")
        assert model(**long).logits.shape[1] == tokenizer.model_max_length == 64, tokenizer.model_max_length
    for folder in decoders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        assert model.config.vocab_size == len(tokenizer) and tokenizer.mask_token is None
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id is not None
        text = tokenizer("the food", return_tensors="pt")
        assert text["input_ids"][0, 0] == tokenizer.bos_token_id and tokenizer.eos_token_id not in text["input_ids"]
        ids = model.generate(**text, max_new_tokens=5, do_sample=False)
        assert len(ids[0]) > text["input_ids"].shape[1]
        assert tokenizer.decode(tokenizer("A  b\n C")["input_ids"], skip_special_tokens=True) == "A  b\n C"


NARROW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 66}


@pytest.mark.parametrize("kinds", [["roberta"], pytest.param(sorted(ENCODERS), marks=pytest.mark.slow)])
def test_architectures_train_from_scratch_and_load_without_acclimate(tmp_path, kinds):
    encoders = []
    for kind in kinds:
        behind = kind in ("roberta", "xlm-roberta", "camembert")
        changes = {**TINY, "max_position_embeddings": 66 if behind else 64}
        result = run(tmp_path / kind, kind, steps=2, keep_steps=[1], changes=changes)
        assert result.steps == 2
        assert result.losses["mlm"] > 0
        encoders += [tmp_path / kind, tmp_path / kind / "step-000001"]
        assert not list(tmp_path.glob(f".{kind}*")), "the working folders are removed"
    decoders = [tmp_path / kind for kind in ("gpt2", "llama")]
    for folder in decoders:
        changes = NARROW if folder.name == "gpt2" else {**NARROW, "intermediate_size": 48}
        result = run(folder, folder.name, objective="causal", changes=changes, max_length=None, steps=2)
        manifest = read_json(folder / "acclimate.json")
        assert result.losses["clm"] > 0 and not result.masked
        assert (manifest["max_length"], manifest["layout"], manifest["documents"]) == (66, "packed", "apart")
        assert manifest["text"]["rows"]["dropped_tokens"] == 0
    card = (tmp_path / "llama" / "README.md").read_text()
    assert "A causal language model trained from scratch." in card and "pipeline_tag: text-generation" in card
    if len(kinds) == 1:
        return load(encoders, decoders)  # in a process of its own in the slow case
    folders = [[str(folder) for folder in group] for group in (encoders, decoders)]
    clean = "import sys\nassert not any(name.startswith('acclimate') for name in sys.modules)"
    code = f"{inspect.getsource(load)}\nload(*{folders})\n{clean}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_killed_decoder_resumes_with_the_same_result(tmp_path):
    options = {"architecture": None, "objective": "causal", "size": "tiny", "changes": NARROW, "documents": "joined"}
    run(tmp_path / "whole", **options)
    with killed(3):
        run(tmp_path / "cut", save_every=2, **options)
    with counted() as steps:
        run(tmp_path / "cut", save_every=2, **options)
    assert steps == [2, 3, 4]
    assert same(tmp_path / "whole", tmp_path / "cut")
    assert read_json(tmp_path / "cut" / "acclimate.json")["settings"]["configuration"]["model_type"] == "llama"


@pytest.mark.slow
def test_the_loss_falls(tmp_path):
    run(tmp_path / "out", steps=60, learning_rate=6e-3)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 1.5


def test_intermediate_models_are_those_of_their_steps_and_change_nothing(tmp_path, monkeypatch):
    run(tmp_path / "plain")
    seen, step = {}, StepTrainer.training_step

    def watched(self, model, *args, **kwargs):
        # Step n + 1 starts from the weights after step n.
        seen[self.state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}
        return step(self, model, *args, **kwargs)

    monkeypatch.setattr(StepTrainer, "training_step", watched)
    run(tmp_path / "kept", keep_steps=[0, 2, 3, 5])
    assert sorted(path.name for path in (tmp_path / "kept").glob("step-*")) == [
        "step-000000", "step-000002", "step-000003", "step-000005"
    ]  # fmt: skip
    for number in (0, 2, 3):
        for name, value in load_file(tmp_path / "kept" / f"step-00000{number}" / "model.safetensors").items():
            assert torch.equal(value, seen[number][name]), (number, name)
    assert same(tmp_path / "kept" / "step-000005", tmp_path / "kept")
    assert same(tmp_path / "plain", tmp_path / "kept")
    assert not same(tmp_path / "kept" / "step-000002", tmp_path / "kept" / "step-000003")
    card = read_json(tmp_path / "kept" / "step-000003" / "acclimate.json")
    assert card["result"]["steps"] == 3
    assert card["settings"]["configuration"]["hidden_size"] == 32


@pytest.mark.parametrize("save_every", [pytest.param(2, marks=pytest.mark.slow), None])
def test_a_killed_run_resumes_with_the_same_result(tmp_path, monkeypatch, save_every):
    keep = {"keep_steps": [1, 3, 4]}
    run(tmp_path / "whole", **keep)
    with killed(3):
        run(tmp_path / "cut", save_every=save_every, **keep)
    assert not (tmp_path / "cut").exists()
    assert (tmp_path / ".cut.work" / "kept" / "step-000003" / "model.safetensors").is_file()

    def never(*_, **__):
        raise AssertionError("the tokenizer was trained before")

    verb = sys.modules["acclimate.adaptation.pretrain"]
    monkeypatch.setattr(verb, "train_tokenizer", never)
    with counted() as steps:
        run(tmp_path / "cut", save_every=save_every, **keep)
    assert steps == [3, 4], "a kept step is a checkpoint as well"
    for folder in ("", "step-000001", "step-000003", "step-000004"):
        assert same(tmp_path / "whole" / folder, tmp_path / "cut" / folder)
    with counted() as steps:
        assert run(tmp_path / "cut", save_every=save_every, **keep).steps == 5
    assert not steps, "a finished run is not repeated"
    assert not list(tmp_path.glob(".cut*"))


def test_same_seed_same_weights_other_seed_other_start(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tmp_path / name, steps=2, seed=seed, keep_steps=[0])
    assert same(tmp_path / "a", tmp_path / "b")
    assert same(tmp_path / "a" / "step-000000", tmp_path / "b" / "step-000000")
    assert not same(tmp_path / "a" / "step-000000", tmp_path / "c" / "step-000000")


def test_a_given_tokenizer_is_used_unchanged(tiny_bert, tmp_path):
    run(tmp_path / "out", tokenizer=tiny_bert, steps=1)
    given, kept = (transformers.AutoTokenizer.from_pretrained(path) for path in (tiny_bert, tmp_path / "out"))
    assert given.get_vocab() == kept.get_vocab()
    assert kept.model_max_length == 66


def test_an_early_stopped_model_can_be_adapted(tmp_path):
    run(tmp_path / "general", keep_steps=[2])
    options = {key: value for key, value in SHORT.items() if key != "steps"}
    result = acclimate.adapt(
        tmp_path / "general" / "step-000002", Corpus.of(TEXTS), "mlm", tmp_path / "domain", steps=2, **options
    )
    assert result.steps == 2


@pytest.mark.slow
def test_a_time_budget_keeps_the_steps_it_reaches(tmp_path):
    result = run(tmp_path / "out", steps=None, max_minutes=0.03, keep_steps=[1, 10**7])
    assert 1 < result.steps < 10**6
    assert 1 < result.seconds < 20
    assert [path.name for path in (tmp_path / "out").glob("step-*")] == ["step-000001"]
    rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert rates[-1] < 2e-4, "the learning rate decays with the time"


@each(
    ("options", "message"),
    [
        ({"steps": 5, "epochs": 1}, "one of"),
        ({"keep_steps": [9]}, "step 9, but the training has only 5"),
        ({"keep_steps": [-1]}, "0 or more"),
        ({"steps": None, "epochs": 1, "keep_steps": [99]}, "step 99, but the training has only 6"),
        ({"vocab_size": 5_000}, "vocabulary of .* tokens, not 5,000"),
        ({"architecture": "brt"}, "Did you mean 'bert'"),
        ({"changes": {**TINY, "num_attention_heads": 5}}, "is not divisible by 5 heads"),
        ({"tokenizer": "no-such-folder/at/all"}, "No tokenizer could be loaded"),
        ({"tokenizer": "somewhere", "vocab_size": 99}, "remove 'vocab_size'"),
        ({"max_length": 500}, "positions"),
        ({"tokenizer_characters": 0}, "tokenizer_characters"),
        ({"objective": "causal"}, "bert is the architecture of a masked language model; choose one of gpt2"),
        ({"architecture": "llama", "changes": NARROW, "objective": "masked"}, "llama is the architecture of a causal"),
        ({"architecture": "llama", "changes": NARROW, "tokenizer": "wordpiece"}, "needs tokenizer=byte-bpe"),
        ({"documents": "joined"}, "cannot be joined for a masked"),
    ],
)
def test_invalid_input_is_explained(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as raised:
        run(tmp_path / "out", **options)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


@each(
    ("options", "message"),
    [
        ({"masking": "wrd"}, "Unknown masking 'wrd'"),
        ({"precision": "fp8"}, "'precision' must be"),
        ({"batch_size": 0}, "batch_size"),
        ({"heldout": "no-such-file.txt"}, "no-such-file"),
        ({}, "is not empty and has no adapted model"),
    ],
)
def test_options_are_checked_before_the_tokenizer_is_trained(tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(sys.modules["acclimate.adaptation.pretrain"], "train_tokenizer", None)
    if not options:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=message):
        run(tmp_path / "out", **options)
    assert not list(tmp_path.glob(".out*")), "nothing hidden is left"


@pytest.mark.slow
def test_a_changed_tokenizer_at_the_same_path_is_another(tmp_path):
    words = tmp_path / "words"
    tiny_tokenizer().save_pretrained(words)
    run(tmp_path / "out", tokenizer=words, steps=2)
    with killed(1):
        run(tmp_path / "cut", tokenizer=words, steps=2, save_every=1)
    more = tiny_tokenizer()
    more.add_tokens(["pizzeria"])
    more.save_pretrained(words)
    with pytest.raises(UserError, match="holds another"):
        run(tmp_path / "out", tokenizer=words, steps=2)
    run(tmp_path / "cut", tokenizer=words, steps=2, save_every=1)
    assert "pizzeria" in transformers.AutoTokenizer.from_pretrained(tmp_path / "cut").get_vocab()


def test_another_run_is_not_overwritten(tmp_path):
    run(tmp_path / "out", steps=1)
    with pytest.raises(UserError, match="holds another"):
        run(tmp_path / "out", steps=1, seed=1)
    assert run(tmp_path / "out", steps=2, overwrite=True).steps == 2


def test_methods_that_change_the_model_at_the_end_have_no_intermediate_models(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="no intermediate models"):
        acclimate.adapt(tiny_bert, Corpus.of(TEXTS), "none", tmp_path / "out", steps=2, keep_steps=[1])


def kept_models(out):
    return [line for line in out.splitlines() if re.fullmatch(r".*step-\d+", line)]


def test_the_command_line(tmp_path, monkeypatch, capsys):
    corpus, config = tmp_path / "text.txt", tmp_path / "run.yaml"
    corpus.write_text("\n".join(DOCUMENTS))
    config.write_text(f"corpus: ['{corpus}']\nbatch-size: 6\nmax-length: 24\nprecision: fp32\nchanges: {TINY}\n")
    code, out, _ = call(
        monkeypatch, capsys, "pretrain", "--config", config, "--architecture", "roberta",
        "--set", "num_hidden_layers=1", "--vocab-size", 300, "--lowercase", "--steps", 3, "--masking", "whole-word",
        "--keep-steps", "1,2", "--out", tmp_path / "out", "--heldout", corpus, "--heldout-every", 2, "--quiet",
    )  # fmt: skip
    assert code == 0
    assert "3 steps" in out
    assert kept_models(out) == [str(tmp_path / "out" / f"step-00000{step}") for step in (1, 2)]
    card = read_json(tmp_path / "out" / "acclimate.json")
    assert card["settings"]["configuration"]["num_hidden_layers"] == 1
    assert card["model"] == "fresh weights"  # not the temporary folder of the initial weights
    assert read_json(tmp_path / "out" / "step-000001" / "acclimate.json")["model"] == "fresh weights"
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "heldout" in line] == [0, 2, 3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == 300
    assert tokenizer("PIZZA")["input_ids"] == tokenizer("pizza")["input_ids"]
    for arguments, message in ((["--keep-steps", "1,x"], "step numbers"), (["--size", "huge"], "Unknown size")):
        code, _, err = call(monkeypatch, capsys, "pretrain", "--config", config, "--out", tmp_path / "o", *arguments)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_adaptation_keeps_steps_on_the_command_line_too(tiny_bert, tmp_path, monkeypatch, capsys):
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join(DOCUMENTS))
    code, out, _ = call(
        monkeypatch, capsys, "adapt", "--model", tiny_bert, "--corpus", corpus, "--steps", 3, "--batch-size", 4,
        "--max-length", 24, "--precision", "fp32", "--keep-steps", "0,2", "--out", tmp_path / "out", "--quiet",
    )  # fmt: skip
    assert code == 0
    assert kept_models(out) == [str(tmp_path / "out" / f"step-00000{step}") for step in (0, 2)]
