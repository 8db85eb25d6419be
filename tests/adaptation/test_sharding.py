"""Two processes that share the weights (FSDP2) compute the same as one process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.distributed import join_process_group, leave_process_group
from acclimate.engine.sharding import check_sharding, shard
from acclimate.engine.steps import Engine
from acclimate.models.checkpoints import WEIGHTS
from acclimate.models.loading import LanguageModel
from acclimate.tasks.finetune import finetune
from tests.adaptation.together import NO_DROPOUT, launch, one_step
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import CHEAP, DOCUMENTS, SHORT, SINGLE_STAGE, TASK, task_of
from tests.tiny import TEXTS, save_tiny

GRAPHS = {"kept": 10**6, "twice": 0, "mixed": 10**6}


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The folder with the terms and gradients of single steps of two processes that share the weights."""
    out = tmp_path_factory.mktemp("steps")
    launch(_take_steps, out)
    for name, graph_tokens in GRAPHS.items():
        save_file(one_step(join_process_group(), graph_tokens), out / f"{name}.safetensors")
    return out


def _take_steps(out: Path) -> None:
    group = join_process_group(fsdp=True)
    for name, graph_tokens in GRAPHS.items():
        with pytest.MonkeyPatch.context() as patch:
            if name == "mixed" and group.rank:  # this process has more micro-batches, and keeps no graph
                patch.setattr(Collator, "plan_share", _plan_single_rows)
                graph_tokens = 0
            found = one_step(group, graph_tokens, _shard)
        shards = [value for value in found.values() if isinstance(value, DTensor)]
        assert len(shards) > 40 and all(value.to_local().numel() < value.numel() for value in shards)
        whole = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in found.items()}
        save_file(whole, out / f"{name}-{group.rank}.safetensors")
    leave_process_group()


def _plan_single_rows(collator, lengths, group, plan=Collator.plan_share):
    return [[row] for rows in plan(collator, lengths, group) for row in rows]


def _shard(engine: Engine) -> None:
    shard(engine, LanguageModel(engine.model, None))


@each("name", list(GRAPHS))
def test_loss_and_gradients_are_those_of_one_process(steps, name):
    """MLM, and contrasts with gated heads and texts of both processes, which may have other numbers of passes."""
    alone = load_file(steps / f"{name}.safetensors")
    for rank in range(2):
        shared = load_file(steps / f"{name}-{rank}.safetensors")
        assert shared.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(shared[key], value, rtol=1e-5, atol=1e-6, msg=f"{key} in process {rank}")


LAUNCHED = {"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}


@each(
    ("fsdp", "environment", "message"),
    [
        (True, {"WORLD_SIZE": "1"}, "several processes; start them with torchrun"),
        (False, {**LAUNCHED, "FSDP_VERSION": "1"}, "add --fsdp_version 2"),
        (False, {"WORLD_SIZE": "2", "ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed is not supported"),
        (False, {**LAUNCHED, "FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params to false"),
        (False, {**LAUNCHED, "FSDP_ACTIVATION_CHECKPOINTING": "true"}, "Use --gradient-checkpointing"),
        (None, LAUNCHED, "Only adapt and pretrain"),
    ],
)
def test_other_kinds_of_sharding_are_refused(fsdp, environment, message, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        join_process_group(fsdp)


def test_one_process_launched_with_fsdp_is_a_warning(monkeypatch, caplog):
    for name, value in {**LAUNCHED, "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert join_process_group().size == 1
    assert "FSDP has no effect on one process" in caplog.text


@pytest.mark.needs("tapter")
@each(
    ("options", "method", "precision", "message"),
    [
        ({}, "tapter", "bf16", "method 'tapter' changes the whole model"),
        ({"adapter": SimpleNamespace(quantization="4bit")}, "lm", "bf16", "remove 'quantize'"),
        ({"optimizer": "adamw-8bit"}, "lm", "bf16", "use adamw and fp32"),
        ({"weights": "bf16"}, "lm", "bf16", "use adamw and fp32"),
        ({"compile": True}, "lm", "bf16", "remove --compile"),
        ({}, "lm", "fp16", "use --precision bf16 or fp32"),
    ],
)
def test_what_cannot_be_sharded_is_refused_before_the_model_is_loaded(
    options, method, precision, message, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = {"fsdp": True, "adapter": None, "optimizer": "adamw", "weights": "fp32", "compile": False, **options}
    with pytest.raises(UserError, match=message):
        check_sharding(SimpleNamespace(**given), get(method), given["adapter"], precision)
    given["fsdp"] = False
    assert not check_sharding(SimpleNamespace(**given), get(method), None, precision)


OPTIONS = {**SHORT, "steps": 4, "batch_size": 8}
GENERAL = Corpus.of(TEXTS)
LETTERS = Corpus.of(["z q x 9 8 j k v w"] * 4)
"""Text on which the loss rises after the first step."""
RUNS = {
    "lm": ("bert", "lm", {}),
    "dga": ("bert", "dga", {"save_every": 2}),
    "units": ("bert", {"dga": {**CHEAP["dga"], "parts": "H,I,O,E"}}, {}),
    "gradient": ("bert", {"dga": {**CHEAP["dga"], "mask_on": "gradient"}}, {}),
    "lora": ("bert", "lm", {"adapter": "lora"}),
    "masked lora": ("bert", "dga", {"adapter": "lora"}),
    "kd": ("bert", "kd", {}),
    "lora and kd": ("bert", "kd", {"adapter": "lora"}),
    "spans": ("bert", "infoword", {}),
    "adapter": ("bert", "adapter", {}),
    "tokens": ("bert", "tacl", {}),
    "deit": ("bert", "deit", {}),
    "recomputed": ("llama", "lm", {"gradient_checkpointing": True}),
    "shared layers": ("albert", "dga", {}),
    "no clipping": ("modernbert", "lm", {"max_gradient_norm": 0}),
    "kept": ("bert", "lm", {"keep_steps": (0, 2), "heldout": GENERAL, "heldout_every": 2, "progress": True}),
    "mixed": ("bert", "lm", {"replay": {GENERAL: 0.3}}),
    "best": ("bert", "lm", {"heldout": LETTERS, "heldout_every": 1, "keep_best": True, "learning_rate": 0.01}),
    "pulled": (
        "bert",
        "lm",
        {"rules": {"l2-sp": 0.5, "ewc": {"strength": 50, "text": GENERAL}, "layer-decay": 0.5, "freeze": ["layer.0"]}},
    ),
}
"""Architecture, method and options of runs, by name."""
REFUSED = {"prompt", *(name for name in SINGLE_STAGE if get(name).changes_result)}
"""Methods that need whole weights. All others are run, but for one that has one process."""
_OTHERS = {*SINGLE_STAGE} - {"memory"} - {"lm", "dga"} - {*REFUSED}
RUNS |= {name: ("bert", name, {}) for name in sorted(_OTHERS)}
CUT = {"fewer": "lm", "more": "lm", "same": "lm", "cut lora": "lora"}
"""Runs that are killed and continue: with one process, from one process, and twice with the same number."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, _own_cache):
    """The folder with the results of two processes, ``whole`` and ``sharded``, and of runs that were killed."""
    out = tmp_path_factory.mktemp("runs")
    for kind in {kind for kind, _, _ in RUNS.values()}:
        save_tiny(kind, out / "models" / kind)
    save_tiny("bert", out / "models" / "still", **NO_DROPOUT)
    _run(out, "lm", out / "alone", model="still")
    _run(out, "selective", out / "alone")  # finds its tokens in one process
    with killed(3):
        _run(out, "more", out, model="still")
    launch(_take_runs, out)
    _run(out, "fewer", out, model="still")
    return out


def _take_runs(out: Path) -> None:
    for name in RUNS:
        for folder in ("whole", "sharded"):
            _run(out, name, out / folder, fsdp=folder == "sharded")
    for name in CUT:
        if name != "more":
            with killed(3):
                _run(out, name, out, model="still", fsdp=True)
        if name != "fewer":
            _run(out, name, out, model="still", fsdp=True)
    for folder in ("whole", "sharded"):
        _run(out, "lm", out / f"bf16 {folder}", precision="bf16", fsdp=folder == "sharded")
    _run(out, "lora", out / "still", model="still", fsdp=True)
    for name in REFUSED:
        with pytest.raises(UserError, match=r"cannot be sharded \(FSDP\): .* use another method"):
            _run(out, name, out, fsdp=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LAUNCHED.items():
            patch.setenv(name, value)
        _run(out, "lm", out / "launched", model="still")
        with pytest.raises(UserError, match="Only adapt and pretrain"):
            finetune(out / "models" / "bert", TASK, progress=False)
    leave_process_group()


def _run(out: Path, name: str, folder: Path, model: str = "", **options):
    kind, method, own = RUNS.get(CUT.get(name, name), ("bert", name, {}))
    saved = {"save_every": 2} if name in CUT else {}
    task = task_of(next(iter(method)) if isinstance(method, dict) else method)
    method = {method: CHEAP.get(method)} if isinstance(method, str) else method
    options = {**OPTIONS, "task": task, **own, **saved, **options}
    return adapt(out / "models" / (model or kind), Corpus.of(DOCUMENTS), method, folder / name, **options)


@pytest.mark.slow
@each("name", list(RUNS))
def test_an_adaptation_ends_with_the_same_weights(runs, name):
    """As if every process had all weights, with the same dropout."""
    whole, sharded = runs / "whole" / name, runs / "sharded" / name
    _assert_same_weights(sharded, whole, runs / "models" / RUNS[name][0])
    results = [read_json(folder / "acclimate.json")["result"] for folder in (whole, sharded)]
    assert results[1]["tokens"] == results[0]["tokens"]
    assert results[1]["losses"] == pytest.approx(results[0]["losses"], rel=1e-5)
    assert [result.get("kept_step") for result in results] == [1 if name == "best" else None] * 2


@pytest.mark.slow
@each("name", ["launched/lm", "more", "fewer", "same", "cut lora"])
def test_runs_that_were_killed_or_launched_by_accelerate_end_with_the_same_weights(runs, name):
    """The weights are those of one process, or those of a run that was not killed."""
    whole = runs / "still" / "lora" if name == "cut lora" else runs / "alone" / "lm"
    _assert_same_weights(runs / name, whole, runs / "models" / "still")


@pytest.mark.slow
def test_half_precision_is_as_close_to_full_precision_as_in_one_process(runs):
    """Weights are gathered in bf16, and gradients are summed in fp32."""
    full, start = _weights(runs / "whole" / "lm"), _weights(runs / "models" / "bert")
    errors = []
    for folder in ("whole", "sharded"):
        half = _weights(runs / f"bf16 {folder}" / "lm")
        moved = sum(float((full[key] - start[key]).square().sum()) for key in full)
        errors.append((sum(float((half[key] - full[key]).square().sum()) for key in full) / moved) ** 0.5)
    assert 0 < errors[1] < min(0.05, 2 * errors[0])


@pytest.mark.slow
def test_models_of_intermediate_steps_are_whole(runs):
    for step in ("step-000000", "step-000002"):
        whole, sharded = (runs / folder / "kept" / step for folder in ("whole", "sharded"))
        _assert_same_weights(sharded, whole)
        transformers.AutoModelForMaskedLM.from_pretrained(sharded)
    lines = [(runs / folder / "kept" / "log.jsonl").read_text().splitlines() for folder in ("whole", "sharded")]
    terms = [[json.loads(line)["heldout"]["loss"] for line in log if "heldout" in line] for log in lines]
    assert len(terms[0]) == 3 and terms[1] == pytest.approx(terms[0], rel=1e-5)


@pytest.mark.slow
def test_the_state_of_each_process_is_said(runs):
    found = (runs / "0.log").read_text()
    assert "FSDP: each of the 2 processes holds" in " ".join(found.split())


def _assert_same_weights(folder: Path, expected: Path, start: Path | None = None) -> None:
    """Check that weights are the same to 1e-6, and that some are no longer those at the start."""
    found, whole = _weights(folder), _weights(expected)
    assert found.keys() == whole.keys()
    for key, value in whole.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6, msg=key)
    before = {} if start is None else _weights(start)
    assert start is None or any(key not in before or not torch.equal(whole[key], before[key]) for key in whole)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / "model.safetensors"
    return load_file(file if file.is_file() else folder / WEIGHTS)
