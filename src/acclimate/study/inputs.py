"""Reading and validating the inputs of a study: models, texts, tasks, methods and options; nothing is trained."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from acclimate.adaptation.replay_options import CHAT, GENERAL, REPLAY_SHARE, SELF, TEXT, list_replayed
from acclimate.base.errors import Problems, UserError, unknown_name_error
from acclimate.base.options import MISSING, build, option_fields
from acclimate.base.records import texts_fingerprint
from acclimate.data.chat import Chats
from acclimate.data.documents import Corpus, as_corpus, hash_document, subsample_documents, with_usual_column
from acclimate.data.reading import EDITS, TextOptions, default_task_name, reading_names, text_options
from acclimate.models.checkpoints import load_config, model_fingerprint
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.results.study import JOB_KINDS
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, ModelSpec, StudyConfig
from acclimate.study.method_inputs import MethodInput, check_scopes, read_methods
from acclimate.study.selection import select_texts
from acclimate.study.settings import UNADAPTED, TaskSpec, unused_seeds

if TYPE_CHECKING:
    from acclimate.tasks.interfaces import LabelledTask

log = logging.getLogger(__name__)

OTHER = ""
"""Replaces the name of the domain in the keys of tasks of other domains."""
HELDOUT_SHARE = 0.02
"""Share of the documents held out in a domain without ``heldout``."""
SPLIT_SEED = 0
"""Seed of the splits of text."""
WARM_UP_SPLIT = 0.5
"""Share of the general text kept for measurements if the rest trains missing heads."""


@dataclass(frozen=True)
class Checkpoint:
    """A model folder or a name on the Hub, with its fingerprint."""

    path: str
    fingerprint: str

    @classmethod
    def read(cls, path: str) -> Checkpoint:
        """Compute the fingerprint of a model.

        Raises:
            UserError: If there is no model at the path or with the name.
        """
        return cls(path, model_fingerprint(path))

    @cached_property
    def width(self) -> int | None:
        """The width of the hidden states, read once; None if the configuration does not say it."""
        from acclimate.tasks.interfaces import find_width

        return find_width(self.path)


@dataclass(frozen=True)
class Texts:
    """Documents for measuring language-model loss and drift, with their fingerprint."""

    texts: list[str]
    fingerprint: str

    @classmethod
    def sample(cls, corpus: Any, count: int, half: str | None = None) -> Texts:
        """Sample at most ``count`` documents of a corpus; the sample does not depend on the order of the corpus.

        Samples of different halves, ``"tune"`` and ``"confirm"``, have no document in common, whatever their sizes.

        Raises:
            UserError: If the corpus is empty.
        """
        if half is None:
            texts = subsample_documents(corpus, count)
        else:  # every second of the sampled documents, whose order is that of their hashes
            found = list(dict.fromkeys(subsample_documents(corpus, 2 * count)))
            texts = found[half == "confirm" :: 2] or found
        if not texts:
            raise UserError("There is no held-out document to measure on. Give more text, or a separate 'heldout'.")
        return cls(texts, texts_fingerprint(texts))


@dataclass(frozen=True)
class TaskInput:
    """A loaded task.

    Attributes:
        task: The task.
        metric: The primary metric.
        first: The task to train on before it; None for none.
        limited: Number of rows kept and of rows before, for each split that the study shortens.
        is_cut: Whether it is scored on dev rows, so that its dev split has rows that nothing may choose by.
    """

    task: LabelledTask
    metric: str
    first: LabelledTask | None
    limited: Mapping[str, tuple[int, int]]
    is_cut: bool = False

    @property
    def visible(self) -> Any:
        """The task as adaptations and fine-tunings see it."""
        task: Any = self.task
        return replace(task, dev=[]) if self.is_cut else task


@dataclass(frozen=True)
class StudyInputs:
    """The validated inputs of a study, from which its jobs are planned.

    Attributes:
        config: The study.
        checkpoints: The base models, by name.
        headless: Names of base models without a language-model head.
        corpora: Text to adapt to, by domain.
        head_corpus: Text for training missing heads; None uses the corpus of the first domain.
        heldout: Held-out text, by domain.
        general: General text; None if the study has none.
        tasks: Tasks, by domain (:data:`OTHER` for tasks of other domains) and name.
        methods: Methods of adaptation, by label.
        options: Defaults of the options that determine results, by kind of job.
        extras: Further inputs that kinds of jobs read, by kind: see :meth:`acclimate.study.job.Job.read`.
        unmeasured: The general text without the documents that the study measures on; None if there are no others.
        replaying: Names of the base models whose adaptations replay it by default.
        leaked: Digests of documents that are not replayed, since they contain dev or test texts.
        selected: Text to adapt to of methods with a selection of their own, by domain and label.
        held_out: All held-out text, of which ``heldout`` is a sample, by domain.
    """

    config: StudyConfig
    checkpoints: Mapping[str, Checkpoint]
    headless: frozenset[str]
    corpora: Mapping[str, Corpus]
    head_corpus: Corpus | None
    heldout: Mapping[str, Texts]
    general: Texts | None
    tasks: Mapping[tuple[str, str], TaskInput]
    methods: Mapping[str, MethodInput]
    options: Mapping[str, Mapping[str, Any]]
    extras: Mapping[str, Any]
    unmeasured: Corpus | None = None
    replaying: frozenset[str] = frozenset()
    leaked: frozenset[str] = frozenset()
    selected: Mapping[tuple[str, str], Corpus] = field(default_factory=dict)
    held_out: Mapping[str, Corpus] = field(default_factory=dict)

    def without(self, texts: Iterable[Texts]) -> StudyInputs:
        """Return the inputs without some documents in what is adapted to or replayed."""
        found = {hash_document(text.encode("utf-8", "surrogatepass")).hex() for one in texts for text in one.texts}
        if not found:
            return self
        corpora = {name: corpus.without(found) for name, corpus in self.corpora.items()}
        selected = {place: corpus.without(found) for place, corpus in self.selected.items()}
        held_out = {name: corpus.without(found) for name, corpus in self.held_out.items()}
        return replace(self, corpora=corpora, selected=selected, held_out=held_out, leaked=self.leaked | found)

    def corpus(self, domain: str, method: str) -> Corpus:
        """Return the text of a domain that a method, given by its label, adapts to."""
        return self.selected.get((domain, method), self.corpora[domain])

    def has_default_rate(self, domain: str, task: TaskSpec) -> bool:
        """Return whether fine-tuning on a task trains with the learning rate that follows from the width."""
        from acclimate.data.task_kinds import find_task_kind

        given, found = self.config.finetune_settings(task), self.tasks[domain, task.name]
        is_set = given.get("learning_rate") is not None or given.get("epochs") == 0
        return not is_set and not find_task_kind(found.task).own_training

    def is_tuned(self, domain: str, task: TaskSpec) -> bool:
        """Return whether the default search of the learning rate applies to a task."""
        wanted = self.config.search is not None and self.config.search.tune
        return wanted and bool(self.tasks[domain, task.name].visible.dev) and self.has_default_rate(domain, task)

    @property
    def searched_tasks(self) -> list[tuple[DomainSpec, TaskSpec]]:
        """Each task on which settings are searched, with its domain."""
        listed = self.config.searched_tasks
        places = [(domain, task) for domain in self.config.domains for task in domain.tasks]
        return [one for one in places if one in listed or self.is_tuned(one[0].name, one[1])]

    @cached_property
    def trial(self) -> StudyInputs:
        """The inputs for a search: in tasks with searched settings the dev split replaces the test split.

        Seeds of fine-tuning and the seed of the single adaptation are not among those that are scored.

        Raises:
            UserError: If such a task has no dev split.
        """
        from acclimate.tasks.splits import replace_test_with_dev

        tasks = dict(self.tasks)
        for domain, task in self.searched_tasks:
            place = (domain.name, task.name)
            tasks[place] = replace(tasks[place], task=replace_test_with_dev(tasks[place].task))
        config, seeds = self.config, getattr(self.config.search, "seeds", self.config.seeds)
        unused = unused_seeds({*config.seeds, *config.adapt_seeds, *seeds}, 1)
        config = config.model_copy(update={"seeds": seeds, "adapt_seeds": unused})
        return replace(self, config=config, tasks=tasks)

    def with_config(self, config: StudyConfig) -> StudyInputs:
        """Return the inputs of a study that differs in its settings and in ``limit_train``; nothing is read again."""
        from acclimate.tasks.splits import limit_splits

        tasks = dict(self.tasks)
        for domain in config.domains:
            for spec in domain.tasks:
                found = tasks[domain.name, spec.name]
                tasks[domain.name, spec.name] = replace(found, task=limit_splits(found.task, train=spec.limit_train))
        return replace(self, config=config, tasks=tasks)

    @cached_property
    def task_corpora(self) -> dict[tuple[str, str], Corpus]:
        """Text of the train splits, by domain and task; empty if no method adapts to the text of tasks."""
        from acclimate.adaptation.inputs import task_corpus

        if all(method.reads == "domain" for method in self.methods.values()):
            return {}
        return {place: task_corpus(found.task) for place, found in self.tasks.items() if place[0] != OTHER}

    def sources(self, model: str, given: Mapping[str, Any]) -> list[Any]:
        """Return what an adaptation reads next to its corpus (:class:`acclimate.adaptation.mix_sources.Source`).

        The documents that the study measures on are never among it.

        Args:
            model: Name of the base model.
            given: The options of the adaptation.

        Raises:
            UserError: If an option is invalid, or a share is given and there is no text to replay.
        """
        from acclimate.adaptation.mix_sources import open_sources

        return [
            replace(source, text=source.text.without(self.measured)) if isinstance(source.text, Corpus) else source
            for source in open_sources({**given, "replay": self.replayed(model, given)})
        ]

    @cached_property
    def measured(self) -> set[str]:
        """Hashes of the documents that the study measures on, and of those that contain test examples."""
        found = [*([self.general] if self.general else []), *self.heldout.values()]
        return {hash_document(text.encode()).hex() for part in found for text in part.texts} | self.leaked

    def general_text(self, option: str) -> Corpus:
        """Return the general text without the documents that the study measures on.

        Args:
            option: The option that needs it, for the message.

        Raises:
            UserError: If there is none.
        """
        if self.unmeasured is None:
            raise UserError(f"study: '{option}' needs text that is not measured on; give more 'general' text.")
        return self.unmeasured.without(self.measured)

    def replayed(self, model: str, given: Mapping[str, Any]) -> dict[Any, float]:
        """Return the shares of what an adaptation replays, the general text by default among it.

        Args:
            model: Name of the base model.
            given: The options of the adaptation.

        Raises:
            UserError: If the general text has a share, and all of it is measured on.
        """
        found, of_text = dict[Any, float](), False
        for kind, what, share in list_replayed(given.get("replay")):
            of_text |= kind in (TEXT, SELF)
            if isinstance(what, str) and what == GENERAL:
                if share and self.unmeasured is None:
                    raise UserError(
                        "study: the share of 'adapt.replay' needs text that is not measured on: name a text, or give "
                        "more 'general' text."
                    )
                what = self.unmeasured
            elif kind not in (TEXT, SELF):
                what = Chats(what) if kind == CHAT else f"{kind}:{what}"
            elif isinstance(what, list | tuple):
                what = as_corpus(what, text_options(given))
            if share:
                found[what] = share
        if not of_text and model in self.replaying:
            found[self.unmeasured] = REPLAY_SHARE
        return found

    @cached_property
    def mixed_in(self) -> list[tuple[Any, list[str]]]:
        """Everything that is read next to a corpus, each with descriptions of the adaptations that read it."""
        found: dict[str, tuple[Any, list[str]]] = {}
        for model, method in itertools.product(self.config.models, self.config.methods):
            if method.name != UNADAPTED:
                for source in self.sources(model.name, {**self.config.adapt.given(), **method.adapt}):
                    _, readers = found.setdefault(str(source.identity()), (source, []))
                    readers.append(f"{model.name}: {method.label}")
        return list(found.values())

    def other_tasks(self, domain: DomainSpec) -> list[TaskSpec]:
        """Return the tasks of other domains, except those whose content equals a task of this domain."""
        if not (others := self.config.other_tasks):  # fingerprints of large tasks take a second
            return []
        own = {found.task.fingerprint() for (home, _), found in self.tasks.items() if home == domain.name}
        return [task for task in others if self.tasks[OTHER, task.name].task.fingerprint() not in own]


def read_inputs(config: StudyConfig, backend: Backend, extras: Mapping[str, Any] | None = None) -> StudyInputs:
    """Read and validate the inputs of a study; nothing is trained.

    Args:
        config: The study.
        backend: Functions that load models.
        extras: Further inputs that kinds of jobs have read, by kind.

    Raises:
        UserError: If models, methods, options, texts or tasks do not exist or cannot be used; it lists all of them.
    """
    options = read_options()
    reading = text_options(config.adapt.given())
    problems = Problems()
    methods: dict[str, MethodInput] = {}
    checkpoints: dict[str, Checkpoint] = {}
    headless: frozenset[str] = frozenset()
    corpora: dict[str, Corpus] = {}
    heldout: dict[str, Texts] = {}
    held_out: dict[str, Corpus] = {}
    tasks: dict[tuple[str, str], TaskInput] = {}
    text: Corpus | None = None
    general, head_corpus, unmeasured = None, None, None
    with problems.collect():
        methods = read_methods(config)
    for model in config.models:
        with problems.collect():
            checkpoints[model.name] = Checkpoint.read(model.path)
            headless |= {model.name} if not _has_head(model, config, backend, options["adapt"], methods) else set()
    for domain in config.domains:
        with problems.collect():
            corpora[domain.name], held_out[domain.name] = _read_domain(domain, reading)
            heldout[domain.name] = Texts.sample(held_out[domain.name], config.evaluate.documents)
    for home, task in [
        *((domain.name, task) for domain in config.domains for task in domain.tasks),
        *((OTHER, task) for task in config.other_tasks),
    ]:
        with problems.collect():
            tasks[home, task.name] = _read_task(task, config)
    with problems.collect():
        if sources := config.general:
            text = with_usual_column(tuple(sources), reading)
    problems.check()
    check_scopes(config, methods)
    if text is not None:
        if headless:  # a head must not be evaluated on its training text
            head_corpus, text = text.split(WARM_UP_SPLIT, SPLIT_SEED)
        general = Texts.sample(text, config.evaluate.documents, config.evaluate.general_half)
        unmeasured = unmeasured_part(text, general)
    replaying = _find_replaying(config, unmeasured)
    corpora, selected = select_texts(config, corpora, heldout, tasks, methods, unmeasured)
    texts = (corpora, head_corpus, heldout, general)
    return StudyInputs(
        *(config, checkpoints, headless, *texts, tasks, methods, options, extras or {}, unmeasured, replaying),
        selected=selected,
        held_out=held_out,
    )


def unmeasured_part(text: Corpus, measured: Texts) -> Corpus | None:
    """Return a text without the documents that are measured on; None if there are no others."""
    others = text.without(hash_document(text.encode()).hex() for text in measured.texts)
    try:
        next(iter(others))
    except UserError:
        return None
    return others


def _find_replaying(config: StudyConfig, unmeasured: Corpus | None) -> frozenset[str]:
    """Return the names of the models whose adaptations replay general text by default; warn if there is none left."""
    if not config.general:
        return frozenset()
    found = []
    for model in config.models:
        with suppress(UserError):  # loading the model will say what is wrong with it
            kind = kind_of_checkpoint(load_config(model.path).architectures, model.path)
            found += [model.name] if kind.replays_general_text else []
    if found and unmeasured is None:
        adapted = [{**config.adapt.given(), **one.adapt} for one in config.methods if one.name != UNADAPTED]
        if not all(any(kind in (TEXT, SELF) for kind, *_ in list_replayed(one.get("replay"))) for one in adapted):
            log.warning(
                "study: every document of the general text is measured on, so none is replayed to %s; give more of "
                "it, or 'adapt.replay'.",
                ", ".join(found),
            )
        return frozenset()
    return frozenset(found)


def read_options() -> dict[str, dict[str, Any]]:
    """Return the defaults of the options that a study file may set and that determine results, by kind of job."""
    kinds = {name: JOB_KINDS.lookup(name).options_type for name in JOB_KINDS.names()}
    return {
        kind: {
            name: field.default
            for name, field in option_fields(cls).items()
            if field.option.study and field.option.recorded and field.default is not MISSING
        }
        for kind, cls in kinds.items()
        if cls
    }


def _has_head(
    model: ModelSpec,
    config: StudyConfig,
    backend: Backend,
    options: Mapping[str, Any],
    methods: Mapping[str, MethodInput],
) -> bool:
    try:
        names = [method.name for method in config.methods if method.label in methods]
        length, key = longest_text(config, options)
        return backend.has_head(model.path, length, names, key)
    except UserError as error:
        raise UserError(f"study: the model '{model.name}': {error}") from error


def longest_text(config: StudyConfig, options: Mapping[str, Any]) -> tuple[int, str]:
    """Return the maximum length, in tokens, that a language model of the study must read, and the setting it is in."""
    shared = {**options, **config.adapt.given()}
    lengths = [{**shared, **method.adapt}.get("max_length") for method in config.methods if method.name != UNADAPTED]
    of_text = config.evaluate.max_length, "evaluate.max_length"
    return max([of_text, *((length or 0, "adapt.max_length") for length in lengths)])


def _read_domain(domain: DomainSpec, reading: TextOptions) -> tuple[Corpus, Corpus]:
    problems = Problems()
    with problems.collect():
        corpus = as_corpus(tuple(domain.corpus), reading)
        next(iter(corpus), None)  # raises if no document can be read
    with problems.collect():
        heldout = as_corpus(tuple(domain.heldout), reading) if domain.heldout else None
    problems.check()
    if heldout is None:
        return corpus.split(HELDOUT_SHARE, SPLIT_SEED)
    return corpus, heldout


def _read_task(spec: TaskSpec, config: StudyConfig) -> TaskInput:
    from acclimate.data.task_kinds import find_task_kind, load_task
    from acclimate.tasks.finetune import check_first_task, check_kind_options
    from acclimate.tasks.options import FinetuneOptions
    from acclimate.tasks.splits import cut_dev, limit_splits, repartition

    columns = {name: value for name in reading_names() if (value := getattr(spec, name)) is not None}
    task = load_task(spec.path, name=spec.name, **columns)
    settings = config.finetune_settings(spec)
    # Raises if options do not fit together.
    build(FinetuneOptions, model="model", task=task, first=spec.first, **settings)
    check_kind_options(task, settings)
    task = find_task_kind(task).configured(task, settings)
    if spec.repartition is not None:
        task = repartition(task, spec.repartition)
    if settings.get("select") == "dev" and not task.dev:
        why = " after repartition" if spec.repartition is not None else ""
        raise UserError(f"study: 'select: dev' needs a dev split; '{spec.name}' has none{why}. Set 'select: last'.")
    limited: dict[str, tuple[int, int]] = {}
    if spec.limits:
        whole, task = task, limit_splits(task, **spec.limits)
        sizes = {split: (len(getattr(task, split)), len(getattr(whole, split))) for split in spec.limits}
        limited = {split: size for split, size in sizes.items() if size[0] < size[1]}
    if spec.evaluate_on is not None:
        if config.finetune_settings(spec).get("select") == "dev":
            raise UserError(
                f"study: '{spec.name}' is scored on dev rows (evaluate_on: {spec.evaluate_on}), by which "
                "'select: dev' would choose weights. Set 'select: last'."
            )
        task = cut_dev(task, spec.evaluate_on)
    known = task.scoring(negative=spec.negative).metrics
    metric = spec.metric or known[0]
    if metric not in known:
        raise unknown_name_error(f"metric of the task '{spec.name}'", metric, known)
    first = None
    if spec.first is not None:
        edits = {name: columns[name] for name in EDITS if name in columns}
        first = load_task(spec.first, name=default_task_name(spec.first), **edits)
        if spec.limit_first:
            rows, first = len(first.train), limit_splits(first, train=spec.limit_first)
            if len(first.train) < rows:
                limited[f"train of {first.name}"] = (len(first.train), rows)
        check_first_task(first, task)
    return TaskInput(task, metric, first, limited, spec.evaluate_on is not None)
