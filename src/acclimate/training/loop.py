"""One training with checkpoints, from a data set of steps to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import TrainerCallback, TrainingArguments, set_seed

from acclimate.backbone.device import default_device, one_device
from acclimate.backbone.freed import ReturnFreedMemory
from acclimate.training.batches import Steps
from acclimate.training.engine import Engine
from acclimate.training.progress import TrainingBar
from acclimate.training.saved import newest, remove_broken
from acclimate.training.trainer import Clock, StepTrainer, resume_clock
from acclimate.updates import UpdateRule


def train(
    engine: Engine,
    data: Steps,
    work: Path,
    *,
    rule: UpdateRule | None,
    seed: int,
    learning_rate: float,
    title: str,
    progress: bool,
    weight_decay: float = 0.0,
    warmup: float = 0.1,
    minutes: float | None = None,
    save_every: int | None = None,
    appended: int = 0,
    callbacks: Sequence[Callable[[StepTrainer], TrainerCallback]] = (),
    report_to: Sequence[str] = (),
    run_name: str | None = None,
) -> StepTrainer:
    """Train with checkpoints in ``work``; go on from the last whole one if there is one."""
    work.mkdir(parents=True, exist_ok=True)
    if engine.group.first:
        remove_broken(work)
    engine.group.wait()
    set_seed(seed)
    args = one_device(
        TrainingArguments(
            output_dir=str(work),
            use_cpu=default_device().type == "cpu",
            max_steps=len(data),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_epsilon=1e-6,
            max_grad_norm=1.0,
            logging_steps=max(1, min(50, len(data) // 50)),
            logging_nan_inf_filter=False,
            save_strategy="no",
            seed=seed,
            disable_tqdm=True,
            report_to=list(report_to) or "none",
            run_name=run_name,
            remove_unused_columns=False,
        )
    )
    with TrainingBar(title, enabled=progress) as bar:
        trainer = StepTrainer(
            engine,
            args,
            data,
            rule=rule,
            clock=Clock(None if minutes is None else 60 * minutes, engine.group),
            log_file=work / "log.jsonl",
            warmup=warmup,
            progress=bar,
            save_every=save_every,
            appended=appended,
        )
        trainer.add_callback(ReturnFreedMemory())
        for callback in callbacks:
            trainer.add_callback(callback(trainer))
        checkpoint = newest(work)
        if checkpoint is not None:
            resume_clock(checkpoint, trainer)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    # Left over from the last step, it would be in the way of whatever the caller does with the model.
    engine.readers["student"].zero_grad(set_to_none=True)
    return trainer
