"""Fine-tuning a model on a classification task, and measuring it on the task's test split."""

from __future__ import annotations

import json
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from acclimate.backbone import save_model
from acclimate.backbone.device import Precision, choose_precision, default_device
from acclimate.errors import UserError, unknown
from acclimate.evaluation.metrics import NAMES, classification_metrics
from acclimate.files import check_replaceable, new_folder, write_json, write_text
from acclimate.locks import one_writer
from acclimate.tasks.batching import LengthGroupedBatches
from acclimate.tasks.classifier import Classifier, diverged, load_classifier
from acclimate.tasks.data import Example, Task, load_task

CHECK_EVERY = 50
"""Steps between two looks at the loss: each look waits for the accelerator."""


@dataclass(frozen=True)
class FinetuneResult:
    """What one fine-tuning run measured; plain values that can be written as JSON."""

    task: str
    seed: int
    metrics: dict[str, Any]
    """Of the test split: see :func:`acclimate.evaluation.metrics.classification_metrics`."""
    dev_metrics: dict[str, Any] | None
    """The same of the dev split, for the weights that were kept; None without a dev split."""
    gold: list[int]
    predicted: list[int]
    probabilities: list[list[float]]
    """Softmax over the classes for each test item, in the order of the file: (items, classes)."""
    labels: list[str]
    seconds: float
    train_size: int
    """Examples that were trained on, after ``few_shot``."""
    steps: int
    epoch: int
    """The epoch whose weights were kept, counted from one."""
    train_loss: float
    """Mean over all steps, in nats."""
    precision: str


@one_writer
def finetune(
    model: str | Path,
    task: Task | str | Path,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    epochs: int = 5,
    learning_rate: float = 3e-5,
    batch_size: int = 16,
    max_length: int = 128,
    few_shot: int | None = None,
    select: Literal["last", "dev"] = "last",
    metric: str = "macro_f1",
    warmup: float = 0.06,
    weight_decay: float = 0.01,
    precision: str = "auto",
    progress: bool = True,
) -> FinetuneResult:
    """Fine-tune a model on a task and measure it on the test split.

    AdamW, a learning rate that rises over the first ``warmup`` of the steps and falls linearly to zero, and gradients
    clipped to a norm of one. The classification head is drawn from ``seed``. A checkpoint of a masked language model
    has no pooler either; where the architecture wants one (BERT), that is drawn from ``seed`` too, near the identity.

    Args:
        model: A Hugging Face model folder, or a name on the hub.
        task: A task, or its folder (see :func:`acclimate.tasks.load_task`).
        seed: Decides the new weights, the order of the examples, dropout, and what ``few_shot`` draws.
        out: Where to save the classifier, its tokenizer, ``metrics.json`` and ``predictions.jsonl``.
        epochs: Passes over the train split.
        learning_rate: The peak.
        batch_size: Examples a step.
        max_length: Tokens that are read of an example; of a pair the longer text is cut first. Never more than the
            model can read.
        few_shot: Train on so many examples of each class only.
        select: Which weights to keep: those of the ``"last"`` epoch, as the DGA paper does, or those of the epoch that
            is best on ``"dev"`` (the earliest of equals).
        metric: What ``select="dev"`` compares: accuracy, macro_f1 or micro_f1.
        warmup: Share of the steps, 0 to 1.
        weight_decay: Of all weights but biases and norms.
        precision: ``"fp32"``, ``"bf16"`` (autocast, weights stay in fp32), or ``"auto"``: bf16 where the hardware
            has it.
        progress: Show a progress bar.

    Raises:
        UserError: If the model or the task cannot be used, an option has no sense, or the loss is not a number.
    """
    started = time.perf_counter()
    data = task if isinstance(task, Task) else load_task(task)
    _check(data, select, metric, out, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, warmup=warmup)
    train = data.train if few_shot is None else data.few_shot(few_shot, seed)
    device = default_device()
    kind = choose_precision(precision, device)

    set_seed(seed)  # before the new weights are drawn
    classifier = load_classifier(model, data.labels, max_length, device)
    steps = epochs * math.ceil(len(train) / batch_size)
    with tempfile.TemporaryDirectory(prefix="acclimate-") as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=batch_size,
            num_train_epochs=epochs,
            learning_rate=learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=math.ceil(warmup * steps),
            weight_decay=weight_decay,
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            bf16=kind == "bf16",
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type == "cuda",
            seed=seed,
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=not progress,
        )
        best = _Best(classifier, data, kind, metric) if select == "dev" else None
        trainer = _Trainer(
            model=classifier.model,
            args=arguments,
            data_collator=classifier.collate,
            train_dataset=classifier.features(train),
            callbacks=[best] if best else None,
        )
        trainer.remove_callback(PrinterCallback)
        if progress:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(_Bar)
        trainer.train()
        loss = trainer.mean_loss()
    if best:
        classifier.model.load_state_dict(best.weights)
    dev_metrics = _measure(classifier, data, data.dev, kind)[0] if data.dev else None
    metrics, probabilities = _measure(classifier, data, data.test, kind)
    result = FinetuneResult(
        task=data.name,
        seed=seed,
        metrics=metrics,
        dev_metrics=dev_metrics,
        gold=[example.label for example in data.test],
        predicted=probabilities.argmax(1).tolist(),
        probabilities=probabilities.tolist(),
        labels=list(data.labels),
        seconds=time.perf_counter() - started,
        train_size=len(train),
        steps=steps,
        epoch=best.epoch if best else epochs,
        train_loss=loss,
        precision=kind,
    )
    if out is not None:
        _save(Path(out), classifier, result)
    return result


def _check(data: Task, select: str, metric: str, out: str | Path | None, **numbers: float) -> None:
    if select not in ("last", "dev"):
        raise unknown("choice of weights", select, ("last", "dev"))
    if metric not in NAMES:
        raise unknown("metric", metric, NAMES)
    if select == "dev" and not data.dev:
        raise UserError(f"select='dev' needs a dev file, and the task '{data.name}' has none; use select='last'.")
    for name in ("epochs", "batch_size"):
        if numbers[name] < 1 or numbers[name] != int(numbers[name]):
            raise UserError(f"{name}={numbers[name]} must be a whole number of at least 1.")
    if not 0 < numbers["learning_rate"] < math.inf:
        raise UserError(f"learning_rate={numbers['learning_rate']} must be above 0.")
    if not 0 <= numbers["warmup"] <= 1:
        raise UserError(f"warmup={numbers['warmup']} must lie between 0 and 1.")
    check_replaceable(out, "predictions.jsonl", "a fine-tuned model")


class _Trainer(Trainer):
    """A trainer with length-grouped batches that stops when the loss is not a number."""

    total: Tensor | float = 0.0
    count = 0

    def get_train_dataloader(self) -> DataLoader:
        rows: list[dict[str, Any]] = self.train_dataset  # type: ignore[assignment]
        lengths = [len(row["input_ids"]) for row in rows]
        batches = LengthGroupedBatches(lengths, self.args.train_batch_size, self.args.seed)
        loader: DataLoader = DataLoader(
            rows,  # type: ignore[arg-type]
            batch_sampler=batches,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        loss = super().training_step(*args, **options)
        self.total = self.total + loss.detach()  # a NaN stays in the sum
        self.count += 1
        if self.count % CHECK_EVERY == 0:
            self.mean_loss()
        return loss

    def mean_loss(self) -> float:
        """Return the mean of the losses so far, in nats."""
        loss = float(self.total) / self.count
        if not math.isfinite(loss):
            raise diverged()
        return loss


class _Bar(ProgressCallback):
    """The progress bar, without the dictionary that is printed over it at the end."""

    def on_log(self, *_: Any, **__: Any) -> None:
        pass


class _Best(TrainerCallback):
    """Measures on dev after each epoch and keeps a copy of the best weights in memory."""

    def __init__(self, classifier: Classifier, task: Task, precision: Precision, metric: str):
        self.classifier, self.task, self.precision, self.metric = classifier, task, precision, metric
        self.epoch, self.score, self.weights = 0, -1.0, dict[str, Tensor]()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        metrics, _probabilities = _measure(self.classifier, self.task, self.task.dev, self.precision)
        if metrics[self.metric] > self.score:
            self.epoch, self.score = round(state.epoch or 0), metrics[self.metric]
            weights = self.classifier.model.state_dict()
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}


def _measure(
    classifier: Classifier, task: Task, examples: list[Example], precision: Precision
) -> tuple[dict[str, Any], Tensor]:
    """Return the metrics and the probabilities (examples, classes)."""
    probabilities = classifier.probabilities(examples, precision)
    gold = [example.label for example in examples]
    return classification_metrics(gold, probabilities.argmax(1).tolist(), task.labels), probabilities


def _save(out: Path, classifier: Classifier, result: FinetuneResult) -> None:
    with new_folder(out) as folder:
        save_model(classifier.model, folder, out)
        classifier.tokenizer.save_pretrained(folder)
        summary = asdict(result)
        rows = zip(summary.pop("gold"), summary.pop("predicted"), summary.pop("probabilities"), strict=True)
        write_json(folder / "metrics.json", summary)
        lines = [
            {"gold": result.labels[gold], "predicted": result.labels[predicted], "probabilities": probabilities}
            for gold, predicted, probabilities in rows
        ]
        write_text(
            folder / "predictions.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        )
