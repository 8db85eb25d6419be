"""Caching of the stages: complete cache keys, and one computation per stage across processes."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace

import torch
from tokenizers import normalizers

from acclimate.adaptation.method import AdaptContext
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.distributed import ProcessGroup
from acclimate.papers.selective import stages
from acclimate.parts.masking import RandomMasking
from acclimate.tasks import training_cache
from tests.cases import each
from tests.tiny import ENCODERS, VOCABULARY, tiny_model, tiny_tokenizer


def run(model, tokenizer):
    return AdaptContext(
        model, [], tokenizer, TokenDataset.of([[2, 5, 3]]), RandomMasking(), 0, "fp32", False, ProcessGroup()
    )


def test_model_tokenizer_precision_and_software_are_in_the_key(monkeypatch):
    plain = run(tiny_model("bert"), tiny_tokenizer())
    first = stages.fingerprint_base_model(plain)
    assert stages.fingerprint_base_model(run(tiny_model("bert"), tiny_tokenizer())) == first
    cased = tiny_tokenizer()
    cased.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    other = [run(tiny_model("bert", seed=1), tiny_tokenizer()), run(plain.model, cased)]
    other.append(replace(plain, precision="bf16"))
    assert all(stages.fingerprint_base_model(changed) != first for changed in other)
    monkeypatch.setattr(training_cache, "__version__", "0")
    assert stages.fingerprint_base_model(plain) != first


@each("kind", sorted(ENCODERS))
def test_only_the_shared_tensors_of_the_masked_lm_head_are_in_the_key(kind):
    model, tokenizer = tiny_model(kind), tiny_tokenizer()
    first, head = stages.fingerprint_base_model(run(model, tokenizer)), stages.shared_head_tensors(model)
    assert set(head) == ({"head.dense.weight", "head.norm.weight"} if kind == "modernbert" else set())
    words = len(VOCABULARY)
    biases = [value for name, value in model.named_parameters() if name.endswith("bias") and len(value) == words]
    assert len(biases) == 1
    with torch.no_grad():
        biases[0].add_(1)
        assert stages.fingerprint_base_model(run(model, tokenizer)) == first
        for weight in head.values():
            before = weight.clone()
            weight.add_(1)
            assert stages.fingerprint_base_model(run(model, tokenizer)) != first
            weight.copy_(before)


def make(folder, journal):
    def made(temporary):
        with journal.open("a") as file:
            file.write("made\n")
        time.sleep(0.5)
        return {"value": 1}

    stages._make_once(folder, made)
    assert stages.read_json(folder / stages.SUMMARY_FILE)["value"] == 1


def test_concurrent_processes_compute_a_stage_once(tmp_path):
    context = multiprocessing.get_context("fork")
    left = tmp_path / "cache" / ".mark.new-of-a-killed-process"
    left.mkdir(parents=True)
    arguments = (tmp_path / "cache" / "mark", tmp_path / "journal")
    processes = [context.Process(target=make, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    assert (tmp_path / "journal").read_text() == "made\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mark"], "no partial folder remains"
