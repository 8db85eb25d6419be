"""What holds for the first step of every method, checked inside its training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch

from acclimate.base.device import preserve_rng_state
from acclimate.engine.steps import Engine
from tests.parts.objectives.layouts import cut


@contextlib.contextmanager
def checked_steps() -> Iterator[list[Engine]]:
    """Check the first step of each training with gradients; yield the list of engines that were checked."""
    step, frozen, checked = Engine.step, WeakKeyDictionary(), []

    def checked_step(engine, batches, *, backward=True):
        if not backward:
            return step(engine, batches, backward=False)
        if engine not in frozen:
            frozen[engine] = [part.clone() for part in frozen_weights(engine)]
            checked.append(engine)
            training, progress = engine.model.training, engine.progress
            engine.model.eval()
            engine.progress = 0.5  # some terms have no gradient at the start
            with preserve_rng_state():
                check_first_step(step, engine, batches)
            engine.model.train(training)
            engine.progress = progress
        for before, now in zip(frozen[engine], frozen_weights(engine), strict=True):
            assert torch.equal(before, now), "a frozen part of the method changed"
        return step(engine, batches)

    Engine.step = checked_step
    try:
        yield checked
    finally:
        Engine.step = step


def frozen_weights(engine: Engine) -> list[torch.Tensor]:
    """The weights of all readers but the student, and of models that terms keep."""
    own = set(engine.model.modules())
    found = [model for name, model in engine.readers.items() if name != "student"]
    for term in (*engine.additive, *engine.over_batch):
        for value in vars(term).values():
            parts = value.values() if isinstance(value, dict) else [value]
            found += [part for part in parts if isinstance(part, torch.nn.Module) and part not in own]
    return [weight for model in found for weight in model.state_dict().values()]


def check_first_step(step, engine: Engine, batches) -> None:
    """Check the step in one piece against other ways to compute it, without dropout."""

    def run(some, parts):
        engine.model.zero_grad()
        torch.manual_seed(0)
        terms = step(some, parts)
        found = {
            name: one.grad.float().clone() for name, one in engine.model.named_parameters() if one.grad is not None
        }
        engine.model.zero_grad()
        return terms, found

    def differ(ours, theirs):
        """The largest difference of two gradients, relative to the largest value of the whole gradient."""
        scale = max(float(value.abs().max()) for value in whole.values())
        zero = torch.zeros(())
        names = ours.keys() | theirs.keys()
        return max(float((ours.get(name, zero) - theirs.get(name, zero)).abs().max()) for name in names) / scale

    terms, whole = run(engine, batches)
    if all(bool((batch.text >= 0).any(1).all()) and batch.texts == len(batch.text) for batch in batches):
        pieces = [piece for batch in batches for piece in cut(batch, 1)][::-1]
        again, split = run(engine, pieces)
        assert differ(split, whole) < 1e-4, "gradients depend on micro-batches or the order of texts"
        torch.testing.assert_close(again, terms, atol=1e-5, rtol=1e-4)
    objectives = [*engine.additive, *engine.over_batch]
    for term in objectives if len(objectives) > 1 else []:
        weight, found = term.weight, []
        for term.weight in (0.0, 1e-9):
            found.append(run(engine, batches)[1])
        term.weight = weight
        assert differ(*found) < 1e-5, f"weight 0 of {term.name} is not a weight of almost 0"
    readers = {name: model for name, model in engine.readers.items() if name not in ("student", "reference")}
    rough = Engine(engine.model, objectives, "bf16", engine.readers.get("reference"), readers)
    rough.progress = engine.progress
    again, found = run(rough, batches)
    for name, value in terms.items():
        torch.testing.assert_close(
            again[name], value, atol=0.02, rtol=0.05, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert found.keys() == whole.keys()
    inner, norms = (
        [sum(float((a[name] * b[name]).sum()) for name in whole) for a, b in pairs]
        for pairs in ([(whole, found)], [(whole, whole), (found, found)])
    )
    assert inner[0] > 0.97 * (norms[0] * norms[1]) ** 0.5, "the gradient in bf16 is another one"
