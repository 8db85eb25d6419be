"""Budgets, outputs, the warm-up of a missing head, and a one-line error for invalid input."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt, ensure_head
from acclimate.adaptation.result import load_finished, open_work_folder, remove_work_folder
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.distributed import ProcessGroup
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.data import Task
from tests.adaptation.helpers import assert_clipping_is_that_of_torch
from tests.cases import each
from tests.kills import counted
from tests.tiny import TEXTS, save_tiny

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
SHORT = {"batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


def run(model, out, **options):
    return adapt(model, Corpus.of(DOCUMENTS), "mlm", out, **{**SHORT, **options})


def test_budgets(tiny_bert, tmp_path):
    assert run(tiny_bert, tmp_path / "steps", steps=4).steps == 4
    assert run(tiny_bert, tmp_path / "epochs", epochs=2).steps >= 2 * len(DOCUMENTS) // 6
    tokens = run(tiny_bert, tmp_path / "tokens", tokens=500)
    assert 350 < tokens.tokens < 650
    timed = run(tiny_bert, tmp_path / "time", max_minutes=0.01)
    assert timed.steps > 0
    assert 0.4 < timed.seconds < 5


@each(
    ("options", "message"),
    [
        ({"steps": 1, "epochs": 1}, "one of"),
        ({"steps": 0}, "'steps' must be at least 1, not 0"),
        ({"steps": 1, "mask_rate": 1.5}, "'mask_rate' must be less than 1, not 1.5"),
        ({"steps": 1, "max_length": 500}, "positions"),
        ({"steps": 1, "max_length": 2}, "at least 8"),
        ({"steps": 1, "batch_size": 0}, "batch_size"),
        ({"steps": 1, "precision": "fp8"}, "precision"),
        ({"steps": 1, "layout": "Padded"}, "'padded' or 'packed'"),
        ({"steps": 1, "save_every": 0}, "save_every"),
        ({"steps": 1, "warmup": 500}, "'warmup' must be less than 1"),
        ({"steps": 1, "weight_decay": -0.1}, "weight_decay"),
        ({"steps": 1, "seed": -1}, "'seed' must be at least 0"),
        ({"max_minutes": float("nan")}, "'max_minutes' must be a finite number, not nan"),
        ({"epochs": float("inf")}, "'epochs' must be a finite number, not inf"),
        ({"steps": 1, "learning_rate": float("nan")}, "'learning_rate' must be a finite number, not nan"),
        ({"steps": 1, "head_tokens": -1}, "'head_tokens' must be at least 1, not -1"),
    ],
)
def test_invalid_input_is_explained(tiny_bert, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(tiny_bert, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_non_finite_loss_stops_with_advice(tmp_path):
    save_tiny("bert", tmp_path / "model")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.fill_(float("nan"))
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="Lower the learning rate"):
        run(tmp_path / "model", tmp_path / "out", steps=3)
    assert not (tmp_path / "out").exists()


def test_finished_run_is_not_repeated_and_another_is_not_overwritten(tiny_bert, tmp_path):
    first = run(tiny_bert, tmp_path / "out", steps=2)
    stamp = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert run(tiny_bert, tmp_path / "out", steps=2).tokens == first.tokens
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(UserError, match="another adaptation"):
        run(tiny_bert, tmp_path / "out", steps=3)
    assert run(tiny_bert, tmp_path / "out", steps=3, overwrite=True).steps == 3
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="not empty"):
        run(tiny_bert, tmp_path / "full", steps=2)
    with pytest.raises(UserError, match="has no adapted model"):
        run(tiny_bert, tmp_path / "full", steps=2, overwrite=True)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "dear"
    (tmp_path / "out" / "seed-0").mkdir()
    (tmp_path / "out" / "seed-0" / "model.safetensors").write_text("of hours")
    with pytest.raises(UserError, match="was not written by acclimate; move it"):
        run(tiny_bert, tmp_path / "out", steps=4, overwrite=True)
    assert (tmp_path / "out" / "seed-0" / "model.safetensors").read_text() == "of hours"


def test_the_checkpoints_of_an_interrupted_run_outlive_one_with_other_settings(tmp_path, caplog):
    work, group = tmp_path / ".out.work", ProcessGroup()

    def begin(steps, checkpoint):
        open_work_folder(work, {"steps": steps}, group)
        found = sorted(path.name for path in work.glob("checkpoint-*"))
        (work / f"checkpoint-{checkpoint}").write_text("")
        return found

    assert begin(1, 10) == [] and begin(1, 11) == ["checkpoint-10"] and not caplog.text
    assert begin(2, 20) == [] and "interrupted run with other settings" in caplog.text
    assert begin(1, 12) == ["checkpoint-10", "checkpoint-11"] and begin(2, 21) == ["checkpoint-20"]
    assert begin(3, 30) == []  # the folder of the last other run is kept, of the one before not
    assert begin(1, 13) == [] and begin(3, 31) == ["checkpoint-30"]
    remove_work_folder(work, {"steps": 3}, group)
    assert not any(tmp_path.iterdir())
    work.mkdir()  # damaged, and without anything
    assert begin(4, 40) == [] and [path.name for path in tmp_path.iterdir()] == [".out.work"]


def test_other_dropout_or_another_model_at_the_same_path_is_another_run(tmp_path):
    save_tiny("bert", tmp_path / "model")
    run(tmp_path / "model", tmp_path / "out", steps=2, dropout=0.3)
    with pytest.raises(UserError, match="another adaptation"):
        run(tmp_path / "model", tmp_path / "out", steps=2)
    assert run(tmp_path / "model", tmp_path / "out", steps=2, dropout=0.3).steps == 2
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias.add_(1)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="another adaptation"):
        run(tmp_path / "model", tmp_path / "out", steps=2, dropout=0.3)


@each(("steps", "warmup"), [(1, 0.1), (5, 0.1), (5, 0.0), (40, 0.1)])
def test_the_learning_rate_never_exceeds_its_peak(tiny_bert, tmp_path, steps, warmup):
    run(tiny_bert, tmp_path / "out", steps=steps, warmup=warmup)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines]
    assert max(rates) <= SHORT["learning_rate"] * (1 + 1e-6)
    if steps > 1:
        assert max(rates) > 0.7 * SHORT["learning_rate"]


def test_configuration_and_losses_are_written_beside_the_model(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out", steps=3)
    card = json.loads((tmp_path / "out" / "acclimate.json").read_text())
    assert card["method"] == "mlm"
    assert card["budget"]["steps"] == 3
    assert card["text"]["documents"] == len(DOCUMENTS)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["terms"]["mlm"] > 0


@pytest.fixture
def headless(tmp_path):
    save_tiny("bert", tmp_path / "whole")
    transformers.AutoModel.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "bare")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_missing_head_is_warmed_up_with_the_encoder_frozen(headless, tmp_path, capsys):
    out = ensure_head(headless, Corpus.of(DOCUMENTS), tmp_path / "warm", tokens=600, max_length=24, precision="fp32")
    assert "no language-model head" in " ".join(capsys.readouterr().err.split())
    before, after = load_file(headless / "model.safetensors"), load_file(out / "model.safetensors")
    for name, value in before.items():
        if "pooler" not in name:
            assert torch.equal(after[f"bert.{name}"], value), name
    assert "cls.predictions.transform.dense.weight" in after
    assert (after["cls.predictions.transform.dense.weight"] - torch.eye(32)).abs().max() > 1e-3
    assert ensure_head(out, Corpus.of(DOCUMENTS), tmp_path / "again", progress=False) == out
    result = adapt(out, Corpus.of(DOCUMENTS), "mlm", tmp_path / "adapted", steps=2, **SHORT)
    assert result.steps == 2


def test_weight_decay_applies_to_matrices_only(tiny_bert, tmp_path):
    """AdamW subtracts learning rate x decay x weight; biases and normalization layers do not decay."""
    for name, decay in (("with", 0.5), ("without", 0.0)):
        run(tiny_bert, tmp_path / name, steps=1, warmup=0.0, weight_decay=decay)
    start, decayed, plain = (
        load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "with", tmp_path / "without")
    )
    for name, value in plain.items():
        expected = value if value.dim() <= 1 else value - 1e-3 * 0.5 * start[name]
        torch.testing.assert_close(decayed[name], expected, atol=1e-6, rtol=0, msg=name)
        assert value.dim() <= 1 or not torch.allclose(decayed[name], value, atol=1e-6, rtol=0)


def test_gradients_are_clipped_as_by_torch(tiny_bert, tmp_path):
    """0 leaves the gradients as they are, and so does a norm that they do not reach."""
    assert_clipping_is_that_of_torch(
        lambda norm: run(tiny_bert, tmp_path / f"{norm}", steps=1, max_gradient_norm=norm)
    )
    rows = [{"text": text, "label": "no" if n % 2 else "yes"} for n, text in enumerate(TEXTS)]
    words = Task.of("words", rows, rows)
    small = {"epochs": 1, "precision": "fp32", "progress": False}
    assert_clipping_is_that_of_torch(lambda norm: finetune(tiny_bert, words, max_gradient_norm=norm, **small))


def test_losses_fall(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out", steps=60)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5


def test_a_damaged_result_is_not_returned(tiny_bert, tmp_path):
    out = tmp_path / "out"
    run(tiny_bert, out, steps=1)
    weights, card = out / "model.safetensors", out / "acclimate.json"
    content = weights.read_bytes()
    for damage in (content[:1000], content[:-1] + b"x", b""):
        weights.write_bytes(damage)
        with pytest.raises(UserError, match=r"model.safetensors' is not what was written there; choose .*--overwrite"):
            run(tiny_bert, out, steps=1)
    weights.unlink()
    run(tiny_bert, out, steps=1)
    assert weights.read_bytes() == content
    card.write_text(card.read_text()[:100])
    with pytest.raises(UserError, match=r"acclimate.json' is damaged; choose .*--overwrite"):
        run(tiny_bert, out, steps=1)
    (tmp_path / ".out.work").mkdir()
    (tmp_path / ".out.work" / "acclimate.json").write_text("{")
    run(tiny_bert, out, steps=1, overwrite=True)
    assert weights.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_output_that_is_a_link_is_followed(tiny_bert, tmp_path):
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    result = run(tiny_bert, tmp_path / "link", steps=1)
    assert (tmp_path / "link").is_symlink() and result.out == tmp_path / "disk" / "real"
    assert (tmp_path / "disk" / "real" / "model.safetensors").is_file()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with counted() as steps, pytest.raises(UserError, match=r"is a link to '.*gone', which does not exist"):
        run(tiny_bert, tmp_path / "nowhere", steps=1)
    assert steps == []


def test_a_file_name_that_is_not_utf8_does_not_end_a_finished_run(tiny_bert, tmp_path):
    corpus = tmp_path / os.fsdecode(b"caf\xe9.txt")
    corpus.write_text("\n".join(DOCUMENTS))
    out = tmp_path / "out"
    adapt(tiny_bert, str(corpus), "mlm", out, steps=1, **SHORT)
    assert "\n1 file, " in (out / "README.md").read_text()
    assert adapt(tiny_bert, str(corpus), "mlm", out, steps=1, **SHORT).steps == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["result", "checksums", "preparation", "losses", "steps", "method", "seed", "bytes", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(card=JSON, alike=st.booleans(), length=st.none() | st.integers(0, 60))
def test_any_json_as_the_manifest_of_a_result_is_a_result_or_one_line(tmp_path, card, alike, length):
    config = {"method": "mlm", "seed": 0}
    text = json.dumps({**card, **config} if alike and isinstance(card, dict) else card)[:length]
    (tmp_path / "acclimate.json").write_text(text)
    (tmp_path / "a").write_text("")
    with contextlib.suppress(UserError):
        load_finished(tmp_path, config, overwrite=False)
