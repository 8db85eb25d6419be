"""``select`` and ``transform``: operations on the text to adapt to, and what they compare documents with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.base.errors import UserError, cut, printable
from acclimate.base.options import values, verb
from acclimate.base.verbs import Next
from acclimate.data.answers import CallPlan, plan_calls
from acclimate.data.documents import Corpus, as_corpus, with_usual_column
from acclimate.data.operations import (
    TRANSFORMS,
    Context,
    check_output,
    find_accounts,
    operate,
    read_accounts,
    read_operations,
)
from acclimate.data.options import OperationOptions, SelectCommand, SelectOptions, TransformCommand, TransformOptions
from acclimate.data.select.control import Random, match_control
from acclimate.data.sources import FileSource
from acclimate.data.task_kinds import open_task, task_texts


@verb(SelectOptions)
def select(options: SelectOptions) -> Corpus:
    """Select the documents of a pool to adapt to.

    The result is read like any other corpus. The accounts of the selections, which say what went in and what came out,
    are in a file next to it (``NAME.jsonl.account.json``), in the manifest and the card of a model that is adapted to
    it, and in the report of a study that reads it; :func:`acclimate.data.operations.find_accounts` returns them. A
    selection that was computed before comes from the cache.

    Returns:
        The documents that were selected.

    Raises:
        UserError: If a source, a selection or a parameter is wrong, a selection lacks the text that it compares with,
            or no document is left.
    """
    operations = read_operations(options.by)
    pool, context = _read(options, options.out, options.control)
    selected = operate(pool, operations, context, options.out)
    if options.control is not None:
        own = find_accounts(selected)[-len(operations) :]
        operate(pool, match_control([Random()], operations, own), context, options.control)
    return selected


@verb(TransformOptions)
def transform(options: TransformOptions) -> Corpus:
    """Make new documents of those of a text, such as each text of a task together with its nearest neighbors.

    The result is read like any other corpus. What the transforms say of it is kept as by :func:`acclimate.select`, and
    a result that was computed before comes from the cache.

    Returns:
        The new documents.

    Raises:
        UserError: If a source, a transform or a parameter is wrong, a transform lacks the text that it compares with,
            or makes no document.
    """
    operations = read_operations(options.by, TRANSFORMS)
    pool, context = _read(options, options.out)
    return operate(pool, operations, context, options.out)


def _read(options: OperationOptions, *outputs: str | Path | None) -> tuple[Corpus, Context]:
    """Return the text of a user, and what its documents are compared with.

    Raises:
        UserError: If a source is wrong, or an output exists that operations did not write.
    """
    for path in outputs:
        if path is not None:
            check_output(path)
    if options.task is not None and options.target is not None:
        raise UserError("Give the task or the text to compare with, not both.")
    pool = as_corpus(options.corpus, options)

    def read(text: Any) -> Corpus | None:
        return None if text is None else with_usual_column(text, options)

    target, general = read(options.target), read(options.general)
    task = open_task(options.task, options, text_column=None)
    texts = list(target) if target is not None else None if task is None else task_texts(task)
    evaluated = [] if task is None else [text for split in ("dev", "test") for text in task_texts(task, split)]
    return pool, make_context(texts, general, options.tokenizer, options.progress, evaluated)


def select_to_file(options: SelectCommand) -> dict[str, Any]:
    """Do what ``acclimate select`` does: write the text, and return what the operations did to it."""
    select(**values(options, SelectOptions))
    control = None if options.control is None else read_accounts(Path(options.control))
    return {"out": options.out, "accounts": read_accounts(Path(options.out)), "control": control}


def plan_selection(options: SelectCommand) -> CallPlan:
    """Return the calls that ``acclimate select`` would make."""
    with plan_calls() as plan:
        select(**values(options, SelectOptions) | {"out": None, "control": None})
    return plan


def plan_transform(options: TransformCommand) -> CallPlan:
    """Return the calls that ``acclimate transform`` would make."""
    with plan_calls() as plan:
        transform(**values(options, TransformOptions) | {"out": None})
    return plan


def show_selection(result: dict[str, Any], options: SelectCommand) -> Iterator[Any]:
    """Yield what ``acclimate select`` prints."""
    yield from _describe_accounts(result)
    if result["control"]:
        yield f"Control, {result['control'][-1].summary()}: {options.control}"
    yield Next(["adapt", "--model", "MODEL", "--corpus", options.out, "--out", "adapted"])


def transform_to_file(options: TransformCommand) -> dict[str, Any]:
    """Do what ``acclimate transform`` does: write the text, and return what the operations did to it."""
    transform(**values(options, TransformOptions))
    return {"out": options.out, "accounts": read_accounts(Path(options.out))}


def show_transform(result: dict[str, Any], options: TransformCommand) -> Iterator[Any]:
    """Yield what ``acclimate transform`` prints."""
    yield from _describe_accounts(result)
    yield Next(["adapt", "--model", "MODEL", "--corpus", options.out, "--out", "adapted"])


def _describe_accounts(result: dict[str, Any]) -> Iterator[str]:
    """Yield what operations did, and examples of what the last one kept and dropped."""
    accounts, out = result["accounts"], Path(result["out"])
    yield from (account.summary() for account in accounts)
    for name, texts in (("kept", accounts[-1].kept), ("dropped", accounts[-1].dropped)):
        yield from (f"  {name}: {printable(cut(text, 100))}" for text in texts)
    yield f"{out}; account: {FileSource(out).account}"


def make_context(
    target: Sequence[str] | None,
    general: Corpus | None,
    tokenizer: str | Path | None,
    progress: bool,
    evaluated: Sequence[str] = (),
) -> Context:
    """Return what operations compare documents with.

    Args:
        target: Texts of the end task; None for none.
        general: General text; None for none.
        tokenizer: Model whose tokenizer counts the tokens; None counts words and punctuation marks.
        progress: Whether to show progress bars.
        evaluated: Dev and test texts of the end task.
    """
    counting: dict[str, Any] = {}
    if tokenizer is not None:
        counting["count"], counting["counted_by"] = _count_with(tokenizer)
    loading: dict[str, Any] = {"load_encoder": _load_encoder, "load_model": _load_model}
    return Context(target, general, progress=progress, evaluated=evaluated, **loading, **counting)


def _count_with(model: str | Path) -> tuple[Callable[[Sequence[str]], list[int]], str]:
    """Return the function that counts tokens with the tokenizer of a model, and what identifies it."""
    from acclimate.data.tokenizing import fingerprint_tokenizer
    from acclimate.models.loading import load_tokenizer

    tokenizer = load_tokenizer(model)

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]

    return count, f"tokens of {Path(model).name} ({fingerprint_tokenizer(tokenizer)[:8]})"


def _load_encoder(model: str) -> Callable[[Sequence[str]], np.ndarray]:
    """Return the function that embeds texts with a sentence encoder, or with the mean over tokens of another model."""
    from acclimate.evaluation.embeddings import load_encoder

    encoder = load_encoder(model)
    return lambda texts: encoder.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)


def _load_model(model: str) -> Callable[[Sequence[str]], list[float]]:
    """Return the function that measures the loss of texts under a language model, in nats per predicted token."""
    from acclimate.base.device import to_device
    from acclimate.evaluation.lm_loss import language_model_loss
    from acclimate.models.loading import load_language_model

    loaded = load_language_model(model)
    if loaded.absent_head:
        raise UserError(f"The model '{model}' has no language-model head, so it cannot score documents.")
    network = to_device(loaded.model)

    def losses(texts: Sequence[str]) -> list[float]:
        try:
            found = language_model_loss(network, list(texts), tokenizer=loaded.tokenizer)
        except UserError:  # no text has a token to predict
            return [math.nan] * len(texts)
        pairs = zip(found["per_text"], found["per_text_masked"], strict=True)
        return [total / count if count else math.nan for total, count in pairs]

    return losses
