"""Our side: the training and the importance of ``acclimate.adapt``, from the same functions in the same order."""

from __future__ import annotations

from collections import deque
from typing import Any

from acclimate.corpus import TokenDataset
from acclimate.device import enable_fast_fp32_matmul, to_device
from acclimate.masking import RandomMasking
from acclimate.methods import Method, get
from acclimate.models import LanguageModel, attach
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.modules import virtual_ids
from acclimate.objectives import Batch
from acclimate.training.batches import Collator, StepDataset
from acclimate.training.engine import Engine, make_reference
from acclimate.training.method import AdaptContext
from acclimate.training.options import add_method_virtual_tokens
from acclimate.training.trainer import train
from acclimate.updates import UpdateRule, summed_importance
from benchmarks.data import make_model, make_texts, make_tokenizer
from benchmarks.gate import Gate, Job

CHEAP = {"dga": {"importance_tokens": 2_000}}
"""Parameters that change what comes before the first step only."""
ENDLESS = 10_000_000
"""Steps that no measurement reaches."""


class CountedSteps(StepDataset):
    """Steps that remember how many tokens each had: the loader reads a step ahead of the training."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.read: deque[int] = deque()
        self.appended = 0

    def __getitem__(self, step: int) -> list[Batch]:
        batches = super().__getitem__(step)
        self.read.append(sum(batch.tokens - self.appended * batch.texts for batch in batches))
        return batches


class StepEnds(UpdateRule):
    """Tells the gate when the optimiser has moved the weights, after the update rule of the method."""

    def __init__(self, gate: Gate, read: deque[int], rule: UpdateRule | None) -> None:
        self.gate, self.read, self.rule = gate, read, rule or UpdateRule()

    def after_backward(self) -> None:
        self.rule.after_backward()

    def before_step(self) -> None:
        self.rule.before_step()

    def after_step(self) -> None:
        self.rule.after_step()
        self.gate.step(self.read.popleft())


def start(job: Job, method: Method | None = None) -> AdaptContext:
    """Build what ``adapt`` builds before it trains."""
    enable_fast_fp32_matmul()
    loaded = LanguageModel(make_model(job.shape, job.seed).eval(), make_tokenizer(job.shape), absent_head=False)
    layers = attach(loaded.model)
    if method is not None:
        add_method_virtual_tokens(loaded, method, job.seed)
    to_device(loaded.model)
    if job.rows is not None:
        rows = TokenDataset.load(job.rows)
    else:
        appended = virtual_ids(loaded.tokenizer)
        texts = make_texts(job.shape, job.count, job.seed, job.lengths)
        rows = TokenDataset.of([[*text.tolist(), *appended] for text in texts])
    return AdaptContext(loaded.model, layers, loaded.tokenizer, rows, RandomMasking(), job.seed, job.precision, False)


def method(name: str, job: Job, gate: Gate, **settings: Any) -> None:
    """Train with any method by its name, DGA with its soft mask and all."""
    _train(job, gate, get(name, **{**CHEAP.get(name, {}), **settings}))


def importance(job: Job, gate: Gate) -> None:
    """Exact importance of heads, text by text; a step of the gate is one whole measurement."""
    run = start(job)
    while True:
        read: list[int] = []

        def batches(read: list[int] = read):
            for batch in run.sample(job.sample_tokens, readings=2):
                read.append(batch.tokens)
                yield batch

        summed_importance(run.model, run.units(("H",)), batches(), precision=run.precision)
        gate.step(sum(read))


def _train(job: Job, gate: Gate, method: Method) -> None:
    run = start(job, method)
    method.prepare(run)
    objectives = method.objectives()
    engine = Engine(run.model, objectives, run.precision, reference=make_reference(objectives, run.model))
    room = training_tokens(run.model, engine.student_views)
    collator = Collator.of(
        run.tokenizer, run.masking, room, rewritings=engine.rewritings, grain=padding_policy(run.model)
    )
    data = CountedSteps(run.rows, collator, batch_size=job.batch, steps=ENDLESS, seed=job.seed)
    data.appended = len(virtual_ids(run.tokenizer))
    rule = StepEnds(gate, data.read, method.update_rule())
    train(
        engine,
        data,
        job.folder / "steps",
        rule=rule,
        seed=job.seed,
        learning_rate=1e-4,
        title="",
        progress=False,
        save_every=ENDLESS,  # the others write no checkpoints, either
    )
