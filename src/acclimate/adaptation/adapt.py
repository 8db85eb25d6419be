"""Adaptation of a model to text with a method; the result is a model folder."""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from acclimate.adaptation.adapters import add_adapter, choose_learning_rate, identify_adapter, resolve_adapter
from acclimate.adaptation.carried import Carried
from acclimate.adaptation.heldout import NO_SIMILARITY, HeldOutText, SimilarityCheck
from acclimate.adaptation.inputs import (
    STEP_TOKENS,
    TASK_EPOCHS,
    Budget,
    TextInput,
    add_method_virtual_tokens,
    check_length,
    check_masking,
    choose_batch_size,
    document_framing,
    report_batch,
    resolve_texts,
    tokenize_documents,
    usable_layout,
    with_kind_defaults,
)
from acclimate.adaptation.method import AdaptContext, Method, check_keep_steps, get
from acclimate.adaptation.mix_sources import Source, check_conversations, open_sources, read_mixture
from acclimate.adaptation.mixture import MIX_FILE
from acclimate.adaptation.new_tokens import NewTokens, add_new_tokens, warm_up
from acclimate.adaptation.options import BUDGETS, HEAD_TOKENS, AdaptOptions, MethodLike
from acclimate.adaptation.replay_options import REPLAY_OPTIONS
from acclimate.adaptation.result import (
    AdaptResult,
    cache_masked_texts,
    load_finished,
    load_masked_texts,
    open_work_folder,
    preview_masking,
    remove_work_folder,
    warn_of_explosion,
)
from acclimate.adaptation.rules import add_update_rules, check_rules
from acclimate.adaptation.source_measures import watch_sources
from acclimate.adaptation.stages import adapt_in_stages, stages_folder
from acclimate.base.bounds import AUTO
from acclimate.base.device import choose_precision, default_device, to_device
from acclimate.base.errors import UserError, postpone_stop
from acclimate.base.files import (
    MANIFEST_FILE,
    atomic_folder,
    check_writable,
    follow_link,
    record_files,
    safe_join,
    write_json,
)
from acclimate.base.locks import with_output_lock
from acclimate.base.options import recorded, values, verb
from acclimate.base.progress import print_message, report_text
from acclimate.base.version import __version__
from acclimate.cards import summarize_text, write_adapted_card
from acclimate.data.documents import Corpus
from acclimate.data.fields import PrecisionName
from acclimate.data.mix.base import read_mix
from acclimate.data.task_kinds import open_task
from acclimate.data.token_dataset import RowAccount
from acclimate.data.tokenizing import check_known
from acclimate.engine.batches import Collator, StepDataset
from acclimate.engine.callbacks import (
    KEPT_FOLDER,
    KeepStepsCallback,
    check_trackers,
    copy_kept_models,
    tensorboard_folder,
)
from acclimate.engine.distributed import join_process_group
from acclimate.engine.micro_batches import (
    check_optimizer,
    set_gradient_checkpointing,
    set_weight_type,
    with_memory_limit,
)
from acclimate.engine.sharding import check_sharding, shard
from acclimate.engine.steps import Engine, check_objectives, make_reference
from acclimate.engine.trainer import LOG_FILE, StepTrainer, train
from acclimate.models.adapters import warn_of_export
from acclimate.models.batching import max_graph_tokens, padding_policy, training_tokens
from acclimate.models.checkpoints import model_fingerprint
from acclimate.models.compiling import compiled_layers
from acclimate.models.families import describe_attention
from acclimate.models.loading import LanguageModel, load_language_model
from acclimate.models.probe import attach
from acclimate.models.saving import save_model, write_pooling
from acclimate.parts.masking import MASK_RATE, RandomMasking, identify, resolve

log = logging.getLogger(__name__)


@with_output_lock
@with_memory_limit
def _adapt(options: AdaptOptions) -> AdaptResult:
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
    trackers = check_trackers(options.report_to)
    check_optimizer(options.optimizer, options.weights)
    method = _resolve_method(options.method, options.settings)
    given_layout = options.layout
    options = with_kind_defaults(options, method)
    assert options.layout and options.max_length
    group = join_process_group(options.fsdp)
    progress = options.progress and group.first
    own = options.text_column if options.corpus is None and options.text_column != "text" else None
    task = open_task(options.task, options, text_column=own)
    texts = resolve_texts(method, options.corpus, task, options.text_column, options.encoding)
    text = next(iter(texts.values()))
    default_epochs = TASK_EPOCHS if options.corpus is None or method.reads == "task" else 1
    budget = Budget.of(options, default_epochs)
    heldout = HeldOutText.of(options)
    carried = Carried.read(options.model)
    sources = open_sources(values(options), options.text_column, carried.kept_texts())
    mix = None if options.mix is None else read_mix(options.mix)
    if (sources or mix) and not method.trains:
        raise UserError(f"Method '{method.name}' does not train, so nothing can be mixed in; remove replay and mix.")
    similarity = _open_similarity(options, method, text, heldout, sources)
    seed, max_length = options.seed, options.max_length
    step_tokens = STEP_TOKENS[default_device().type] if options.batch_size == AUTO else None
    adapter = resolve_adapter(method, options.adapter, options.adapter_settings, options.quantize)
    learning_rate = choose_learning_rate(options, method)
    new_tokens = NewTokens.of(options.new_tokens, options.new_token_settings)
    strategy = resolve(options.masking, options.mask_rate, options.masking_settings)
    if (options.masking or options.masking_settings) and type(method).masking is not Method.masking:
        raise UserError(f"Method '{method.name}' has its own masking strategy; remove the option 'masking'.")
    if method.sets_mask_rate and options.mask_rate != MASK_RATE:
        raise UserError(f"Method '{method.name}' sets the mask rate itself; remove the option 'mask_rate'.")
    out = follow_link(options.out)
    precision = choose_precision(options.precision, default_device())
    sharded = check_sharding(options, method, precision)
    config = recorded(
        options,
        (*BUDGETS, *REPLAY_OPTIONS, "masking_settings", "text_column", "heldout_every", "keep_steps", "similarity"),
        acclimate=__version__,
        model=method.starts_from or str(options.model),
        model_files=None if method.starts_from else model_fingerprint(str(options.model)),
        corpus=text.fingerprint,
        task=None if task is None else task.fingerprint(),
        method=method.name,
        settings=method.settings(),
        files=method.file_contents(),
        budget=asdict(budget),
        learning_rate=learning_rate,
        adapter_settings=identify_adapter(adapter),
        masking=identify(strategy, options.mask_rate),
        # Results of versions without these options had their defaults.
        optimizer=None if options.optimizer == "adamw" else options.optimizer,
        weights=None if options.weights == "fp32" else options.weights,
        precision=precision,
        step_tokens=step_tokens,
        heldout=None if heldout is None else heldout.identity(),
        replay=[source.identity() for source in sources if not source.name] or None,
        sources=[source.identity() for source in sources if source.name] or None,
        mix=mix and mix.identity(),
        similarity=similarity and similarity.pairs and similarity.pairs.fingerprint(),
        new_tokens=new_tokens and new_tokens.identity(),
    )
    config.update(check_keep_steps(options.keep_steps, method, budget.steps) | check_rules(options))
    work = out.parent / f".{out.name}.work"
    if (done := load_finished(out, config, options.overwrite)) is not None:
        for left in (work, stages_folder(out)):
            remove_work_folder(left, config, group)
        done.masked = load_masked_texts(config)
        return done
    check_writable(out)
    model = options.model() if callable(options.model) else options.model
    if method.stages():
        own_options = ("model", "corpus", "method", "out", "task", "settings", "overwrite", "progress")
        shared = {name: value for name, value in values(options).items() if name not in own_options}
        # Only the last model is measured; a stage chooses its layout for the model, unless one was given.
        shared |= {"progress": progress, "similarity": NO_SIMILARITY, "layout": given_layout}
        return adapt_in_stages(adapt, method, texts, model, out, config, shared, group, similarity)
    loaded = load_language_model(model, options.dropout, options.quantize)
    kind, loaded.pooling = loaded.kind, method.sentence_pooling
    method.check_kind(kind, model)
    check_masking(options, kind, strategy)
    check_conversations(sources, loaded, method.virtual_tokens)
    add_new_tokens(new_tokens, loaded, text, seed, progress, group)
    carried.attach(loaded.model)
    layers = attach(to_device(loaded.model), sharded)
    layout = usable_layout(loaded.model, options.layout, given_layout, max_length)
    appended = add_method_virtual_tokens(loaded, method, seed)
    length = max_length + appended
    check_length(loaded, length)
    about_run = strategy, seed, precision, progress, group, task, sharded, length
    context = AdaptContext(loaded.model, layers, loaded.tokenizer, (), *about_run, carried=carried)
    method.check(context)
    framing = document_framing(loaded, options.documents)
    with group.main_process_first():
        framing, rows = tokenize_documents(text, loaded, length, framing, progress)
    report_text(
        f"Text: {text.report.summary()}.", progress, group.first and bool(text.report.problems or text.report.unused)
    )
    check_known(rows.first_tokens(10_000_000), loaded.tokenizer)
    with group.main_process_first():
        mixture = read_mixture(
            sources,
            mix,
            text,
            rows,
            loaded,
            length,
            framing=framing,
            choose_batch=partial(choose_batch_size, options.batch_size, step_tokens, budget),
            seed=seed,
            appended=appended,
            progress=progress,
        )
        batch_size = mixture.batch_size
    open_work_folder(work, config, group)
    about = {"paper": method.paper, "summary": method.summary}
    how = {"seed": seed, "precision": precision, "progress": progress, "group": group, "appended": appended}
    prepared = warm_up(new_tokens, loaded, rows, work, options.head_tokens, **how)
    result = AdaptResult(out, method.name, 0, 0, 0.0, {}, config, prepared, about=about)
    keep = partial(_write_step_model, out, loaded, config, text, result)
    if method.trains:
        context = replace(context, tokenizer=loaded.tokenizer, rows=rows, sources=mixture.names)
        method.prepare(context)
        rule = method.update_rule()
        set_weight_type(loaded.model, options.weights)
        result.preparation |= context.preparation
        objectives = method.objectives()
        check_objectives(objectives, loaded.model)
        reference = make_reference(objectives, loaded.model, shared=adapter is not None)
        rule = add_adapter(options, adapter, loaded, rows, rule)
        rule = add_update_rules(options, context, loaded.adapter, rule, length, framing)
        engine = Engine(loaded.model, objectives, precision, reference, method.readers(), group=group)
        set_gradient_checkpointing(engine, options.gradient_checkpointing, length, progress)
        engine.graph_tokens = max_graph_tokens(loaded.model, length)
        at_once = training_tokens(loaded.model, engine.student_views, length)
        chosen_by = method.masking(options.mask_rate) or strategy
        policy = padding_policy(loaded.model)
        collator = Collator.of(loaded.tokenizer, chosen_by, kind, at_once, layout, engine.rewritings, policy, length)
        result.masked = preview_masking(rows, collator)
        total = mixture.plan(budget, progress)
        check_keep_steps(options.keep_steps, method, total)
        # Held-out text has the same masks for all methods: a method's own masking may only know the training text.
        alike = replace(collator, masking=strategy if kind.uses_masking else RandomMasking())
        heldout_options = loaded.tokenizer, alike, length, framing, batch_size, seed
        watch = [] if heldout is None else [heldout.make_callback(*heldout_options)]
        watch += watch_sources(mixture, engine, loaded, alike, seed, work / "steps", config, progress)
        data = StepDataset(
            mixture.rows, collator, batch_size=batch_size, steps=total, seed=seed, group=group, order=mixture
        )
        result.batch_size = batch_size
        report_batch(batch_size, mixture.mean_length, group, loaded.model.device, progress, step_tokens)
        data.check_learnable()
        result.rows = RowAccount.of(rows, kind, data.padding(), joined=framing.documents == "joined")
        print_message(f"Rows: {result.rows.summary()}.", enabled=progress)
        on_gpu = loaded.model.device.type == "cuda"
        print_message(f"Attention: {describe_attention(loaded.model, precision)}.", enabled=progress and on_gpu)
        compiled = engine.readers.values() if options.compile else ()
        with tensorboard_folder(trackers, out), compiled_layers(compiled, progress=progress):
            trainer = train(
                engine,
                data,
                work / "steps",
                rule=rule,
                seed=seed,
                learning_rate=learning_rate,
                optimizer=options.optimizer,
                loader_workers=0 if mixture.adapts else options.loader_workers,
                weight_decay=options.weight_decay,
                max_gradient_norm=options.max_gradient_norm,
                warmup=options.warmup,
                minutes=options.max_minutes,
                save_every=options.save_every,
                appended=appended,
                title=f"adapt {method.name}",
                progress=progress,
                report_to=trackers,
                run_name=out.name,
                trainer_class=shard(engine, loaded, rule, progress) if sharded else StepTrainer,
                callbacks=[partial(KeepStepsCallback, options.keep_steps, work / KEPT_FOLDER, keep), *watch],
            )
        method.finish(context)
        carried.close(options, text, method.name)
        result.take(trainer)
        result.preparation |= {MIX_FILE: mixture.record(result.steps)} if mixture.rounds else {}
        result.warning = warn_of_explosion(trainer.lines, learning_rate, kind.term, loaded.model.config.vocab_size)
    group.wait()
    if group.first:
        cache_masked_texts(config, result.masked)
        with postpone_stop():  # writing takes seconds, and the last checkpoint may be minutes old
            _write_result_folder(out, work, loaded, config, text, result, similarity, carried)
        for report in (one.report for one in (text, *(source.text for source in sources)) if one.report.cut_off):
            log.warning("The rest of these files could not be read: %s.", report.list_cut_off())
    group.wait()
    return result


adapt = verb(AdaptOptions, _adapt)


def _open_similarity(
    options: AdaptOptions, method: Method, text: Corpus, heldout: HeldOutText | None, sources: list[Source]
) -> SimilarityCheck | None:
    """Return what the embeddings of a sentence encoder are measured on; None if nothing is trained or measured."""
    if callable(options.model) or not (method.trains or method.stages()):
        return None
    texts = {"domain text (read in training)": text} if heldout is None else {"held-out text": heldout.corpus}
    beside = [source.text for source in sources if isinstance(source.text, Corpus)]
    texts |= {f"replayed text {number}": corpus for number, corpus in enumerate(beside, 1)}
    return SimilarityCheck.of(str(options.model), options.similarity, texts, method.sentence_pooling is not None)


def _resolve_method(method: str | MethodLike, settings: dict[str, Any] | None) -> Method:
    if isinstance(method, str):
        return get(method, **(settings or {}))
    if settings:
        raise UserError("Give parameters in the method or in settings, not in both.")
    return cast(Method, method)


def _write_result_folder(
    out: Path,
    work: Path,
    loaded: LanguageModel,
    config: dict[str, Any],
    text: Corpus,
    result: AdaptResult,
    similarity: SimilarityCheck | None,
    carried: Carried,
) -> None:
    """Write the model folder, then remove the working folder."""
    with atomic_folder(out) as folder:
        _write_model_files(folder, out, loaded, config, text, result, similarity)
        if (work / "steps" / LOG_FILE).is_file():
            shutil.copy(work / "steps" / LOG_FILE, folder / LOG_FILE)
        copy_kept_models(work, folder)
        carried.write(folder)
        record_files(folder, MANIFEST_FILE)
    shutil.rmtree(work, ignore_errors=True)


def _write_step_model(
    out: Path,
    loaded: LanguageModel,
    config: dict[str, Any],
    text: Corpus,
    result: AdaptResult,
    folder: Path,
    trainer: StepTrainer,
) -> None:
    """Write the model of an intermediate step."""
    result.take(trainer)
    _write_model_files(folder, out, loaded, config, text, result)
    record_files(folder, MANIFEST_FILE)


def _write_model_files(
    folder: Path,
    out: Path,
    loaded: LanguageModel,
    config: dict[str, Any],
    text: Corpus,
    result: AdaptResult,
    similarity: SimilarityCheck | None = None,
) -> None:
    """Write model, tokenizer, manifest and card into an existing folder."""
    if loaded.adapter is None:
        save_model(loaded.model, folder, out)
        loaded.tokenizer.save_pretrained(folder)
    else:
        result.adapter = loaded.adapter.export(folder, loaded.tokenizer, out, config["model"])
        result.warning = " ".join(filter(None, (result.warning, warn_of_export(result.adapter))))
    if loaded.pooling is not None:
        write_pooling(folder, loaded.pooling, loaded.model.config.get_text_config().hidden_size)
    if similarity is not None:
        result.add_similarity(similarity.measure(folder))
    text_report = summarize_text(text)
    if result.rows is not None:
        text_report["rows"] = result.rows.as_dict()
    write_json(
        folder / MANIFEST_FILE, {**config, "about": result.about, "text": text_report, "result": result.measured()}
    )
    write_adapted_card(folder, out.name)
    for name, record in result.preparation.items():
        write_json(safe_join(folder, name), record)


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
