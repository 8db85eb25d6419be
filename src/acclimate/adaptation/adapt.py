"""Adaptation of a model to text with a method; the result is a model folder."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.adaptation.carried import CARRIED_FILE
from acclimate.adaptation.inputs import (
    STEP_TOKENS,
    TASK_EPOCHS,
    Budget,
    TextInput,
    add_method_virtual_tokens,
    check_length,
    check_masking,
    document_framing,
    kind_defaults,
    packed_if_possible,
    report_batch,
    resolve_masking,
    resolve_texts,
    tokenize_documents,
)
from acclimate.adaptation.method import REGISTRY, AdaptContext, Method, reads_context
from acclimate.adaptation.mlm_head import warm_up_head
from acclimate.adaptation.options import HEAD_TOKENS, AdaptCommand, AdaptOptions
from acclimate.adaptation.replay_options import REPLAY_OPTIONS, is_self
from acclimate.adaptation.result import (
    AdaptResult,
    describe_kept_steps,
    load_finished,
    open_work_folder,
    preview_masking,
    remove_work_folder,
    warn_of_explosion,
)
from acclimate.adaptation.run import Feature, Run, warn_of_cuts
from acclimate.adaptation.stages import adapt_in_stages, stages_folder
from acclimate.adaptation.step_options import MEASURING_OPTIONS
from acclimate.base.bounds import AUTO
from acclimate.base.device import choose_precision, default_device, to_device
from acclimate.base.errors import UserError, environment_integer, postpone_stop
from acclimate.base.files import check_writable, follow_link, read_json_object
from acclimate.base.locks import with_output_lock
from acclimate.base.options import recorded, values, verb
from acclimate.base.progress import print_message, report_text
from acclimate.base.terminal import echo
from acclimate.base.verbs import Next
from acclimate.base.version import __version__
from acclimate.cards.hub import check_repo_name, push_to_hub
from acclimate.data.fields import PrecisionName
from acclimate.data.reading import reading_words, text_words
from acclimate.data.task_kinds import open_task
from acclimate.data.token_dataset import RowAccount
from acclimate.data.tokenizing import EVERY_ROW, check_known
from acclimate.engine.batches import Collator, StepDataset
from acclimate.engine.distributed import join_process_group
from acclimate.engine.micro_batches import use_bf16_weights, with_memory_limit
from acclimate.engine.schedules import read_schedule
from acclimate.engine.steps import Engine, check_objectives, make_reference
from acclimate.engine.trainer import CallbackFactory, train
from acclimate.evaluation.embeddings import is_sentence_encoder
from acclimate.models.batching import max_graph_tokens, padding_policy, training_tokens
from acclimate.models.checkpoints import has_chat_template, model_fingerprint
from acclimate.models.families import describe_attention
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import MASK_RATE


@verb(AdaptOptions)
@with_output_lock
@with_memory_limit
def adapt(options: AdaptOptions) -> AdaptResult:
    """Adapt a language model to domain text.

    The folder ``out`` is created in one step after the training has finished. It contains an ordinary Hugging Face
    model with its tokenizer, the resolved configuration (``acclimate.json``) and the losses during training
    (``log.jsonl``). An interrupted run resumes from its last checkpoint when it is started again; a finished run
    returns its result at once.

    Under ``torchrun`` or ``accelerate launch``, the processes share each step: together they read the same batch as a
    single process and optimize the same loss (see :mod:`acclimate.engine.distributed`).

    The defaults suit one machine and a few million tokens. The DGA paper trains for 2,500 steps of 256 texts of 164
    tokens with a learning rate of 1e-4, and contrasts each text with the others of its step; to reproduce it, set
    ``batch_size`` and ``max_length`` accordingly (``examples/dga/paper.yaml``).

    Returns:
        The output directory, the steps, tokens and seconds of training, and the losses.

    Raises:
        UserError: If an option or the input is invalid, or the loss becomes NaN or infinite. An existing result is
            left unchanged.
    """
    run = _open_run(options)
    if run.out.exists() and (done := load_finished(run.out, run.config, options.overwrite)) is not None:
        for left in (run.work, stages_folder(run.out)):
            remove_work_folder(left, run.config, run.group)
        return done
    check_writable(run.out)
    if run.method.stages():
        return adapt_in_stages(adapt, run)
    _load(run)
    _read(run)
    open_work_folder(run.work, run.config, run.group)
    about = {"paper": run.method.paper, "summary": run.method.summary}
    run.result = AdaptResult(run.out, run.method.name, 0, 0, 0.0, {}, run.config, about=about)
    if run.loaded.absent_head:
        warm_up_head(run.loaded, run.rows, run.work / "head", options.head_tokens, **run.about_warm_up)
    for feature in run.features:
        feature.warm_up(run)
    if run.method.trains:
        _train(run, *_build(run))
    run.group.wait()
    if run.group.first:
        with postpone_stop():  # writing takes seconds, and the last checkpoint may be minutes old
            run.write()
        warn_of_cuts(run.text.report)
    run.group.wait()
    return run.result


def plan_run(options: AdaptOptions) -> Run:
    """Read and check everything that an adaptation reads; return it as it is before the first step.

    Raises:
        UserError: As :func:`adapt`.
    """
    run = _open_run(options)
    run.dry = True
    if not run.method.stages():
        _load(run)
        _read(run)
    return run


def adapt_and_push(options: AdaptCommand) -> AdaptResult:
    """Do what ``acclimate adapt`` does: adapt the model, and upload it if that is wanted."""
    if options.push_to_hub:
        check_repo_name(options.push_to_hub)
    result = adapt(**values(options, AdaptOptions))
    if options.push_to_hub and not environment_integer("RANK"):
        echo(push_to_hub(result.out, options.push_to_hub, progress=options.progress))
    return result


def _from_anywhere(replay: Any) -> Any:
    """Return what is replayed with absolute paths, since those of ``--set`` are relative to the study file."""

    def locate(source: Any) -> Any:
        prefix = "chat:" if str(source).startswith("chat:") else ""
        place = Path(str(source).removeprefix(prefix)).expanduser()
        return f"{prefix}{place.absolute()}" if place.exists() and not is_self(source) else source

    if isinstance(replay, dict):
        return {locate(source): share for source, share in replay.items()}
    return [locate(source) for source in replay] if isinstance(replay, list | tuple) else locate(replay)


def show_adaptation(result: AdaptResult, options: AdaptCommand) -> Iterator[Any]:
    """Yield what ``acclimate adapt`` prints."""
    yield from result.describe()
    yield from describe_kept_steps(result, options.keep_steps)
    task = "TASK" if options.task is None else options.task
    reading = reading_words(options)
    config = read_json_object(result.out / "config.json") or {}
    kind = kind_of_checkpoint(config.get("architectures"), result.out)
    causal = not kind.uses_masking
    if chat := has_chat_template(result.out):
        answers = ["inspect", "instructions", "--model", result.out, "--base", options.model]
        yield Next(answers, "to see whether it still follows instructions")
        yield f"To serve it: vllm serve {result.out}, or llama.cpp and Ollama; see docs/guides/last-mile.md"
    if not chat or options.task is not None:
        answers = ["--task-kind", "generation"] if kind.pairs and options.task is None else []
        tuned = ["--task", task, *answers, *(reading if options.task is not None else [])]
        yield Next(["finetune", "--model", result.out, *tuned, "--out", "finetuned"], "to train an end task")
    text = text_words("--corpus", options.corpus, column=options.text_column)
    if options.heldout is not None:
        text += text_words("--heldout", options.heldout, column=options.text_column)
    if options.general is not None:
        text += text_words("--general", options.general, column=options.text_column)
    if options.task is not None or not causal:
        text += ["--task", task]
    given = {name: getattr(options, name) for name in ("adapter", "replay")} if causal else {}
    if given.get("replay"):
        given["replay"] = _from_anywhere(given["replay"])
    kept = [("--set", f"adapt.{name}={json.dumps(value)}") for name, value in given.items() if value]
    method = REGISTRY.read(options.method).describe()
    compared = [*text, *reading, "--methods", method, *itertools.chain(*kept)]
    words = ["--model", options.model, *compared, "--out", "runs/compare"]
    yield Next(["compare", *words], "to see whether adaptation helps")


def _open_run(options: AdaptOptions) -> Run:
    """Check the options, open the texts, and return the run with its features and its identity."""
    method = REGISTRY.read(options.method)
    adapter = None
    if options.adapter is not None:
        from acclimate.adaptation.adapters import read_adapter

        adapter = read_adapter(method, options.adapter)
    rows = kind_defaults(options, method)
    group = join_process_group(options.fsdp)
    own = options.text_column if options.corpus is None and options.text_column != "text" else None
    task = open_task(options.task, options, text_column=own)
    texts = resolve_texts(method, options.corpus, task, options)
    masking = resolve_masking(options)
    if options.masking is not None and type(method).masking is not Method.masking:
        raise UserError(f"Method '{method.name}' has its own masking strategy; remove the option 'masking'.")
    if method.sets_mask_rate and options.mask_rate != MASK_RATE:
        raise UserError(f"Method '{method.name}' sets the mask rate itself; remove the option 'mask_rate'.")
    if options.mask_rate not in (MASK_RATE, masking.rate):
        raise UserError(
            f"The masking has the rate {masking.rate:g}; remove it there, or remove the option 'mask_rate'."
        )
    run = Run(
        options,
        method,
        adapter,
        group,
        **rows,
        progress=options.progress and group.first,
        task=task,
        texts=texts,
        budget=Budget.of(options, TASK_EPOCHS if options.corpus is None or method.reads == "task" else 1),
        masking=masking,
        precision=choose_precision(options.precision, default_device()),
        out=follow_link(options.out),
        learning_rate=method.learning_rate if options.learning_rate is None else options.learning_rate,
        schedule=read_schedule(
            method.schedule if options.schedule is None else options.schedule,
            options.warmup,
            options.average_last is not None,
        ),
    )
    run.features = _find_features(run)
    run.config = _identify(run)
    return run


FEATURES: dict[str, tuple[str, ...]] = {
    "execution.Tracking": ("report_to",),
    "execution.LowMemory": ("optimizer", "weights"),
    "execution.Compiled": ("compile",),
    "execution.Sharding": ("fsdp",),
    "kept_steps.KeptSteps": ("keep_steps",),
    "averaging.Averaging": ("average_last",),
    "heldout.HeldOut": ("heldout", "heldout_every", *MEASURING_OPTIONS),
    "past_domains.PastDomains": ("replay",),
    "mix_sources.Sources": REPLAY_OPTIONS,
    "changes.Changes": ("general", "instructions"),
    "similarity.SimilarityCheck": ("similarity",),
    "adapters.AddedAdapter": ("adapter",),
    "new_tokens.AddedTokens": ("new_tokens",),
    "rules.UpdateRules": ("rules",),
}
"""Module and class of each feature, in the order of their hooks, and the options that turn it on."""
OFF = {"optimizer": "adamw", "weights": "fp32"}
"""Values with which an option turns nothing on; those of others are None, False, 0 and the empty tuple."""


def _find_features(run: Run) -> list[Feature]:
    """Return the features that are on; the modules of others are not imported."""
    method = run.method
    model = None if callable(run.options.model) else str(run.options.model)
    pooled = method.sentence_pooling is not None or (model is not None and is_sentence_encoder(model))
    has_state = model is not None and Path(model, CARRIED_FILE).is_file()
    implied = {
        "execution.Sharding": run.group.size > 1,
        "past_domains.PastDomains": has_state or reads_context(method),
        "similarity.SimilarityCheck": pooled,
    }
    found = []
    for place, names in FEATURES.items():
        given = ((name, getattr(run.options, name)) for name in names)
        if implied.get(place) or any(_turns_on(name, value) for name, value in given):
            module, _, name = place.partition(".")
            found.append(getattr(importlib.import_module(f"acclimate.adaptation.{module}"), name).of(run))
    return [feature for feature in found if feature is not None]


def _turns_on(name: str, value: Any) -> bool:
    plain = isinstance(value, bool | int | float | str | tuple)
    return value is not None and not (plain and value in (0, (), OFF.get(name)))


def _identify(run: Run) -> dict[str, Any]:
    """Return all that decides the result: every option, defaults included, with the content of files, and the rest."""
    options, method = run.options, run.method
    place = "cpu" if default_device().type == "cpu" else "cuda"
    config = recorded(
        options,
        acclimate=__version__,
        model=method.starts_from or str(options.model),
        model_files=None if method.starts_from else model_fingerprint(str(options.model)),
        corpus=run.text.fingerprint,
        task=None if run.task is None else run.task.fingerprint(),
        method=method.name,
        settings=method.settings(),
        files=method.file_contents(),
        budget=asdict(run.budget),
        layout=run.layout,
        max_length=run.max_length,
        documents=run.documents,
        learning_rate=run.learning_rate,
        schedule=asdict(run.schedule),
        masking=run.masking.identity(),
        precision=run.precision,
        step_tokens=STEP_TOKENS[place] if options.batch_size == AUTO else None,
    )
    for feature in run.features:
        config |= feature.identity()
    return config


def _load(run: Run) -> None:
    """Load the model, and let features and method check and extend it."""
    options, method = run.options, run.method
    model = options.model() if callable(options.model) else options.model
    loaded = run.loaded = load_language_model(
        model, options.dropout, run.adapter.quantization if run.adapter else None
    )
    loaded.pooling = method.sentence_pooling
    method.check_kind(loaded.kind, model)
    check_masking(options, loaded.kind, run.masking)
    for feature in run.features:
        feature.prepare(run)
    layers = attach(to_device(loaded.model), run.sharded)
    if run.layout == "packed":
        run.layout = packed_if_possible(loaded.model, options.layout, run.max_length)
    run.appended = add_method_virtual_tokens(loaded, method, options.seed)
    run.length = run.max_length + run.appended
    check_length(loaded, run.length)
    how = run.masking, options.seed, run.precision, run.progress, run.group, run.task, run.sharded, run.length
    run.context = AdaptContext(loaded.model, layers, loaded.tokenizer, (), *how, run.sources, carried=run.carried)
    method.check(run.context)
    run.framing = document_framing(loaded, run.documents) if loaded.kind.frames_documents else EVERY_ROW


def _read(run: Run) -> None:
    """Tokenize all texts, and find the number of steps."""
    text, loaded = run.text, run.loaded
    with run.group.main_process_first():
        run.framing, run.rows = tokenize_documents(text, loaded, run.length, run.framing, run.progress)
    reported = run.group.first and bool(text.report.problems or text.report.unused)
    report_text(f"Text: {text.report.summary()}.", run.progress, reported)
    check_known(run.rows.first_tokens(10_000_000), loaded.tokenizer)
    with run.group.main_process_first():
        for feature in run.features:
            feature.read(run)
    if not run.steps:
        run.mean_length = 1 / (len(run.rows) / run.rows.tokens)
        run.batch_size = run.choose_batch_size(run.mean_length)
        run.steps = run.budget.resolve(run.rows, run.batch_size, run.appended)


def _build(run: Run) -> tuple[StepDataset, list[CallbackFactory]]:
    """Prepare the method, and build what trains: the engine, its data and the callbacks."""
    options, loaded, method = run.options, run.loaded, run.method
    run.context = replace(run.context, tokenizer=loaded.tokenizer, rows=run.rows, sources=run.sources, steps=run.steps)
    method.prepare(run.context)
    rule = method.update_rule()
    if options.weights == "bf16":
        use_bf16_weights(loaded.model)
    run.result.preparation |= run.context.preparation
    objectives = method.objectives()
    check_objectives(objectives, loaded.model)
    reference = make_reference(objectives, loaded.model, shared=options.adapter is not None)
    for feature in run.features:
        rule = feature.rule(run, rule)
    run.update_rule = rule
    engine = Engine(loaded.model, objectives, run.precision, reference, method.readers(), group=run.group)
    engine.set_gradient_checkpointing(options.gradient_checkpointing, run.length, run.progress)
    engine.graph_tokens = max_graph_tokens(loaded.model, run.length)
    run.engine = engine
    at_once = training_tokens(loaded.model, engine.student_views, run.length)
    if loaded.model.device.type == "cpu" and not run.kind.uses_masking:
        at_once = min(at_once, engine.logit_rows)  # the logits of more positions would be computed twice
    masking, policy = method.masking(options.mask_rate) or run.masking, padding_policy(loaded.model)
    how = run.layout, engine.rewritings, policy, run.length
    run.collator = Collator.of(loaded.tokenizer, masking, run.kind, at_once, *how)
    if run.mixture is not None:
        run.collator = replace(run.collator, maskings=run.mixture.maskings)
    run.result.preview = partial(preview_masking, run.rows, run.collator)
    callbacks = [make for feature in run.features for make in feature.callbacks(run)]
    rows = run.rows if run.mixture is None else run.mixture.rows
    about = {"batch_size": run.batch_size, "steps": run.steps, "seed": options.seed}
    data = StepDataset(rows, run.collator, group=run.group, order=run.mixture, **about)
    if options.batch_size == AUTO or run.group.size > 1 or loaded.model.device.type == "cuda":
        wanted = run.config["step_tokens"]
        report_batch(run.batch_size, run.mean_length, run.group, loaded.model.device, run.progress, wanted)
    data.check_learnable()
    run.result.batch_size = run.batch_size
    run.result.rows = RowAccount.of(run.rows, run.kind, data.padding(), joined=run.framing.documents == "joined")
    print_message(f"Rows: {run.result.rows.summary()}.", enabled=run.progress)
    if loaded.model.device.type == "cuda":
        print_message(f"Attention: {describe_attention(loaded.model, run.precision)}.", enabled=run.progress)
    return data, callbacks


def _train(run: Run, data: StepDataset, callbacks: Sequence[CallbackFactory]) -> None:
    """Train, and let features and method record what the training left."""
    options, result = run.options, run.result
    with ExitStack() as stack:
        for feature in run.features:
            stack.enter_context(feature.around(run))
        chosen: dict[str, Any] = {"loader_workers": options.loader_workers}
        for feature in run.features:
            chosen |= feature.arguments(run)
        trainer = train(
            run.engine,
            data,
            run.work / "steps",
            rule=run.update_rule,
            seed=options.seed,
            learning_rate=run.learning_rate,
            weight_decay=options.weight_decay,
            max_gradient_norm=options.max_gradient_norm,
            schedule=run.schedule,
            minutes=options.max_minutes,
            save_every=options.save_every,
            appended=run.appended,
            title=f"adapt {run.method.name}",
            progress=run.progress,
            run_name=run.out.name,
            callbacks=callbacks,
            **chosen,
        )
    run.method.finish(run.context)
    result.take(trainer)
    for feature in run.features:
        feature.close(run)
    vocabulary = run.loaded.model.config.vocab_size
    result.warning = warn_of_explosion(trainer.lines, run.learning_rate, run.kind.term, vocabulary)


def ensure_head(
    model: str | Path,
    corpus: TextInput,
    out: str | Path,
    *,
    tokens: int = HEAD_TOKENS,
    max_length: int = 128,
    seed: int = 0,
    precision: PrecisionName = "auto",
    progress: bool = True,
) -> Path:
    """Return a folder of the model with a trained masked-LM head: ``model`` itself if it has one, else ``out``.

    Args:
        model: A model folder or a name on the Hugging Face Hub.
        corpus: Text to train a missing head on. Use general text: domain text would already adapt the model a little.
        out: Output directory if the head is missing.
        tokens: Number of tokens to train the head on.
        max_length: Maximum tokens per text.
        seed: Random seed.
        precision: As in :func:`adapt`.
        progress: Show progress bars.

    Raises:
        UserError: As :func:`adapt`.
    """
    if not load_language_model(model).absent_head:
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
