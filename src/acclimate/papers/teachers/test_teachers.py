"""Teachers per source of text: against each teacher's own forward pass of each text, and in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.teachers.objective import TeacherDistillation
from acclimate.parts.objectives import LanguageModelling
from acclimate.study.paths import locate_settings
from tests.cases import each
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.parts.objectives.layouts import cut, packed, padded, without_labels
from tests.tiny import save_tiny, tiny_model

OWN, OTHER = DOCUMENTS[:16], DOCUMENTS[16:]


def teacher_of(seed, **changes):
    model = tiny_model("bert", seed=seed, **changes).requires_grad_(False)
    attach(model)
    return model


def engine_with(teachers, temperature=1.0):
    model = tiny_model("bert")
    attach(model)
    return Engine(model, [LanguageModelling(0.5), TeacherDistillation(teachers, 0.5, temperature)])


def reference(batch, model, teachers, temperature):
    """The mean over labelled tokens; every text is read by itself with its teacher alone, or learns its own tokens."""
    total, count = 0.0, 0
    for number in range(batch.texts):
        mine = batch.text == number
        teacher = teachers.get(0 if batch.source is None else int(batch.source[number]))
        ids, labels = batch.masked[mine][None], batch.labels[mine]
        count += int((labels >= 0).sum())
        if teacher is None:
            logits = model(input_ids=ids).logits[0]
            total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            continue
        student, expert = (one(input_ids=ids).logits[0][labels >= 0] / temperature for one in (model, teacher))
        for z, t in zip(student, expert, strict=True):
            q = t.softmax(0)
            total = total + temperature**2 * (q * (q.log() - z.log_softmax(0))).sum()
    return total / count


@each(
    ("layout", "sources", "temperature"),
    [
        (lambda batch: [batch], [0, 1, 2, 1, 0, 2, 1, 0], 1.0),
        (lambda batch: [packed(batch, 3)], [0, 1, 2, 1, 0, 2, 1, 0], 2.0),
        (lambda batch: [packed(batch, 3)], None, 1.0),
    ],
)
def test_each_text_learns_from_the_teacher_of_its_source(layout, sources, temperature):
    """Source 2 has no teacher; the teacher of source 1 is wider than the model."""
    teachers = {0: teacher_of(1), 1: teacher_of(2, hidden_size=48)}
    whole = padded()
    (batch,) = layout(whole)
    batch = replace(batch, source=None if sources is None else torch.tensor(sources))
    engine = engine_with(teachers, temperature)
    terms = engine.step([batch])
    ours = {name: one.grad.clone() for name, one in engine.model.named_parameters() if one.grad is not None}
    engine.model.zero_grad()
    slow = reference(batch, engine.model, teachers, temperature)
    torch.testing.assert_close(terms["teachers"], slow.detach(), atol=1e-5, rtol=1e-4)
    (0.5 * slow).backward()
    plain = Engine(engine.model, [LanguageModelling(0.5)])
    plain.step([batch])
    for name, one in engine.model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(ours[name], one.grad, atol=2e-5, rtol=1e-3)


def test_micro_batches_change_nothing_and_a_text_may_have_no_labels_or_no_teacher():
    teachers = {0: teacher_of(1), 1: teacher_of(2)}
    sources = torch.tensor([0, 1, 2, 1, 0, 2, 2, 2])
    batch = without_labels(padded(), 1)
    pieces = [replace(piece, source=sources[3 * n : 3 * n + 3]) for n, piece in enumerate(cut(batch, 3))]
    assert TeacherDistillation(teachers).count(pieces[-1]) == pieces[-1].labelled
    engine = engine_with(teachers)
    whole, split = engine.step([replace(batch, source=sources)]), engine.step(pieces)
    torch.testing.assert_close(whole["teachers"], split["teachers"], atol=1e-5, rtol=1e-4)
    assert all(value.isfinite() for value in engine.step(pieces[-1:]).values())


def test_sources_of_a_mix_have_their_own_teachers(tiny_bert, tmp_path, capsys):
    paths = [save_tiny("bert", tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    options = {**SHORT, "mix": "fixed", "sources": {"other": Corpus.of(OTHER)}, "steps": 2}
    both = f"domain={paths[0]}, other={paths[1]}"
    result = adapt(tiny_bert, Corpus.of(OWN), {"teachers": {"teachers": both}}, tmp_path / "out", **options)
    assert set(result.losses) == {"mlm", "teachers", "loss"}
    one = {"teachers": str(paths[0]), "alpha": 0.2}
    adapt(tiny_bert, Corpus.of(OWN), {"teachers": one}, tmp_path / "one", **{**options, "progress": True})
    assert "Sources without a teacher: other." in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UserError, match="Did you mean 'other'"):
        adapt(tiny_bert, Corpus.of(OWN), {"teachers": {"teachers": {"othr": "a"}}}, tmp_path / "x", **options)


@pytest.mark.slow
def test_predictions_come_close_to_those_of_the_teacher(tiny_bert, tmp_path):
    expert = save_tiny("bert", tmp_path / "expert", seed=5, initializer_range=0.3)
    options = {**SHORT, "steps": 30, "learning_rate": 3e-3}
    found = []
    for alpha in (0.0, 0.95):
        settings = {"teachers": str(expert), "alpha": alpha}
        result = adapt(tiny_bert, Corpus.of(OWN), {"teachers": settings}, tmp_path / str(alpha), **options)
        found.append(result.losses["teachers"])
    assert found[0] < 0.8 * found[1]


def test_settings(tmp_path):
    (tmp_path / "law").mkdir()
    given = {"teachers": {"domain": "law", "other": "name/on-hub"}}
    locate_settings(given, get("teachers").files, tmp_path)
    assert given["teachers"] == {"domain": str(tmp_path / "law"), "other": "name/on-hub"}
    given = {"teachers": "domain=law, other=name/on-hub"}
    locate_settings(given, get("teachers").files, tmp_path)
    assert given["teachers"] == f"domain={tmp_path / 'law'},other=name/on-hub"
    (tmp_path / "a,b=c").mkdir()
    given = {"teachers": "a,b=c"}
    locate_settings(given, get("teachers").files, tmp_path)
    assert given["teachers"] == str(tmp_path / "a,b=c")
    assert get("teachers", teachers={"domain": "x"}).teachers == get("teachers", teachers="x").teachers
    assert get("teachers", teachers="a=x, b=y").teachers == {"a": "x", "b": "y"}
    for given, message in (
        ({"alpha": 1}, "alpha must be below 1"),
        ({"temperature": 0}, "temperature must be more than zero"),
        ({"teachers": "a=x,y"}, "'teachers': give one teacher per source of text"),
        ({"teachers": "a=x,a=y"}, "give one teacher per source of text"),
        ({"teachers": ""}, "give one teacher per source of text"),
        ({"teachers": {}}, "teachers is empty"),
    ):
        with pytest.raises(UserError, match=message):
            get("teachers", **given)
