"""Steps of end tasks are cut to fit into memory, with the loss and the gradients of the whole step."""

from __future__ import annotations

import torch

from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, load_task
from acclimate.engine.micro_batches import set_gradient_checkpointing
from acclimate.engine.steps import TaskEngine
from acclimate.models.batching import MINIMAL_PADDING, limit_memory
from acclimate.models.encoding import skip_unread_tokens
from acclimate.tasks import head_model, trainer
from acclimate.tasks.distillation.student_training import DistillationLoss, build_phase_hooks
from acclimate.tasks.distillation.teacher_targets import TeacherTargets
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import resolve_options
from acclimate.tasks.kinds.choice import model as choice_model
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.trainer import TaskSteps, TrainingHooks, supervised_loss
from tests.cases import each
from tests.tasks.test_contract import SAMPLES, options_of, splits_of
from tests.tiny import save_tiny

OWN = [name for name in TASK_KINDS.names() if not TASK_KINDS.lookup(name).own_training]


def learner_of(kind, folder):
    task = load_task(splits_of(kind))
    model = save_tiny(SAMPLES[kind].model, folder / "model")
    given = FinetuneOptions(model=model, task=task, **options_of(kind))
    options = resolve_options(given, task, model)[0]
    return find_task_kind(task).learner(model, task, options, torch.device("cpu")), options


def kl_hooks(head, rows, options):
    """Distillation of random answers, some of which the teacher lacks: of the first row all."""
    sizes = [int((torch.as_tensor(row["labels"]) != -100).sum()) for row in rows]
    ends = tuple(torch.tensor(sizes).cumsum(0).tolist())
    logits = torch.randn(ends[-1], head.model.config.num_labels, generator=torch.Generator().manual_seed(0))
    logits[: ends[0]] = torch.nan
    logits[::3] = torch.nan
    loss = DistillationLoss(head, TeacherTargets(torch.zeros(0), logits, 0, ends=ends), None, "kl", 1, 1, 2.0, "fp32")
    return build_phase_hooks(loss, rows, options, options.epochs, "shared", 1e-3)[0]


def gradients(head, rows, hooks, size):
    """The loss and the gradients of a step, and the number of its micro-batches."""
    head.prepare()
    batches = TaskSteps(rows, head, size, 1, 0, items=hooks.items)[0]
    head.model.zero_grad()
    with skip_unread_tokens(head.model):
        loss = TaskEngine(head.model, hooks.loss, "fp32").step(batches)["loss"]
    found = [value.grad.flatten() for value in head.model.parameters() if value.grad is not None]
    return loss, torch.cat(found), len(batches)


@each(("kind", "what"), [*((kind, "labels") for kind in OWN), ("entities", "kl")])
def test_a_step_that_is_cut_has_the_gradients_of_the_whole_step(kind, what, tmp_path, monkeypatch):
    """The rows differ in length and in their number of words: a mean of means would be another number."""
    learner, options = learner_of(kind, tmp_path)
    head, count = learner.head, 24
    rows = [learner.rows(learner.task.train)[place] for place in range(count)]
    hooks = TrainingHooks(supervised_loss(head, 0.3 * (kind in ("classification", "entities"))))
    if what == "kl":
        rows = [{**row, "index": place} for place, row in enumerate(rows)]
        hooks = kl_hooks(head, rows, options)
    torch.manual_seed(0)
    head.model.eval()  # without dropout
    found = []
    for budget in (10**9, 30):
        for module in (head_model, choice_model):
            monkeypatch.setattr(module, "training_tokens", lambda *_, budget=budget, **__: budget)
        monkeypatch.setattr(head_model, "padding_policy", lambda model: MINIMAL_PADDING)
        found.append(gradients(head, rows, hooks, count))
    assert found[0][2] == 1 and found[1][2] > 2
    torch.testing.assert_close(found[1][:2], found[0][:2], atol=1e-6, rtol=1e-5)


@each("kind", ["classification", "entities"])
def test_layers_that_run_again_have_the_same_gradients(kind, tmp_path):
    learner, _ = learner_of(kind, tmp_path)
    head, hooks = learner.head, TrainingHooks(supervised_loss(learner.head))
    head.model.train()  # layers run again only in training; the tiny models have no dropout
    head.model.config.hidden_dropout_prob = head.model.config.attention_probs_dropout_prob = 0.0
    for module in head.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rows, found = learner.rows(learner.task.train)[:8], []
    for again in (False, True):
        set_gradient_checkpointing(head.model, "fp32", again, 40)
        found.append(gradients(head, rows, hooks, 8)[:2])
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)


def test_the_limit_of_the_command_cuts_steps_and_recomputes_layers(tiny_bert, monkeypatch):
    step, counts, layers = TaskEngine.step, [], []
    monkeypatch.setattr(TaskEngine, "step", lambda self, batches: counts.append(len(batches)) or step(self, batches))
    spied = lambda *args: layers.append(set_gradient_checkpointing(*args))  # noqa: E731
    monkeypatch.setattr(trainer, "set_gradient_checkpointing", spied)
    usual = {"epochs": 1, "batch_size": 16, "max_length": 40, "progress": False}
    for limit in (None, 1e-3, 1e-6):
        finetune(tiny_bert, load_task(splits_of("classification")), max_memory=limit, **usual)
    assert counts[:2] == [1, 1] and counts[2] > 1 and counts[4] == 16 and layers == [False, False, True]
    with limit_memory(1e-6):  # as the environment variable
        finetune(tiny_bert, load_task(splits_of("classification")), **usual)
    assert counts[-1] == 16
