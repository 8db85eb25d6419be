"""Self-distillation: the second stage starts from the base model and learns from the result of the first."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.loading import load_language_model
from acclimate.papers.self_distill.objective import StateDistillation
from tests.cases import each
from tests.kills import counted, killed
from tests.papers.test_contract import DOCUMENTS, SHORT, weights
from tests.parts.objectives.layouts import outputs, packed, padded, random_states, same_gradients
from tests.tiny import save_tiny, tiny_tokenizer

OPTIONS = {**SHORT, "steps": 30, "batch_size": 16}


def run(model, method, out, **options):
    return adapt(model, Corpus.of(DOCUMENTS), method, out, **{**OPTIONS, **options})


def vectors(folder):
    """The mean hidden state of some texts."""
    ids = tiny_tokenizer()(DOCUMENTS[:6], return_tensors="pt", padding=True)
    real = ids["attention_mask"][..., None]
    with torch.no_grad():
        states = load_language_model(folder).model.base_model(**ids).last_hidden_state
    return (states * real).sum(1) / real.sum(1)


@each("layout", [lambda batch: batch, packed])
def test_the_distance_equals_the_reference(layout):
    """The sum over features of the squared difference of mean vectors, averaged over texts."""
    batch = layout(padded())
    term = StateDistillation()
    student, teacher = random_states(batch, seed=1), random_states(batch, seed=2, grad=False)
    ours = term.total(outputs(batch, {term.student: student, term.teacher: teacher})) / term.count(batch)
    pairs = zip(student, teacher, strict=True)
    slow = sum(((a.sum(0) / len(a) - b.sum(0) / len(b)) ** 2).sum() for a, b in pairs) / batch.texts
    same_gradients(ours, slow, student)


@pytest.fixture(scope="module")
def lm(tiny_bert, tmp_path_factory):
    """The result of ``lm``, which is the teacher of the second stage."""
    folder = tmp_path_factory.mktemp("lm") / "out"
    run(tiny_bert, "lm", folder, steps=8)
    return folder


def test_two_stages_equal_a_given_teacher_and_the_base_model_again(tiny_bert, lm, tmp_path):
    result = run(tiny_bert, "self-distill", tmp_path / "stages", steps=8)
    run(tiny_bert, {"self-distill": {"teacher": str(lm)}}, tmp_path / "given", steps=8)
    stages, given = weights(tmp_path / "stages"), weights(tmp_path / "given")
    assert all(torch.equal(stages[name], given[name]) for name in stages)
    assert result.steps == 16 and set(result.losses) == {"mlm", "self-distill", "loss"}
    lines = [json.loads(line) for line in (tmp_path / "stages" / "log.jsonl").read_text().splitlines()]
    assert "self-distill" not in lines[0]["terms"] and "self-distill" in lines[-1]["terms"]


@pytest.mark.slow
def test_representations_come_close_to_those_of_the_teacher(tiny_bert, tmp_path):
    """Also of one that went far: longer, with a higher learning rate."""
    run(tiny_bert, "lm", tmp_path / "far", steps=20, learning_rate=5e-3, seed=1)
    settings = {"teacher": str(tmp_path / "far"), "weight": 3, "pooling": "mean"}
    run(tiny_bert, {"self-distill": settings}, tmp_path / "out", steps=15)
    run(tiny_bert, "lm", tmp_path / "lm", steps=15)
    far, near, plain = (vectors(tmp_path / name) for name in ("far", "out", "lm"))
    assert (near - far).norm() < 0.7 * (plain - far).norm()


@pytest.mark.slow
def test_an_interrupted_second_stage_resumes(tiny_bert, tmp_path):
    run(tiny_bert, "self-distill", tmp_path / "whole", steps=4)
    taken = iter(range(100))
    with killed(lambda state: next(taken) == 6):  # in the second stage, which begins after four steps
        run(tiny_bert, "self-distill", tmp_path / "cut", steps=4, save_every=1)
    with counted() as steps:
        run(tiny_bert, "self-distill", tmp_path / "cut", steps=4, save_every=1)
    assert steps == [2, 3]
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_changed_teacher_is_another_method(lm, tmp_path):
    """Results are identified by the content of the teacher, not by its path."""
    contents = get("self-distill", teacher=str(lm)).file_contents()
    other = save_tiny("bert", tmp_path / "other", seed=3)
    assert get("self-distill", teacher=str(other)).file_contents() != contents
    assert not get("self-distill").file_contents()


def test_teachers_that_do_not_fit_are_refused(tiny_bert, tiny_llama, tmp_path):
    wide = save_tiny("bert", tmp_path / "wide", hidden_size=48)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["extraword"])
    more = save_tiny("bert", tmp_path / "more")
    model = transformers.AutoModelForMaskedLM.from_pretrained(more)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(more)
    tokenizer.save_pretrained(more)
    for teacher, message in (
        (wide, "48 features"),
        (tiny_llama, "is a causal language model"),
        (more, "same tokenizer"),
    ):
        with pytest.raises(UserError, match=f"cannot be the teacher: .*{message}"):
            run(tiny_bert, {"self-distill": {"teacher": str(teacher)}}, tmp_path / "out")
    with pytest.raises(UserError, match="pooling=mean"):
        run(tiny_llama, {"self-distill": {"teacher": str(tiny_llama), "pooling": "cls"}}, tmp_path / "out")
    with pytest.raises(UserError, match="weight must be zero or more"):
        get("self-distill", weight=-1)
