"""Training, inference and evaluation on an emulated accelerator: every tensor is on the right device."""

from __future__ import annotations

import pytest
import torch

from acclimate.adaptation.method import REGISTRY, lookup, names
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.inspection.importance import inspect_importance
from acclimate.study.compare import compare
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.finetune import finetune
from tests.accelerator import emulated
from tests.cases import each, installed
from tests.kills import killed
from tests.papers.test_contract import DOCUMENTS, TASK, run, weights
from tests.study.test_real import folder, write_study  # noqa: F401
from tests.tasks.qa.toy import food_task
from tests.tasks.test_multi_label import words_task
from tests.tiny import save_tiny

SHORT = {"epochs": 1, "learning_rate": 1e-3, "precision": "auto", "progress": False}


@pytest.fixture(params=["fp32", pytest.param("bf16", marks=pytest.mark.slow)])  # every method adapts in bf16 below
def accelerator(request):
    with emulated(bf16=request.param == "bf16") as accelerator:
        yield request.param
        assert accelerator.used, "nothing was computed on the accelerator"


def adapts(model, method, out, precision):
    result = run(model, method, out, precision="auto", heldout=Corpus.of(DOCUMENTS[:4]), heldout_every=2)
    assert result.steps > 0
    assert read_json(out / "acclimate.json")["precision"] == precision
    assert all(value.isfinite().all() for value in weights(out).values())


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in names() if lookup(name).trains])
def test_methods_adapt(tiny_bert, tmp_path, method):
    """In bf16, the default on an accelerator, which can also reveal wrong dtypes."""
    with emulated(bf16=True) as accelerator:
        adapts(tiny_bert, method, tmp_path / "out", "bf16")
        assert accelerator.used, "nothing was computed on the accelerator"


@pytest.mark.slow
@each("method", installed(REGISTRY, ["mlm", "dga", "selective"]))
def test_methods_adapt_in_fp32(tiny_bert, tmp_path, method):
    with emulated(bf16=False) as accelerator:
        adapts(tiny_bert, method, tmp_path / "out", "fp32")
        assert accelerator.used, "nothing was computed on the accelerator"


def test_without_randomness_the_weights_equal_those_of_the_cpu(tmp_path):
    model = save_tiny("bert", tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run(model, "mlm", tmp_path / "here")
    with emulated():
        run(model, "mlm", tmp_path / "there")
    here, there = weights(tmp_path / "here"), weights(tmp_path / "there")
    assert all(torch.allclose(here[name], there[name], atol=1e-5) for name in here)


@pytest.mark.needs("dga")
def test_a_killed_run_resumes(tiny_bert, tmp_path):
    with emulated():
        run(tiny_bert, "dga", tmp_path / "whole", steps=5)
        with killed(3):
            run(tiny_bert, "dga", tmp_path / "cut", steps=5, save_every=2)
        run(tiny_bert, "dga", tmp_path / "cut", steps=5, save_every=2)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.parametrize("task", [TASK, words_task(16, 8), food_task(6, 2)], ids=["labels", "several", "questions"])
def test_fine_tuning(accelerator, tiny_bert, tmp_path, task):
    result = finetune(tiny_bert, task, out=tmp_path / "out", **SHORT)
    assert result.precision == accelerator


@pytest.mark.parametrize("options", [{}, {"connector": "student"}, {"objective": "kl"}], ids=str)
def test_distillation(accelerator, tiny_bert, tmp_path, options):
    student = save_tiny("electra", tmp_path / "student", hidden_size=24)
    result = distill(
        tiny_bert, student, TASK, teacher_epochs=1, student_epochs=1, out=tmp_path / "out",
        **{**SHORT, "epochs": 2, "distill_share": 0.5, **options},
    )  # fmt: skip
    assert result.distilled_epochs == 1


@pytest.mark.slow
def test_measures(accelerator, tiny_bert, tmp_path):
    assert language_model_loss(tiny_bert, DOCUMENTS, max_length=24)["nats"] > 0
    domains = {"a": Corpus.of(DOCUMENTS[:12]), "b": Corpus.of(DOCUMENTS[12:])}
    inspect_importance(
        tiny_bert, domains, tmp_path / "out", parts="H,I,O,E", seeds=[0], tokens=100, max_length=24, progress=False
    )


@pytest.mark.slow
def test_a_study(accelerator, folder, tmp_path):  # noqa: F811
    save_tiny("bert", folder / "model")
    path = write_study(folder, "[none, mlm]")
    path.write_text(path.read_text().replace("max_length: 16}\nseeds", "max_length: 16, drift: true}\nseeds"))
    results = compare(path, folder / "runs", progress=False)
    assert results["jobs"]["failed"] == 0
    assert results["scores"]
