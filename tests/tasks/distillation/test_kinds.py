"""What students learn from teachers in each kind of task, with other tokenizers, encoders and decoders."""

from __future__ import annotations

import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, load_task
from acclimate.tasks.distillation.distill import choose_objective, distill
from acclimate.tasks.distillation.student_training import DistillationLoss
from acclimate.tasks.distillation.teacher_targets import run_teacher
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import resolve_options
from acclimate.tasks.options import DistillOptions
from acclimate.tasks.trainer import supervised_loss
from tests.tasks.distillation.conftest import CPU
from tests.tasks.test_classification import keyword_task
from tests.tasks.test_contract import SAMPLES, splits_of

QUICK = {"precision": "fp32", "progress": False, "max_length": 40, "batch_size": 8}


def learner_of(model, task):
    resolved, _ = resolve_options(DistillOptions(str(model), str(model), task, max_length=40), task)
    torch.manual_seed(0)
    return find_task_kind(task).learner(model, task, resolved, CPU)


def test_words_have_the_predictions_of_the_teacher_whatever_the_tokenizers(tiny_bert, student, caplog):
    """The teacher reads pieces of words, the student bytes, both in windows; words are looked up one by one."""
    rows = splits_of("entities")["train"]
    long = {"tokens": [w for row in rows for w in row["tokens"]], "tags": [t for row in rows for t in row["tags"]]}
    odd = {"tokens": ["\u0301", "pasta", "\u200b", "x" * 30], "tags": ["O", "B-food", "O", "O"]}
    task = load_task({"train": [*rows, long, odd], "test": rows})
    teacher, pupil = learner_of(tiny_bert, task), learner_of(student, task)
    teacher.head.max_length, pupil.head.max_length = 32, 24
    targets = run_teacher(teacher.head, teacher.rows(task.train), None, "fp32")
    targets = targets.match(*(one.head.answer_keys(task.train) for one in (teacher, pupil)))
    windows, tables = teacher.head.probabilities(task.train, "fp32")
    known = {
        (number, unit.start, unit.end): row
        for number, (units, table) in enumerate(zip(windows.units, tables, strict=True))
        for unit, row in zip(units, table, strict=True)
    }
    own, lost = pupil.head.answer_keys(task.train), 0
    pupil_rows = pupil.rows(task.train)
    assert len(own) == len(pupil_rows) > len(task.train)
    for place, (keys, row) in enumerate(zip(own, pupil_rows, strict=True)):
        found = targets.answers([place])
        assert len(found) == len(keys) == (row["labels"] != -100).sum()
        for key, logits in zip(keys, found, strict=True):
            assert logits.isfinite().all() == (key in known)
            lost += key not in known
            if key in known:
                torch.testing.assert_close(logits.softmax(-1), torch.tensor(known[key]).float(), atol=1e-5, rtol=1e-4)
    assert lost and f"no answer for {lost:,} of the" in caplog.text

    # The loss of a batch is the mean over the words that both have.
    loss = DistillationLoss(pupil.head, targets, None, "kl", 1.0, 1.0, 2.0, "fp32")
    places = [0, 5, len(own) - 1]
    inputs = pupil.head.collate([pupil_rows[place] for place in places])
    labels = inputs.pop("labels")
    model = pupil.head.model.eval()
    slow = []
    for line, place in enumerate(places):
        logits = model(**inputs).logits[line][labels[line] != -100]
        for key, ours, theirs in zip(own[place], logits, targets.answers([place]), strict=True):
            if key in known:
                wanted = (theirs / 2).softmax(-1)
                slow.append(4 * (wanted * (wanted.log() - (ours / 2).log_softmax(-1))).sum())
    torch.testing.assert_close(loss.loss(model, inputs, labels, places), torch.stack(slow).mean())
    alone = [place for place, keys in enumerate(own) if not any(key in known for key in keys)]
    if alone:
        assert loss.items(alone[:1]) == 0


def mislabelled(kind):
    """Rows of a kind whose train labels are wrong."""
    rows = splits_of(kind)
    train = rows["train"]
    if kind == "entities":
        swapped = {"B-food": "B-place", "B-place": "B-food", "O": "O"}
        return {**rows, "train": [{**row, "tags": [swapped[tag] for tag in row["tags"]]} for row in train]}
    name = "answer" if kind == "choice" else "label"
    return {**rows, "train": [{**row, name: train[place - 1][name]} for place, row in enumerate(train)]}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(("kind", "teacher", "pupil", "objective"), [
    ("entities", "llama", "roberta", "auto"),
    pytest.param("regression", "bert", "llama", "kl", marks=SLOW),
    pytest.param("classification", "bert", "llama", "kl", marks=SLOW),
    pytest.param("regression", "bert", "roberta", "auto", marks=SLOW),
    pytest.param("choice", "llama", "bert", "auto", marks=SLOW),
])  # fmt: skip
def test_a_student_learns_from_the_teacher_alone(kind, teacher, pupil, objective, encoders, decoders, tmp_path):
    """The labels that the student reads before and next to distillation are wrong."""
    models, task, mine = encoders | decoders, load_task(splits_of(kind)), tmp_path / "teacher"
    metric, shared = task.scoring().metrics[0], {**QUICK, "learning_rate": 1e-2}
    finetune(models[teacher], task, out=mine, epochs=8, **shared)
    options = {"objective": objective, "epochs": 8, "distill_share": 1.0, "student_epochs": 1, **shared}
    result = distill(mine, models[pupil], load_task(mislabelled(kind)), **options)
    assert not result.teacher_trained and result.teacher_metrics[metric] > 0.8
    boundary = kind == "regression" and objective == "auto"
    assert result.objective == ("boundary" if boundary else "kl") and bool(result.units) == boundary
    if boundary:
        assert result.disagreement[-1] < 0.8 * result.disagreement[0]
    else:
        assert result.metrics[metric] > max(0.8, result.student_metrics[metric] + 0.1) and not result.disagreement
        assert result.describe() and result.as_results().rows["distill"][0].units == 0


def test_the_confidence_penalty_is_the_mean_entropy_of_words(tiny_bert):
    head = learner_of(tiny_bert, load_task(splits_of("entities"))).head
    rows = head.features(load_task(splits_of("entities")).train[:3])
    inputs = head.collate(rows)
    output = head.model.eval()(**inputs)
    chances = [chance for line, labels in zip(output.logits, inputs["labels"], strict=True)
               for chance, label in zip(line.softmax(-1), labels, strict=True) if label != -100]  # fmt: skip
    entropy = torch.stack([-(chance * chance.log()).sum() for chance in chances]).mean()
    torch.testing.assert_close(supervised_loss(head, 0.4)(head.model, inputs, 0), output.loss - 0.4 * entropy)


def test_what_cannot_be_distilled_is_refused_by_name(tiny_bert, tiny_llama):
    entities = load_task(splits_of("entities"), name="tiny")
    for kind in TASK_KINDS.names():
        if not TASK_KINDS.lookup(kind).distillation and kind in SAMPLES:
            with pytest.raises(
                UserError, match=rf"of the kind '{kind}', which cannot be distilled; the kinds that can"
            ):
                distill(tiny_bert, tiny_bert, load_task(splits_of(kind)), progress=False)
    with pytest.raises(UserError, match=r"'boundary' does not apply to 'tiny', .* 'entities'; use 'kl'"):
        choose_objective("boundary", entities)
    for models in ((tiny_bert, tiny_llama), (tiny_llama, tiny_bert)):
        with pytest.raises(UserError, match=r"\(llama\) has no first token.*use the objective 'kl'"):
            distill(*models, keyword_task(), progress=False)
    with pytest.raises(UserError, match="'connector' cannot be 'student' with the objective 'kl'"):
        distill(tiny_bert, tiny_bert, entities, connector="student", progress=False)
