"""What a training step costs on an accelerator, counted on the emulated one: launches, waits, padding, kernels."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from acclimate.adaptation import heldout
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import lookup, names
from acclimate.base.device import to_device, with_host_copy
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine import trainer
from acclimate.engine.batches import Collator
from acclimate.engine.trainer import StepTrainer
from acclimate.evaluation import lm_loss
from acclimate.kernels import varlen
from acclimate.labs.bench.shapes import draw_lengths
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.models.encoding import decode, encode
from acclimate.models.families import kernels_of
from acclimate.models.kinds import MASKED
from acclimate.models.probe import attach
from acclimate.parts.masking import resolve
from acclimate.tasks.finetune import finetune
from tests.accelerator import emulated
from tests.cases import each
from tests.counting import counted
from tests.papers.test_contract import DOCUMENTS, STATEFUL, TASK, run, weights
from tests.tiny import ENCODERS, WORDS, save_tiny, tiny_model, tiny_tokenizer

MAX_WAITS = 2
MASKED_ATTENTION = ("corruption", "das", "dask", "fastdoc", "tsdae")
"""Methods that need an attention mask: documents of sentence vectors (corruption, fastdoc); gates on units, which
multiply padded rows (das); a visible matrix (dask); an encoder that reads from left to right (tsdae)."""
MORE_WAITS = {"dask": 1, "experts": 3}
"""Further waits of a step: for the pseudo-labels, which decide what the next step reads (dask); in each forward pass,
for the tokens of each domain (experts)."""
PLAIN = [word for word in WORDS if word.isalpha() and len(word) > 1]


@dataclass
class Step:
    """What one step cost, from its start to the start of the next."""

    launches: int
    waits: int
    micro_batches: int
    tokens: int
    read: int
    attention: dict


@contextmanager
def steps_of(ledger):
    """Yield a list that gets the cost of each step but the last."""
    found, before, step = [], [], StepTrainer.training_step

    def spied(self, model, inputs, *args, **kwargs):
        if before:
            launches, waits, batches, tokens = before.pop()
            read, attention = sum(ledger.read), dict(ledger.attention)
            found.append(Step(ledger.launched - launches, ledger.waits - waits, batches, tokens, read, attention))
        ledger.read.clear()
        ledger.attention.clear()
        before.append((ledger.launched, ledger.waits, len(inputs), sum(batch.tokens for batch in inputs)))
        return step(self, model, inputs, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "log_interval", lambda steps: 50)  # as in a training of thousands of steps
        patch.setattr(StepTrainer, "training_step", spied)
        yield found


def texts(count):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(PLAIN, int(length) - 2)) for length in draw_lengths(count, rng)]


def cost_of(method, folder, *, count=6, steps=3, layers=12, **options):
    """Adapt a model of 12 layers to texts with lengths as in the benchmark; return the cost of its last full step."""
    model = save_tiny("bert", folder / "model", num_hidden_layers=layers, max_position_embeddings=512)
    options = {"steps": steps, "batch_size": count, "max_length": 164, "progress": False, **options}
    with counted() as ledger, steps_of(ledger) as found:
        adapt(model, Corpus.of(texts(2 * count)), method, folder / "out", **options)
    return found[-1]


@pytest.mark.needs("dga")
@pytest.mark.parametrize(("method", "most"), [("lm", 1_250), pytest.param("dga", 1_800, marks=pytest.mark.slow)])
def test_launches_of_a_step(method, most, tmp_path):
    """The number of launches does not depend on the number of texts, as long as they are one micro-batch."""
    step = cost_of("dga importance_tokens=500" if method == "dga" else method, tmp_path)
    assert step.launches <= most and step.micro_batches == 1 and step.waits <= MAX_WAITS
    assert step.read <= step.tokens * (3 if method == "dga" else 1) + 16
    assert step.attention == {"varlen": 12}


def test_a_step_of_256_texts_is_one_micro_batch():
    lengths = draw_lengths(256, np.random.default_rng(1))
    with emulated(bf16=True):
        model = to_device(tiny_model("bert", max_position_embeddings=512))
        limit, policy = training_tokens(model, 3, 164), padding_policy(model)
    collator = Collator.of(tiny_tokenizer(), resolve(None, 0.15), MASKED, limit, policy=policy)
    batches = collator([np.full(length, 7) for length in lengths], np.random.default_rng(2))
    assert len(batches) == 1 and batches[0].tokens == lengths.sum()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in (*STATEFUL, "kd", "prompt") else pytest.mark.slow)
        for name in names()
        if lookup(name).trains
    ],
)
def test_any_method_adapts_in_bf16_and_a_step_waits_at_most_twice(tiny_bert, tmp_path, method):
    out, text = tmp_path / "out", Corpus.of(DOCUMENTS[:4])
    with counted() as ledger, steps_of(ledger) as found:
        run(tiny_bert, method, out, precision="auto", heldout=text, heldout_every=10)  # before and after the steps
    # Where a method has several stages, models are measured and written between them.
    usual = sorted(found, key=lambda step: step.waits)[len(found) // 2]
    assert usual.waits <= MAX_WAITS + MORE_WAITS.get(method, 0)
    assert ("mask" in usual.attention) == (method in MASKED_ATTENTION)
    assert read_json(out / "acclimate.json")["precision"] == "bf16"
    assert all(value.isfinite().all() for value in weights(out).values())


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in names() if lookup(name).trains])
def test_fifty_steps_of_any_method_wait_at_most_twice_on_average(tiny_bert, tmp_path, method):
    """A line in the log is one more wait: the ``Trainer`` reads its loss."""
    with counted() as ledger, steps_of(ledger) as found:
        run(tiny_bert, method, tmp_path / "out", precision="auto", steps=52)
    waits = [step.waits for step in found]
    between = len(waits) - 51  # steps of other stages, after some of which a model is measured and written
    assert sum(sorted(waits[-50 - between :])[:50]) <= 50 * (MAX_WAITS + MORE_WAITS.get(method, 0)) + 1


def test_held_out_text_is_copied_once_and_waited_for_once(tiny_bert, tmp_path, monkeypatch):
    """Text that takes too much of the memory is copied again for each measurement."""
    measured, measure = [], heldout.measure_heldout_terms

    def spied(engine, steps, seed):
        before = ledger.waits, ledger.copies["to device", False]
        found = measure(engine, steps, seed)
        batches = sum(map(len, steps))
        measured.append((ledger.waits - before[0], (ledger.copies["to device", False] - before[1]) / batches))
        return found

    monkeypatch.setattr(heldout, "measure_heldout_terms", spied)
    with counted() as ledger:
        for share in (heldout.HELDOUT_SHARE, 0):
            monkeypatch.setattr(heldout, "HELDOUT_SHARE", share)
            out, text = tmp_path / str(share), Corpus.of(texts(10))
            run(tiny_bert, "lm", out, precision="auto", heldout=text, heldout_every=2)
    assert len(measured) == 6 and {waits for waits, _ in measured} == {1}
    (_, first), (_, kept), *_, (_, again) = measured
    assert kept <= first <= 5 and again >= kept + 4, "maps without padding, and the four tensors of a batch"


@each("family", ["bert", "llama"])
def test_a_measured_loss_waits_once_for_each_forward_pass(family):
    passes, measure = [], lm_loss._group_losses
    with counted() as ledger, pytest.MonkeyPatch.context() as patch:
        model = to_device(tiny_model(family))
        attach(model)
        patch.setattr(lm_loss, "_group_losses", lambda *args: passes.append(1) or measure(*args))
        patch.setattr(lm_loss, "micro_batch_tokens", lambda *_, **__: 300)
        ledger.reset()
        found = lm_loss.language_model_loss(model, texts(30), tokenizer=tiny_tokenizer(), max_length=64)
    assert len(found["per_text"]) == 30 and ledger.waits == len(passes) > 2


def test_a_step_of_fine_tuning_waits_once(tiny_bert):
    with counted() as ledger, steps_of(ledger) as found:
        finetune(tiny_bert, TASK, epochs=4, batch_size=8, progress=False)
    assert {step.waits for step in found} == {1}
    assert all(step.read < step.tokens + 17 and "mask" not in step.attention for step in found)


@each("family", sorted(ENCODERS))
@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_attention_without_padding_equals_padded_rows(family, bf16, monkeypatch):
    """Also for packed rows, head gates and reading from left to right; in bf16 to its precision."""
    text = torch.tensor([[0] * 3 + [1] * 5 + [-1] * 4, [2] * 6 + [3] * 5 + [-1], [4] * 12])
    ids = torch.arange(10, 46).view(3, 12) * (text >= 0)
    model = tiny_model(family).eval()
    if family == "modernbert":
        model.config.sliding_window = model.config.local_attention // 2
    layers = attach(model)
    gates = {"H": torch.rand(len(layers), 3, 4)}
    expected, decoded = encode(model, ids, text, gates)[text >= 0], decode(model, ids, text)[text >= 0]
    with counted(bf16=bf16) as ledger:
        model = to_device(model)
        attach(model)
        ledger.reset()
        with torch.autocast("cuda", enabled=bf16, dtype=torch.bfloat16):
            there = {"H": gates["H"].to("cuda")}
            inputs = ids.to("cuda"), with_host_copy(text.to("cuda"), text)
            found = encode(model, *inputs, there).cpu()[text >= 0], decode(model, *inputs).cpu()[text >= 0]
    assert set(ledger.attention) <= ({"varlen"} if bf16 or family != "modernbert" else {"varlen", "mask"})
    for states, those in zip(found, (expected, decoded), strict=True):
        torch.testing.assert_close(states.float(), those, atol=0.05 if bf16 else 1e-5, rtol=0.05 if bf16 else 1e-4)


@each("family", ["llama", "gpt2", "qwen3", "mistral", "gemma2"])
def test_decoders_are_read_without_padding(family):
    """Grouped queries, windows and bounded scores included; the probe has to prove it for each architecture."""
    text = torch.tensor([[0] * 3 + [1] * 15 + [-1] * 4, [2] * 12 + [3] * 9 + [-1]])
    ids = torch.arange(10, 54).view(2, 22) * (text >= 0)
    changes = {"sliding_window": 6} if family in ("mistral", "gemma2") else {}
    model = tiny_model(family, **changes).eval()
    attach(model)
    expected = encode(model, ids, text)[text >= 0]
    with counted() as ledger:
        model = to_device(model)
        attach(model)
        assert kernels_of(model).varlen_attention
        ledger.reset()
        found = encode(model, ids.to("cuda"), with_host_copy(text.to("cuda"), text)).cpu()[text >= 0]
    assert set(ledger.attention) == ({"varlen"} if family in ("llama", "gpt2", "qwen3") else set(ledger.attention))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_device_without_the_kernel_reads_padded_rows_and_says_so(tiny_bert, tmp_path, monkeypatch, caplog, capsys):
    def refuse(*_):
        raise RuntimeError("no kernel image is available")

    with counted() as ledger, steps_of(ledger) as found:
        run(tiny_bert, "lm", tmp_path / "fused", precision="auto", progress=True)
        assert "Attention: flash kernel, texts without padding." in capsys.readouterr().err
        monkeypatch.setattr(varlen, "_trial_error", refuse)
        varlen.varlen_works.cache_clear()
        found.clear()
        run(tiny_bert, "lm", tmp_path / "padded", precision="auto", progress=True, steps=4)
    assert "so rows are padded: no kernel image is available" in caplog.text.lower()
    assert "Attention: scaled_dot_product_attention, padded rows." in capsys.readouterr().err
    assert {tuple(step.attention) for step in found[1:]} == {("mask",)}  # the first begins in the other run
