"""Operations on the text that a study adapts to: of a domain, and of methods instead of those of their domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acclimate.adaptation.corpus_verbs import make_context
from acclimate.base.errors import Problems, UserError
from acclimate.data.documents import Corpus, hash_document, with_usual_column
from acclimate.data.operations import TRANSFORMS, Context, find_accounts, operate, read_operations
from acclimate.data.reading import text_options
from acclimate.data.select.control import match_control
from acclimate.data.task_kinds import task_texts
from acclimate.results.adaptations import SelectionRow
from acclimate.results.study import ReportTable
from acclimate.study.config import DomainSpec, StudyConfig
from acclimate.study.method_inputs import MethodInput

COLUMNS = ["domain", "method", "operation", "documents read", "documents kept", "tokens read", "tokens kept", "%"]


def select_texts(
    config: StudyConfig,
    corpora: Mapping[str, Corpus],
    heldout: Mapping[str, Any],
    tasks: Mapping[tuple[str, str], Any],
    methods: Mapping[str, MethodInput],
    general: Corpus | None,
) -> tuple[dict[str, Corpus], dict[tuple[str, str], Corpus]]:
    """Return the text of each domain, and by domain and label that of methods with operations of their own.

    Documents are selected, and then transformed. They are never taken from held-out text. They are compared with the
    train splits of the tasks, unless the domain has a target. Tokens are those of the tokenizer of the first model.

    Args:
        config: The study.
        corpora: The whole text of each domain.
        heldout: Held-out text by domain (:class:`acclimate.study.inputs.Texts`).
        tasks: Tasks by domain and name (:class:`acclimate.study.inputs.TaskInput`).
        methods: Methods of adaptation by label.
        general: General text that is not measured on; None for none.

    Raises:
        UserError: If an operation lacks the text that it compares with, or no document is left; it lists all of them.
    """
    chosen, selected, problems = dict(corpora), dict[tuple[str, str], Corpus](), Problems()
    own = [method for method in config.methods if method.describe_operations()]
    for method in own:
        if methods[method.label].reads == "task":
            key = next(iter(method.describe_operations()))
            raise UserError(
                f"study: '{method.label}' reads the text of the task, so '{key}' does not apply; remove it."
            )
    for domain in config.domains:
        if not domain.describe_operations() and not own:
            continue
        pool = corpora[domain.name]
        if domain.heldout is not None:
            pool = pool.without(hash_document(text.encode()).hex() for text in heldout[domain.name].texts)
        with problems.collect():
            context = _make_context(config, domain, tasks, general)
            operations = read_operations(domain.select)
            text = operate(pool, operations, context) if operations else pool
            accounts = find_accounts(text)[-len(operations) :]
            chosen[domain.name] = _transform(text, domain.transform, context)
            for method in own:
                kept = text
                if method.select is not None:
                    matched = match_control(read_operations(method.select), operations, accounts)
                    kept = operate(pool, matched, context) if matched else pool
                transforms = domain.transform if method.transform is None else method.transform
                selected[domain.name, method.label] = _transform(kept, transforms, context)
    problems.check()
    return chosen, selected


def _transform(corpus: Corpus, given: Any, context: Context) -> Corpus:
    transforms = read_operations(given, TRANSFORMS)
    return operate(corpus, transforms, context) if transforms else corpus


def _make_context(
    config: StudyConfig, domain: DomainSpec, tasks: Mapping[tuple[str, str], Any], general: Corpus | None
) -> Context:
    """Return what the documents of a domain are compared with."""
    target = [text for task in domain.tasks for text in task_texts(tasks[domain.name, task.name].task)]
    if sources := domain.target:
        target = list(with_usual_column(tuple(sources), text_options(config.adapt.given())))
    texts = list(dict.fromkeys(target)) or None
    try:
        return make_context(texts, general, config.models[0].path, progress=True)
    except UserError:  # the model has no tokenizer, which is reported where the model is used
        return make_context(texts, general, None, progress=True)


def selection_results(
    corpora: Mapping[str, Corpus], selected: Mapping[tuple[str, str], Corpus]
) -> dict[str, list[Any]]:
    """Return what operations did with the text of each domain, and with that of methods with operations of their own.

    Returns:
        Entries of the results of the study: ``"selections"``, and ``"tables"`` with a table for the report.
    """
    texts: dict[tuple[str, str | None], Corpus] = {(domain, None): corpus for domain, corpus in corpora.items()}
    texts.update(selected.items())
    found = {place: find_accounts(corpus) for place, corpus in texts.items()}
    rows = [
        SelectionRow(domain=place[0], method=place[1], accounts=[account.without_texts() for account in own])
        for place, own in found.items()
        if own
    ]
    units = sorted({account.counted_by for row in rows for account in row.accounts})
    note = (
        f"Text to adapt to, selected from that of the domain and transformed; tokens are {' or '.join(units)}. The "
        "operations of a method replace those of its domain; the selection random is the control, with as many "
        "tokens. `acclimate select` and `transform` show examples of what was kept and dropped."
    )
    lines = [
        [
            *(row.domain, row.method or "all others", account.operation),
            *(account.documents_in, account.documents_out, account.tokens_in, account.tokens_out),
            100 * account.tokens_out / account.tokens_in if account.tokens_in else None,
        ]
        for row in rows
        for account in row.accounts
    ]
    table = ReportTable(title="Selection and transforms of text", note=note, columns=COLUMNS, rows=lines, digits=1)
    return {"selections": rows, "tables": [table]}
