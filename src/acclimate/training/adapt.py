"""Adapting a model: from a model, text and a method to a model folder.

A model that surely has a masked-LM head.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.cards import write_adapted_card
from acclimate.corpus import Corpus, tokenize
from acclimate.device import choose_precision, default_device, to_device
from acclimate.errors import UserError, check_positive
from acclimate.files import atomic_folder, check_writable, safe_join, write_json
from acclimate.locks import with_output_lock
from acclimate.masking import MASK_RATE, Strategy, identify, resolve
from acclimate.models import LoadedModel, attach, load_masked_lm, save_model
from acclimate.models.batching import max_graph_tokens, padding_policy, training_tokens
from acclimate.models.checkpoints import model_fingerprint
from acclimate.models.encoding import check_packable
from acclimate.training.batches import Collator, Layout, StepDataset
from acclimate.training.callbacks import (
    KEPT_FOLDER,
    KeepStepsCallback,
    check_keep_steps,
    check_trackers,
    copy_kept_models,
    tensorboard_folder,
)
from acclimate.training.distributed import join_process_group
from acclimate.training.engine import Engine, check_dropout, make_reference
from acclimate.training.heldout import HeldOutText
from acclimate.training.inputs import TASK_EPOCHS, TextInput, open_task, resolve_texts
from acclimate.training.method import AdaptContext, Method, cache_folder, get
from acclimate.training.mlm_head import HEAD_TOKENS, warm_up_head
from acclimate.training.options import Budget, add_method_virtual_tokens, check_hyperparameters, check_length
from acclimate.training.progress import TrainingBar
from acclimate.training.result import (
    MANIFEST_FILE,
    AdaptResult,
    cache_masked_texts,
    describe_masked_texts,
    load_finished,
    load_masked_texts,
    open_work_folder,
    remove_work_folder,
    sample_masked_texts,
)
from acclimate.training.stages import adapt_in_stages, stages_folder
from acclimate.training.trainer import LOG_FILE, StepTrainer, train
from acclimate.version import __version__


@with_output_lock
def adapt(
    model: str | Path | Callable[[], Path],
    corpus: TextInput | None = None,
    method: str | Method = "mlm",
    out: str | Path = "adapted",
    *,
    task: Any = None,
    steps: int | None = None,
    epochs: float | None = None,
    tokens: int | None = None,
    max_minutes: float | None = None,
    seed: int = 0,
    max_length: int = 128,
    batch_size: int = 64,
    learning_rate: float | None = None,
    mask_rate: float = MASK_RATE,
    masking: str | Strategy | None = None,
    masking_settings: dict[str, Any] | None = None,
    weight_decay: float = 0.0,
    warmup: float = 0.1,
    dropout: float | None = None,
    precision: str = "auto",
    layout: Layout = "padded",
    settings: dict[str, Any] | None = None,
    text_column: str = "text",
    head_tokens: int = HEAD_TOKENS,
    heldout: TextInput | None = None,
    heldout_every: int | None = None,
    save_every: int | None = None,
    keep_steps: Collection[int] = (),
    overwrite: bool = False,
    progress: bool = True,
    report_to: str | Sequence[str] | None = None,
) -> AdaptResult:
    """Adapt a masked language model to domain text.

    The folder ``out`` appears whole at the end: an ordinary Hugging Face model with its tokenizer, beside the resolved
    configuration (``acclimate.json``) and the losses of every stretch (``log.jsonl``). If the run is killed, the same
    call goes on from its last checkpoint; if it had finished, the same call returns at once.

    Started by ``torchrun`` or ``accelerate launch``, its processes share each step: the same batch as one process
    would read, with the same loss (see :mod:`acclimate.training.distributed`).

    The defaults suit one machine and some million tokens. The DGA paper takes 2,500 steps of 256 texts of 164 tokens
    at 1e-4, and its contrast sees as many negatives as a step has texts: with the means for it, set ``batch_size`` and
    ``max_length`` so (``examples/dga/paper.yaml``).

    Args:
        model: A model folder or a name on the hub, or what makes the folder as soon as all else has been checked. An
            absent masked-LM head is warmed up first.
        corpus: Text files, folders or globs, or a :class:`acclimate.corpus.Corpus`; None for the text of the task.
        method: Name of a method, or a method with its parameters.
        out: Folder to make.
        task: A labelled task or its folder, for methods that look at one; of its text only the train split is read.
        steps: Optimiser steps to train. One of ``steps``, ``epochs``, ``tokens`` and ``max_minutes``; by default
            1 epoch, or 100 over the text of a task.
        epochs: Passes over the corpus.
        tokens: Tokens of text to read.
        max_minutes: Minutes of training; the learning rate decays with the time. Not repeatable to the bit.
        seed: From it comes every random choice: the same seed gives the same weights on the same machine, on a CPU to
            the bit, on an accelerator up to the rounding of sums whose order is open there.
        max_length: Tokens of a text at most, without those that a method appends; a longer document becomes several.
        batch_size: Texts a step, however many micro-batches they make.
        learning_rate: Peak, reached after the warm-up, then linear to zero; by default what the method says, mostly
            1e-4.
        mask_rate: Share of tokens that are chosen for prediction.
        masking: How they are chosen: a name, as ``whole-word`` (see ``docs/masking.md``), or a strategy with its
            parameters and its own rate; by default at random.
        masking_settings: Parameters of the masking, where it is given by name.
        weight_decay: Of AdamW, on matrices only.
        warmup: Share of the training in which the learning rate rises.
        dropout: Probability of every dropout of the encoder during the adaptation, in place of those of its
            configuration, which the adapted model keeps. ALBERT and ModernBERT come without dropout; methods that read
            a text under two draws of it, such as ``dga`` and ``mlm-simcse``, need one (0.1 is usual).
        precision: ``fp32``, ``bf16`` (autocast, weights stay fp32), or ``auto``: bf16 where the hardware has it.
        layout: ``padded`` rows of one text, or ``packed`` rows of several that do not see each other.
        settings: Parameters of the method, where it is given by name.
        text_column: Where the text is in tables and JSON lines.
        head_tokens: Budget of the warm-up of an absent head, in tokens.
        heldout: Text on which every term is measured during training, without dropout, its masks always the same and
            those of ``masking``, also where a method brings its own; it goes to ``log.jsonl``. Each time costs a
            forward over all of it, about a third of training on as much.
        heldout_every: Steps between two of these (50); the start and the end are measured, too.
        save_every: Steps between checkpoints; by default one every five minutes.
        keep_steps: Optimiser steps whose models are kept, as ``out/step-000100``; 0 is the start.
        overwrite: Replace an ``out`` that another configuration made.
        progress: Show bars.
        report_to: Trackers of experiments that are told what ``log.jsonl`` is: names such as ``tensorboard`` or
            ``wandb``, see :func:`acclimate.training.callbacks.check_trackers`.

    Raises:
        UserError: If something is wrong with the input; nothing that was written before is lost.
    """
    asked = dict(locals())
    trackers = check_trackers(report_to)
    method = _resolve_method(method, settings)
    group = join_process_group()
    progress = progress and group.first
    task = open_task(task)
    texts = resolve_texts(method, corpus, task, text_column)
    text = next(iter(texts.values()))
    usual = TASK_EPOCHS if corpus is None or method.reads == "task" else 1
    budget = Budget.of(steps, epochs, tokens, max_minutes, usual)
    aside = HeldOutText.of(heldout, heldout_every, text_column)
    learning_rate = method.learning_rate if learning_rate is None else learning_rate
    check_positive(batch_size=batch_size, max_length=max_length, learning_rate=learning_rate, head_tokens=head_tokens)
    check_hyperparameters(seed, warmup, weight_decay, layout, save_every)
    hidden = resolve(masking, mask_rate, masking_settings)
    if (masking or masking_settings) and type(method).masking is not Method.masking:
        raise UserError(f"Method '{method.name}' says itself what is masked; leave the masking out.")
    if method.sets_mask_rate and mask_rate != MASK_RATE:
        raise UserError(f"Method '{method.name}' says itself how much is masked; leave mask-rate out.")
    out = Path(out)
    device = default_device()
    chosen = choose_precision(precision, device)
    config = {
        "acclimate": __version__,
        "model": method.starts_from or str(model),
        "model_files": None if method.starts_from else model_fingerprint(str(model)),
        "corpus": text.fingerprint,
        "task": None if task is None else task.fingerprint(),
        "method": method.name,
        "settings": method.settings(),
        "files": method.file_contents(),
        "budget": asdict(budget),
        "seed": seed,
        "max_length": max_length,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "mask_rate": mask_rate,
        "masking": identify(hidden, mask_rate),
        "weight_decay": weight_decay,
        "warmup": warmup,
        "dropout": dropout,
        "precision": chosen,
        "layout": layout,
        "head_tokens": head_tokens,
        "heldout": None if aside is None else aside.identity(),
    }
    config.update(check_keep_steps(keep_steps, method, budget.steps))
    work = out.parent / f".{out.name}.work"
    if (done := load_finished(out, config, overwrite)) is not None:
        for left in (work, stages_folder(out)):
            remove_work_folder(left, config, group)
        done.masked = load_masked_texts(config)
        return done
    check_writable(out)
    model = model() if callable(model) else model
    if method.stages():
        own = ("model", "corpus", "method", "out", "task", "settings", "overwrite")
        options = {**{name: value for name, value in asked.items() if name not in own}, "progress": progress}
        return adapt_in_stages(adapt, method, texts, model, out, config, options, group)
    loaded = load_masked_lm(model, dropout=dropout)
    layers = attach(loaded.model)
    if layout == "packed":
        check_packable(loaded.model)
    appended = add_method_virtual_tokens(loaded, method, seed)
    check_length(loaded, max_length + appended)
    with group.main_process_first():
        rows = tokenize(
            text, loaded.tokenizer, max_length + appended, cache=cache_folder() / "rows", progress=progress
        )
    TrainingBar.say(f"Text: {text.report.summary()}.", enabled=progress or bool(text.report.problems))
    open_work_folder(work, config, group)
    to_device(loaded.model)
    if loaded.absent_head:
        warm_up_head(loaded, rows, work / "head", head_tokens, seed, chosen, progress, group, appended)
    about = {"paper": method.paper, "summary": method.summary}
    result = AdaptResult(out, method.name, 0, 0, 0.0, {}, config, about=about)
    keep = partial(_write_step_model, out, loaded, config, text, result)
    if method.trains:
        run = AdaptContext(loaded.model, layers, loaded.tokenizer, rows, hidden, seed, chosen, progress, group, task)
        method.prepare(run)
        result.accounts = run.accounts
        objectives = method.objectives()
        check_dropout(objectives, loaded.model)
        reference = make_reference(objectives, loaded.model)
        length = max_length + appended
        kept = max_graph_tokens(loaded.model, length)
        engine = Engine(loaded.model, objectives, chosen, reference=reference, graph_tokens=kept, group=group)
        at_once = training_tokens(loaded.model, engine.student_views, length)
        chosen_by = method.masking(mask_rate) or hidden
        collator = Collator.of(
            loaded.tokenizer, chosen_by, at_once, layout, engine.rewritings, padding_policy(loaded.model)
        )
        result.masked = describe_masked_texts(sample_masked_texts(rows, collator), collator.masking)
        total = budget.resolve(rows, batch_size, appended)
        check_keep_steps(keep_steps, method, total)
        # Held-out text is masked alike for all methods: a method's own masking may know the text of the training only.
        alike = replace(collator, masking=hidden)
        watch = [] if aside is None else [aside.make_callback(loaded.tokenizer, alike, length, batch_size, seed)]
        data = StepDataset(rows, collator, batch_size=batch_size, steps=total, seed=seed, group=group)
        with tensorboard_folder(trackers, out):
            trainer = train(
                engine,
                data,
                work / "steps",
                rule=method.update_rule(),
                seed=seed,
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                warmup=warmup,
                minutes=max_minutes,
                save_every=save_every,
                appended=appended,
                title=f"adapt {method.name}",
                progress=progress,
                report_to=trackers,
                run_name=out.name,
                callbacks=[partial(KeepStepsCallback, keep_steps, work / KEPT_FOLDER, keep), *watch],
            )
        method.finish(run)
        result.take(trainer)
    group.wait()
    if group.first:
        cache_masked_texts(config, result.masked)
        _write_result_folder(out, work, loaded, config, text, result)
    group.wait()
    return result


def _resolve_method(method: str | Method, settings: dict[str, Any] | None) -> Method:
    if isinstance(method, str):
        return get(method, **(settings or {}))
    if settings:
        raise UserError("Give parameters in the method or in settings, not in both.")
    return method


def _write_result_folder(
    out: Path, work: Path, loaded: LoadedModel, config: dict[str, Any], text: Corpus, result: AdaptResult
) -> None:
    """Write the model folder, and remove the working folder."""
    with atomic_folder(out) as folder:
        _write_model_files(folder, out, loaded, config, text, result)
        if (work / "steps" / LOG_FILE).is_file():
            shutil.copy(work / "steps" / LOG_FILE, folder / LOG_FILE)
        copy_kept_models(work, folder)
    shutil.rmtree(work, ignore_errors=True)


def _write_step_model(
    out: Path,
    loaded: LoadedModel,
    config: dict[str, Any],
    text: Corpus,
    result: AdaptResult,
    folder: Path,
    trainer: StepTrainer,
) -> None:
    """Write the model of a step in the middle of the training."""
    result.take(trainer)
    _write_model_files(folder, out, loaded, config, text, result)


def _write_model_files(
    folder: Path, out: Path, loaded: LoadedModel, config: dict[str, Any], text: Corpus, result: AdaptResult
) -> None:
    """Write model, tokenizer and card into a folder that exists."""
    save_model(loaded.model, folder, out)
    loaded.tokenizer.save_pretrained(folder)
    # A numeric summary of what was read goes with the model, so that it can be traced.
    account = {**text.report.as_dict(), "contents": text.contents()}
    write_json(folder / MANIFEST_FILE, {**config, "about": result.about, "text": account, "result": result.measured()})
    write_adapted_card(folder, out.name)
    for name, account in result.accounts.items():
        write_json(safe_join(folder, name), account)


def ensure_head(
    model: str | Path,
    corpus: TextInput,
    out: str | Path,
    *,
    tokens: int = HEAD_TOKENS,
    max_length: int = 128,
    seed: int = 0,
    precision: str = "auto",
    progress: bool = True,
) -> Path:
    """Return a model folder with a usable masked-LM head: ``model`` itself if it has one, else ``out``.

    Args:
        model: A model folder or a name on the hub.
        corpus: Text to warm an absent head up on; general text is best, so that no adaptation hides in it.
        out: Folder to make if the head is absent.
        tokens: Budget of the warm-up.
        max_length: Tokens of a text at most.
        seed: Of the warm-up.
        precision: As in :func:`adapt`.
        progress: Show bars.
    """
    if not load_masked_lm(model).absent_head:
        return Path(model)
    return adapt(
        model,
        corpus,
        "none",
        out,
        head_tokens=tokens,
        max_length=max_length,
        seed=seed,
        precision=precision,
        progress=progress,
    ).out
