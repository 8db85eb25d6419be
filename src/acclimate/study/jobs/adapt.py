"""Adaptation jobs, which also train missing language-model heads."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from acclimate.adaptation.options import BUDGETS, HEAD_TOKENS, NO_SIMILARITY, AdaptOptions
from acclimate.adaptation.replay_options import REPLAY_OPTIONS, find_memory
from acclimate.adaptation.step_options import MEASURING_OPTIONS
from acclimate.base.errors import UserError
from acclimate.base.files import MANIFEST_FILE, read_json
from acclimate.base.options import defaults
from acclimate.base.records import Record, internal, optional
from acclimate.data.documents import Corpus
from acclimate.data.mix.base import read_mix
from acclimate.data.reading import text_options
from acclimate.models.adapters import ADAPTERS
from acclimate.parts.masking import resolve
from acclimate.report.timing import preparation_minutes
from acclimate.results.adaptations import (
    AdaptationRow,
    Importance,
    MaskedSample,
    MaskedTexts,
    MaskedToken,
    UnreadRecords,
    read_curves,
)
from acclimate.results.study import MethodRow, StageName
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec
from acclimate.study.inputs import Checkpoint, StudyInputs, Texts
from acclimate.study.job import (
    HEAD,
    Job,
    JobResult,
    Model,
    Place,
    Planner,
    RunContext,
    StudyModel,
    StudyView,
    Timed,
    register,
)
from acclimate.study.settings import UNADAPTED

HEAD_OPTIONS = ("max_length", "precision", "head_tokens", "seed")
"""Options of ``adapt`` that affect the training of a missing head."""
IMPORTANCE = "importance.json"
GROUPED = ("seed", "learning_rate", "method")
"""Options in which adaptations of one price may differ."""
PILOT_METHOD, PILOT_DOCUMENTS, PILOT_HEAD_TOKENS = "lm", 2_000, 1_000
"""Method, documents, and tokens for a missing head of the adaptation that measures the speed of a machine."""


class Adaptation(Record):
    """The result of an adaptation.

    Attributes:
        method: Name of the method.
        steps: Optimizer steps.
        tokens: Tokens read.
        seconds: Duration of training in seconds.
        losses: Mean of each loss term at the end of training.
        masked: Samples of masked text; None if there are none.
        preparation: What the method recorded before training, by file name.
        broken: Unreadable records of the text; None if all were readable.
        mix: What was read of each text; None if there was one.
        corpus_tokens: Tokens of the text, which may be read more or less than once; None for a stored result.
    """

    method: str
    steps: int
    tokens: int
    seconds: float
    losses: dict[str, float]
    masked: MaskedTexts | None = optional()
    preparation: dict[str, Any] | None = optional()
    broken: UnreadRecords | None = optional()
    mix: list[dict[str, Any]] | None = optional()
    corpus_tokens: int | None = internal()

    @property
    def total_seconds(self) -> float:
        """Duration of training and of all stages before it, in seconds."""
        return self.seconds + 60 * sum(minutes for _, minutes in preparation_minutes(self.preparation or {}))


@register("adapt", summary="adapt a model to the text of a domain or a task")
class AdaptJob(Job):
    """Adapt a model with one method and one seed.

    Attributes:
        model: The base model, or the job that trains its missing head.
        method: Name of the method.
        parameters: Its parameters, defaults included.
        corpus: Text to adapt to.
        task: The labelled task, for methods that need it.
        heldout: Held-out text for the loss during training; None unless ``heldout_every`` is set.
        settings: Options of ``adapt``, defaults included.
        options: The explicit options, passed to ``adapt``.
        previews: Whether the result keeps a few masked texts.
    """

    model: Model
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    corpus: Corpus
    task: Any = None
    heldout: Texts | None = None
    settings: Mapping[str, Any]
    options: Mapping[str, Any] = field(compare=False)
    previews: bool = field(default=False, compare=False)

    cost: ClassVar[float] = 10.0
    result_type: ClassVar[type[Record]] = Adaptation
    makes_model: ClassVar[bool] = True
    shows_progress: ClassVar[bool] = True
    options_type: ClassVar[type[Any]] = AdaptOptions
    stages: ClassVar[tuple[StageName, ...]] = (
        StageName(
            stage="adaptation",
            name="adaptation",
            note="Adaptation: training, and preparation where it was recorded.",
        ),
    )

    @property
    def is_shared_base(self) -> bool:
        """Whether the job trains the missing head of a base model."""
        return self.place.method == HEAD

    @property
    def reads_budget(self) -> bool:
        """Whether it adapts to a domain or task."""
        return not self.is_shared_base

    def limited(self, **budget: float) -> AdaptJob:
        """Return the same adaptation with another budget."""
        own = {name: value for name, value in self.options.items() if name not in BUDGETS}
        return replace(self, options={**own, **budget})

    def run(self, context: RunContext) -> Adaptation:
        """Adapt the model and write it to the folder of the job."""
        folder, data = context.folder(self), {}
        if self.task is not None:
            data["task"] = self.task
        if self.heldout is not None:
            data["heldout"] = Corpus.of(self.heldout.texts)
        result = context.backend.adapt(
            context.path(self.model),
            self.corpus,
            out=folder,
            progress=context.progress,
            **data,
            # jobs of their own measure the similarity that models show, all seeds together
            **{"method": self.method, "similarity": NO_SIMILARITY, **self.options},
        )
        return Adaptation(
            **{name: getattr(result, name) for name in ("method", "steps", "tokens", "seconds", "losses")},
            masked=(getattr(result, "masked", None) or None) if self.previews else None,
            preparation=getattr(result, "preparation", None) or None,
            broken=_read_problems(folder),
            mix=getattr(result, "mix", None) or None,
            corpus_tokens=getattr(getattr(result, "rows", None), "tokens", 0),
        )

    @property
    def price_group(self) -> tuple[str | None, ...]:
        """The method, and the options that decide how fast a step is."""
        method = PILOT_METHOD if self.is_shared_base else self.method
        options = self._pilot_options | {"parameters": {} if method == PILOT_METHOD else self.parameters}
        named = sorted((name, str(value)) for name, value in options.items() if name not in GROUPED)
        return (self.name, self.place.model, method, str(named))

    @property
    def _pilot_options(self) -> dict[str, Any]:
        own = ("rules", "general", "heldout_every", "keep_steps", "save_every")
        left_out = {*BUDGETS, *REPLAY_OPTIONS, *MEASURING_OPTIONS, *own}
        return {name: value for name, value in self.options.items() if name not in left_out}

    @property
    def plain(self) -> AdaptJob:
        """The same adaptation with ``lm``, which prepares nothing."""
        options = {name: value for name, value in self.options.items() if name != "method"}
        return replace(self, method=PILOT_METHOD, parameters={}, task=None, options=options)

    def next_pilot(self, model: Checkpoint, timed: Sequence[Timed], seconds: float) -> AdaptJob | None:
        """Return a short adaptation to the first documents of the corpus."""
        if timed:
            return None
        options = {**self._pilot_options, "max_minutes": seconds / 60, "head_tokens": PILOT_HEAD_TOKENS}
        sample = Corpus.of(itertools.islice(self.corpus, PILOT_DOCUMENTS))
        job = self.plain if self.is_shared_base else self
        return replace(job, model=model, corpus=sample, heldout=None, options=options)

    def expected_seconds(self, timed: Sequence[Timed]) -> float:
        """Return the time of loading and saving, and of all tokens at the speed of the pilot."""
        (pilot,) = timed
        loading = max(0.0, pilot.seconds - pilot.result.seconds)
        if (minutes := self.options.get("max_minutes")) is not None:
            return loading + 60 * float(minutes)
        seconds_per_token = pilot.result.seconds / max(1, pilot.result.tokens)
        speed = self.relative_cost / pilot.job.relative_cost
        return loading + speed * seconds_per_token * self._budget_tokens(pilot)

    def corpus_tokens(self, pilot: Timed) -> float:
        """Return the estimated tokens of the corpus."""
        sample = _count_characters(pilot.job.corpus)
        return pilot.result.corpus_tokens * _count_characters(self.corpus) / max(1, sample)

    def _budget_tokens(self, pilot: Timed) -> float:
        given = self.options
        if self.is_shared_base:
            return float(self.settings.get("head_tokens") or HEAD_TOKENS)
        if given.get("tokens") is not None:
            return float(given["tokens"])
        if given.get("steps") is not None:
            return float(given["steps"]) * pilot.result.tokens / max(1, pilot.result.steps)
        from acclimate.adaptation.inputs import TASK_EPOCHS
        from acclimate.adaptation.method import lookup

        usual = TASK_EPOCHS if lookup(self.method).reads == "task" else 1
        return float(given.get("epochs") or usual) * self.corpus_tokens(pilot)

    @property
    def relative_cost(self) -> float:
        """The method's time per token, relative to ``lm``."""
        from acclimate.adaptation.method import lookup

        return 1.0 if self.is_shared_base else lookup(self.method).cost

    @classmethod
    def models(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterator[StudyModel]:
        """Yield the base model, and the models that each method adapts from it."""
        config, inputs = planner.config, planner.inputs
        base = base_model(inputs, model)
        if isinstance(base, Job):
            planner.add(base)
        place = Place(model=model.name, domain=domain.name)
        yield StudyModel(base, place, domain, config.seeds)
        for method in config.domain_methods:
            here = Place(model=model.name, domain=domain.name, method=method.label)
            if method.name == UNADAPTED:
                yield StudyModel(base, here, domain, config.seeds, measures_loss=False, measures_forgetting=False)
                continue
            for subject in adapted_models(inputs, method, model, domain):
                planner.add(cast(Job, subject.model))
                yield from [subject] * (method.scored is not False)

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return one row per method of the study."""
        found = inputs.methods
        return [
            MethodRow(
                label=method.label,
                name=method.name,
                parameters=found[method.label].parameters if method.label in found else {},
            )
            for method in inputs.config.methods
        ]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return the rows of the adaptations, and the samples of masked text."""
        found = list(view.find(Adaptation, lambda job: job.place.role is None))
        adaptations = [_adaptation_row(entry, view.out / "models" / entry.job.key) for entry in found]
        return {
            "adaptations": adaptations,
            "masked": masked_samples(found, view.inputs.config.evaluate.masked_texts),
        }


def base_model(inputs: StudyInputs, model: ModelSpec) -> Model:
    """Return the model that adaptations start from: the checkpoint, or the job that trains its missing head."""
    return _head_job(inputs, model) if model.name in inputs.headless else inputs.checkpoints[model.name]


def adapted_models(
    inputs: StudyInputs, method: MethodSpec, model: ModelSpec, domain: DomainSpec
) -> Iterator[StudyModel]:
    """Yield the models that a method adapts, one per scope and seed of adaptation; their jobs are not planned."""
    config, base = inputs.config, base_model(inputs, model)
    for scope, task in inputs.methods[method.label].scopes(domain):
        for number, seed in enumerate(config.adapt_seeds):
            place = Place(model=model.name, domain=domain.name, method=method.label, adapted_for=task, adapt_seed=seed)
            job = adapt_job(inputs, method, base, place, seed)
            tuned = config.seeds[number :: len(config.adapt_seeds)]  # see adapt_seeds of StudyConfig
            yield StudyModel(job, place, scope, tuned, base)


def _head_job(inputs: StudyInputs, model: ModelSpec) -> AdaptJob:
    """Return the job that trains a language-model head for a checkpoint without one."""
    config = inputs.config
    given = {key: value for key, value in config.adapt.given().items() if key in HEAD_OPTIONS}
    return AdaptJob(
        place=Place(model=model.name, method=HEAD),
        model=inputs.checkpoints[model.name],
        method=UNADAPTED,
        corpus=inputs.head_corpus or inputs.corpora[config.domains[0].name],
        settings={**inputs.options["adapt"], **given},
        options=given,
    )


def adapt_job(inputs: StudyInputs, method: MethodSpec, base: Model, place: Place, seed: int) -> AdaptJob:
    """Return the job that adapts a model to the text of a domain or task, which its place names."""
    from acclimate.adaptation.new_tokens import NewTokens

    config, found = inputs.config, inputs.methods[method.label]
    given = {**config.adapt.given(), **method.adapt, "seed": seed}
    if any(key in method.adapt for key in BUDGETS):  # a method's own budget replaces that of the study
        given = {key: value for key, value in given.items() if key not in BUDGETS or key in method.adapt}
    usual = {**defaults(AdaptOptions), **inputs.options["adapt"]}
    settings = {name: given.get(name, usual[name]) for name in (*inputs.options["adapt"], *MEASURING_OPTIONS)}
    _add_texts(inputs, given, settings)
    settings["masking"] = resolve(settings["masking"], settings["mask_rate"]).identity()
    settings["adapter"] = settings["adapter"] and ADAPTERS.read(settings["adapter"]).identity()
    words = NewTokens.of(settings["new_tokens"])
    settings["new_tokens"] = words and words.identity()
    sources = inputs.sources(str(place.model), given)
    mix, memory = given.get("mix") and read_mix(given["mix"]), find_memory(given.get("replay"))
    # What is read is identified by its content, and not by its name or form.
    settings |= {name: usual[name] for name in REPLAY_OPTIONS}
    settings["read"] = [source.identity() for source in sources]
    given = {name: value for name, value in given.items() if name not in REPLAY_OPTIONS}
    if mix:
        settings["mix"] = mix.identity()
        given |= {"mix": mix, "sources": {source.name: source.text for source in sources if source.name} or None}
    for source in sources:
        if not source.name:
            given.setdefault("replay", {})[source.text] = source.share
    if memory is not None:
        given.setdefault("replay", {})[f"{memory.kind}:{memory.what}"] = memory.share
        settings["read"].append(memory.identity())
    here = (str(place.domain), place.adapted_for or "")
    measures = any(settings[name] for name in ("heldout_every", *MEASURING_OPTIONS))
    return AdaptJob(
        place=place,
        model=base,
        method=method.name,
        parameters=found.parameters,
        corpus=inputs.task_corpora[here] if found.reads == "task" else inputs.corpus(here[0], method.label),
        task=inputs.tasks[here].visible if found.needs_task else None,
        heldout=inputs.heldout[here[0]] if measures else None,
        settings=settings,
        options={**given, **({"method": {method.name: method.parameters}} if method.parameters else {})},
        previews=config.evaluate.masked_texts > 0,
    )


def _add_texts(inputs: StudyInputs, given: dict[str, Any], settings: dict[str, Any]) -> None:
    """Add the texts that update rules and the measurements read to the options, and their content to the identity."""
    from acclimate.adaptation.rules import RULES, open_rules

    if settings["rules"]:
        rules: list[Any] = [RULES.read(one) for one in settings["rules"]]
        given["rules"] = tuple(
            replace(rule, text=inputs.general_text(f"adapt.rules.{rule.name}"))
            if rule.reads_general and rule.text is None
            else rule
            for rule in rules
        )
        settings["rules"] = [rule.identity() for rule in open_rules(given["rules"], text_options(given))]
    if any(settings[name] for name in MEASURING_OPTIONS) and inputs.general is not None:
        given["general"] = Corpus.of(inputs.general.texts)
        settings["general"] = given["general"].fingerprint


@functools.lru_cache(maxsize=64)
def _count_characters(corpus: Corpus) -> int:
    return sum(map(len, corpus))


def _read_problems(folder: Path) -> UnreadRecords | None:
    """Return the unreadable records that the manifest of an adaptation reports; None if there are none."""
    manifest = folder / MANIFEST_FILE
    card = read_json(manifest) if manifest.is_file() else {}
    texts = [part.get("text") or {} for part in card.get("stages") or [card]]
    texts = list({tuple(text["problems"]): text for text in texts if text.get("broken")}.values())
    if not texts:
        return None
    broken, documents = (sum(text[name] for text in texts) for name in ("broken", "documents"))
    return UnreadRecords(records=broken, documents=documents, first=texts[0]["problems"][0])


def adaptation_seconds(model: Model, view: StudyView) -> float | None:
    """Return the seconds of all adaptations that made a model; None if the result of one of them is missing.

    Training a missing head counts as part of the adaptation that follows it. It does not count for the base model
    itself, since it leaves the encoder unchanged.
    """
    if not isinstance(model, Job) or model.is_shared_base:
        return 0.0
    results = [view.outcomes[link.key].result for link in model.chain if link.result_type is Adaptation]
    if any(not isinstance(result, Adaptation) for result in results):
        return None
    return sum(result.total_seconds for result in results)


def _adaptation_row(entry: JobResult[Adaptation], folder: Path) -> AdaptationRow:
    job, result = entry
    place, preparation = job.place, dict(result.preparation or {})
    importance = read_importance(folder, preparation.pop(IMPORTANCE, None))
    return AdaptationRow(
        model=place.model,
        domain=place.domain,
        method=str(place.method),
        task=place.adapted_for,
        head=job.is_shared_base,
        seed=place.adapt_seed,
        folder=f"models/{job.key}",
        steps=result.steps,
        tokens=result.tokens,
        seconds=result.seconds,
        losses=result.losses,
        broken=result.broken,
        preparation=preparation,
        importance=importance,
        mix=result.mix or [],
        **read_curves(folder / "log.jsonl"),
    )


def read_importance(folder: Path, stored: Any = None) -> Importance | None:
    """Return the importance of heads and units that a method measured; None if there is none that can be drawn.

    Args:
        folder: Folder of the adapted model.
        stored: The same from the result of the job; None reads it from the folder.
    """
    try:
        return Importance.from_dict(stored or read_json(folder / IMPORTANCE))
    except (OSError, ValueError, TypeError, AttributeError, UserError):  # a user's method may write anything
        return None


def masked_samples(found: Sequence[JobResult[Adaptation]], count: int) -> list[MaskedSample]:
    """Return samples of masked text, taken from the first adaptation with each method.

    Args:
        found: The adaptations.
        count: Maximum number of texts per corpus; 0 for none.

    Returns:
        One sample per text, with the maskings of all methods that read it. Methods that mask the same tokens share a
        label.
    """
    texts: dict[tuple[str, str], dict[str, tuple[str, list[MaskedToken]]]] = {}
    seen: set[tuple[Any, ...]] = set()
    tasks = {(entry.job.place.domain, entry.job.place.adapted_for) for entry in found}
    for job, result in found:
        place, domain = job.place, job.place.domain
        which = (domain, place.adapted_for, place.method)  # one sample for all base models and seeds
        if not result.masked or not domain or which in seen:
            continue
        seen.add(which)
        per_task = sum(home == domain and task is not None for home, task in tasks) > 1
        name = f"{place.method}, {place.adapted_for}" if per_task and place.adapted_for else str(place.method)
        for tokens in result.masked["texts"][:count]:
            text = "".join(f"{' ' * token['space']}{token['text']}" for token in tokens)
            texts.setdefault((domain, text), {})[name] = (result.masked["masking"], tokens)
    return [MaskedSample(domain=domain, maskings=_merge_equal(found)) for (domain, _), found in texts.items()]


def _merge_equal(found: dict[str, tuple[str, list[MaskedToken]]]) -> dict[str, list[MaskedToken]]:
    """Merge methods with the same masking and masked tokens under one label that names them all."""
    groups: dict[str, list[str]] = {}
    for method, masked in found.items():
        groups.setdefault(json.dumps(masked), []).append(method)
    merged = {}
    for methods in groups.values():
        masking, tokens = found[methods[0]]
        merged[", ".join(methods) + (f": {masking}" if methods != [masking] else "")] = tokens
    return merged
