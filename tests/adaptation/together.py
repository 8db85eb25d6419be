"""Code that several processes run, each in the environment of torchrun."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import save_file

from acclimate.data.documents import Corpus
from acclimate.engine import distributed
from acclimate.engine.batches import Collator, StepDataset
from acclimate.engine.distributed import ProcessGroup, join_process_group, leave_process_group
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import StepTrainer
from acclimate.models.kinds import MASKED
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling, TextContrast
from acclimate.parts.updates import UpdateRule
from tests.adaptation.helpers import rows
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


FORK = multiprocessing.get_context("fork")


def launch(run: Callable[[Path], None], out: Path, processes: int = 2) -> None:
    """Run a function with a folder in several processes at once, and check that all of them succeed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = [out / f"{rank}.log" for rank in range(processes)]
    started = [FORK.Process(target=_take_part, args=(run, rank, port, out, logs)) for rank in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(600)
    failed = [process.exitcode for process in started] != [0] * processes
    assert not failed, "\n".join(log.read_text() for log in logs)


def _take_part(run: Callable[[Path], None], rank: int, port: int, out: Path, logs: list[Path]) -> None:
    """Run one process in the environment that torchrun would set; forked to save imports."""
    with logs[rank].open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # not that of pytest
    logging.getLogger("acclimate").addHandler(logging.StreamHandler(sys.stderr))
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(logs), "LOCAL_WORLD_SIZE": len(logs)}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
    os.environ |= {name: str(value) for name, value in place.items()}
    AcceleratorState._reset_state(reset_partial_state=True)  # the state of the parent, which is a single process
    run(out)


def one_step(
    group: ProcessGroup, graph_tokens: int, shard: Callable[[Engine], None] | None = None
) -> dict[str, torch.Tensor]:
    """Run one step of a model without dropout; return terms and gradients."""
    model = tiny_model("bert", **NO_DROPOUT)
    attach(model, sharded=shard is not None)
    importance = {"H": torch.linspace(0, 1, 8).view(2, 4)}
    objectives = [LanguageModelling(), GeneralKnowledgeContrast(importance, 0.2, 0.7), TextContrast()]
    engine = Engine(model, objectives, graph_tokens=graph_tokens, group=group)
    if shard is not None:
        shard(engine)
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, 40)
    steps = StepDataset(rows(2), collator, batch_size=9, steps=3, seed=1, group=group)
    terms = engine.step(steps[1])
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return {f"term {name}": value.clone() for name, value in terms.items()} | gradients


def spy_on_sums(patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Use small buckets; return a list that gets, for each step, the number of buckets and of those started early."""
    steps, finish = [], distributed._GradientSums.finish

    def finishing(self):
        steps.append((len(self._buckets), self._next))
        finish(self)

    def wrap(*args, **kwargs):
        raise AssertionError("the model was wrapped")

    patch.setattr(distributed, "BUCKET_BYTES", 2_000)
    patch.setattr(distributed._GradientSums, "finish", finishing)
    patch.setattr(torch.nn.parallel.DistributedDataParallel, "__init__", wrap)
    return steps


def rounding(group: ProcessGroup) -> list[list[float]]:
    """Return random numbers drawn before, in and after the step of an optimizer with bf16 weights."""
    torch.manual_seed(group.rank)
    engine = SimpleNamespace(group=group, model=torch.nn.Linear(2, 2, dtype=torch.bfloat16), progress=0.0)
    trainer = SimpleNamespace(engine=engine, rule=UpdateRule(), state=SimpleNamespace(global_step=0))
    drawn = [torch.rand(3)]
    StepTrainer._step_with_rule(trainer, lambda: drawn.append(torch.rand(3)))(None)  # type: ignore[arg-type]
    return [values.tolist() for values in (*drawn, torch.rand(3))]


def cost_of_steps(method: str, model: Path, out: Path) -> list[dict[str, int]]:
    """Adapt on an emulated accelerator; return what each step but the last exchanges and waits for.

    ``numbers`` are exchanged between the hosts, for which no accelerator is waited for.
    """
    from acclimate.adaptation.adapt import adapt
    from acclimate.engine.trainer import StepTrainer
    from tests.counting import counted
    from tests.papers.test_contract import CHEAP, DOCUMENTS, SHORT

    counts: Counter[str] = Counter()
    found, step, finish = [], StepTrainer.training_step, distributed._GradientSums.finish

    def counting(name: str):
        call = getattr(torch.distributed, name)

        def run(*args, **kwargs):
            counts["numbers" if kwargs.get("group") is not None else name] += 1
            return call(*args, **kwargs)

        return run

    def finishing(self):
        counts["all_reduce"] -= len(self._buckets)
        finish(self)

    def spied(self, *args, **kwargs):
        found.append({**counts, "waits": ledger.waits})
        counts.clear()
        ledger.reset()
        return step(self, *args, **kwargs)

    with counted(bf16=False) as ledger, pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather", "broadcast", "barrier"):
            patch.setattr(torch.distributed, name, counting(name))
        patch.setattr(distributed._GradientSums, "finish", finishing)
        patch.setattr(StepTrainer, "training_step", spied)
        patch.setattr("acclimate.engine.trainer.log_interval", lambda steps: 50)
        options = {**SHORT, "steps": 5, "batch_size": 8}
        adapt(model, Corpus.of(DOCUMENTS), {method: CHEAP.get(method)}, out, **options)
    return found[1:]


def mixed() -> dict[str, Any]:
    """Return the options of a training with a source, weighted by the losses in training, and replay."""
    law = Corpus.of([f"they {text}" for text in TEXTS])
    return {"mix": "bandit every=1", "sources": {"law": law}, "replay": {Corpus.of(TEXTS): 0.3}}


def main_mixed(out: Path) -> None:
    from acclimate.adaptation.adapt import adapt
    from tests.papers.test_contract import DOCUMENTS, SHORT

    join_process_group()
    options = {**SHORT, "steps": 4, "batch_size": 8}
    adapt(out / "still", Corpus.of(DOCUMENTS), "mlm", out / "mixed-texts", **options, **mixed())
    leave_process_group()


def main(out: Path) -> None:
    from acclimate.adaptation.adapt import adapt
    from acclimate.base.errors import UserError
    from acclimate.tasks.distillation.distill import distill
    from acclimate.tasks.finetune import finetune
    from tests.kills import killed
    from tests.papers.test_contract import DOCUMENTS, SHORT
    from tests.tasks.test_classification import keyword_task

    group = join_process_group()
    patch = pytest.MonkeyPatch()
    steps = spy_on_sums(patch)
    for name, graph_tokens in (("kept", 10**6), ("twice", 0), ("mixed", 10**6 * group.rank)):
        save_file(one_step(group, graph_tokens), out / f"{name}-{group.rank}.safetensors")
    options = {**SHORT, "steps": 4, "batch_size": 8}
    (out / f"buckets-{group.rank}.json").write_text(json.dumps(steps))
    (out / f"rounding-{group.rank}.json").write_text(json.dumps(rounding(group)))
    adapt(out / "still", Corpus.of(DOCUMENTS), "mlm", out / "mlm", **options)
    adapt(out / "still", Corpus.of(DOCUMENTS), "mlm", out / "more", save_every=2, **options)
    with killed(3):
        adapt(out / "still", Corpus.of(DOCUMENTS), "mlm", out / "fewer", save_every=2, **options)
    for name in ("dga", "cut"):
        arguments = (out / "bert", Corpus.of(DOCUMENTS), "dga importance_tokens=200", out / name)
        if name == "cut":
            with killed(3):
                adapt(*arguments, save_every=2, **options)
        adapt(*arguments, save_every=2, **options)
    early = {"importance_error": 1.0}
    patch.setattr("acclimate.adaptation.method.SAMPLE_GROUP_TOKENS", 10)
    adapt(out / "bert", Corpus.of(DOCUMENTS), {"dga": early}, out / "early", **options)
    patch.undo()
    timed = {**options, "steps": None, "max_minutes": 0.004}
    adapt(out / "bert", Corpus.of(DOCUMENTS), {"taco": {"negatives": 5}}, out / "timed", **timed)
    task = keyword_task(train=22, test=12)  # the last batch has one row, so one process gets none
    fine = {"epochs": 2, "batch_size": 7, "select": "dev", "precision": "fp32", "progress": False, "seed": 3}
    finetune(out / "still", task, out=out / "tuned", learning_rate=1e-3, **fine)
    with pytest.raises(UserError, match="first stage of fine-tuning runs in one process"):
        finetune(out / "still", task, first=task, **fine)
    with pytest.raises(UserError, match="Distillation runs in one process"):
        distill(out / "still", out / "bert", task)
    for name in ("lm", "dga"):
        cost = cost_of_steps(name, out / "bert", out / f"counted-{name}")
        (out / f"cost-{name}-{group.rank}.json").write_text(json.dumps(cost))
    leave_process_group()
    assert not torch.distributed.is_initialized()
    leave_process_group()  # no effect in a single process
