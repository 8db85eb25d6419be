"""What is read of the texts that tasks are judged on: in corpora, reported or removed, and in train splits, reported.

What was found is kept in the cache, so that it is looked for once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from acclimate.corpus.contamination import ContaminationReport, MatchRules, find_contamination, summarize_contamination
from acclimate.files import read_json, write_json
from acclimate.study.config import StudyConfig
from acclimate.study.identity import digest, texts_identity
from acclimate.study.kept import OTHER
from acclimate.study.parts import Parts
from acclimate.training.method import cache_folder

if TYPE_CHECKING:
    from acclimate.study.plan import Plan

VERSION = 2
"""Raise when the same texts come to be found otherwise."""


def look_for_leaks(
    plan: Plan, config: StudyConfig, parts: Parts, *, progress: bool = False, known_only: bool = False
) -> None:
    """Note in the plan what corpora and train splits hold of the dev and test texts of every task of the study.

    Args:
        plan: Holds corpora and tasks; what was looked at already is left alone.
        config: The study.
        parts: Its parts.
        progress: Show bars.
        known_only: Read nothing: take what is in the cache.
    """
    plan.unlooked.clear()
    _look_in_corpora(plan, config, parts, progress, known_only)
    _look_in_train(plan, config, parts, progress, known_only)


def _look_in_corpora(plan: Plan, config: StudyConfig, parts: Parts, progress: bool, known_only: bool = False) -> None:
    """Note what each corpus holds of the texts of every task; it is read once for all of them."""
    tasks = _judged(plan, config, parts)
    if not tasks:
        return
    groups = {str(number): texts for number, (_, texts) in enumerate(tasks)}
    rules = asdict(MatchRules())
    for domain in config.domains:
        if domain.name in plan.leakage:
            continue
        corpus = plan.corpora[domain.name]
        identity = {
            "version": VERSION,
            "corpus": str(corpus.fingerprint),
            "texts": [texts_identity(texts) for texts in groups.values()],
            "rules": rules,
        }
        find = partial(find_contamination, corpus, groups, MatchRules(), progress=progress)
        found = _found(digest(identity), known_only, find)
        if found is not None:
            places = {str(number): place for number, (place, _) in enumerate(tasks)}
            plan.leakage[domain.name] = {**_account(rules, found, places), "digests": found["digests"]}
        else:
            plan.unlooked.append(f"the text of {domain.name}")


def _look_in_train(plan: Plan, config: StudyConfig, parts: Parts, progress: bool, known_only: bool) -> None:
    """Note what the train split of each task, and of the task that is learnt before it, holds of its own texts."""
    for place, train_of, train, judged in _learnt(plan, config, parts):
        identity = {
            "version": VERSION,
            "train": texts_identity(train),
            "texts": {split: texts_identity(texts) for split, texts in judged.items()},
            "rules": asdict(MatchRules()),
        }
        key = digest(identity)
        if key in plan.in_train:
            continue
        found = _found(key, known_only, partial(find_contamination, train, judged, MatchRules(), progress=progress))
        if found is not None:
            places = {split: {"task": place[1], "split": split} for split in judged}
            account = _account(asdict(MatchRules()), found, places)
            plan.in_train[key] = {"domain": place[0], "train_of": train_of, **account}
        else:
            plan.unlooked.append(f"the train split of {train_of}")


def _account(rules: dict[str, Any], found: dict[str, Any], places: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {"rules": rules, **summarize_contamination(found, places), "removed": False}


def _found(key: str, known_only: bool, find: Callable[[], ContaminationReport]) -> dict[str, Any] | None:
    """Return what is in the cache; else what is found, which is put there, or None if that is not wanted."""
    file = cache_folder() / "leakage" / f"{key}.json"
    try:
        found: dict[str, Any] = read_json(file)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        if known_only:
            return None
        found = find().as_dict()
        write_json(file, found)
    return found


def remove_leaks(plan: Plan, config: StudyConfig, parts: Parts, progress: bool = False) -> None:
    """Leave the documents that hold such a text out of the corpora, before anything is adapted to them."""
    _look_in_corpora(plan, config, parts, progress)
    for domain, found in plan.leakage.items():
        found["removed"] = True
        if found["digests"]:
            plan.corpora[domain] = plan.corpora[domain].without(found["digests"])


def leakage_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return what is told: of each corpus all but the digests of its documents, then of each train split."""
    corpora = [
        {"domain": domain, **{name: value for name, value in found.items() if name != "digests"}}
        for domain, found in plan.leakage.items()
    ]
    return [*corpora, *plan.in_train.values()]


def _tasks(plan: Plan, config: StudyConfig) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the place of each task of the study, and the task."""
    places = [(domain.name, task.name) for domain in config.domains for task in domain.tasks]
    for place in [*places, *((OTHER, task.name) for task in config.other_tasks)]:
        yield place, plan.tasks[place]


def _judged(plan: Plan, config: StudyConfig, parts: Parts) -> list[tuple[dict[str, str], list[str]]]:
    """Return task, split and texts of every split that a model is judged on; the same task only once."""
    found: list[tuple[dict[str, str], list[str]]] = []
    seen: set[str] = set()
    for place, task in _tasks(plan, config):
        if (identity := task.fingerprint()) not in seen:
            seen.add(identity)
            found += [({"task": place[1], "split": split}, texts) for split, texts in parts.judged_texts(task).items()]
    return found


def _learnt(
    plan: Plan, config: StudyConfig, parts: Parts
) -> Iterator[tuple[tuple[str, str], str, list[str], dict[str, list[str]]]]:
    """Yield the place of a task, the name of what is learnt, its train texts, and the texts that are judged on.

    Once for each task, and once for each task that is learnt before it.
    """
    seen: set[tuple[str, str]] = set()
    for place, task in _tasks(plan, config):
        own = parts.item_texts(task)
        judged = {split: texts for split, texts in own.items() if split != "train"}
        for learnt, name in ((task, place[1]), (plan.firsts.get(place), "")):
            if learnt is None or (pair := (task.fingerprint(), learnt.fingerprint())) in seen:
                continue
            seen.add(pair)
            train = (own if learnt is task else parts.item_texts(learnt)).get("train")
            if train and judged:
                yield place, name or learnt.name, train, judged
