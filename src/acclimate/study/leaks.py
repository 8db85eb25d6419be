"""What the corpora of a study hold of the texts that its tasks are judged on: looked for once, reported or removed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from acclimate.corpus.leakage import find_leakage
from acclimate.corpus.text_index import Rules
from acclimate.files import read_json, write_json
from acclimate.study.config import StudyConfig
from acclimate.study.identity import digest, texts_identity
from acclimate.study.kept import OTHER
from acclimate.study.parts import Parts
from acclimate.training.run import cache_folder

if TYPE_CHECKING:
    from acclimate.study.plan import Plan

VERSION = 1
"""Raise when the same texts come to be found otherwise."""


def look_for_leaks(
    plan: Plan, config: StudyConfig, parts: Parts, *, progress: bool = False, known_only: bool = False
) -> None:
    """Note in the plan what each corpus holds of the dev and test texts of every task of the study.

    A corpus is read once for it; what was found is kept in the cache, under the corpus, the texts and the rules.

    Args:
        plan: Holds corpora and tasks; a corpus that was looked at already is left alone.
        config: The study.
        parts: Its parts.
        progress: Show bars.
        known_only: Read no corpus: take what is in the cache.
    """
    tasks = _judged(plan, config, parts)
    if not tasks:
        return
    groups = {str(number): texts for number, (_, texts) in enumerate(tasks)}
    rules = asdict(Rules())
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
        file = cache_folder() / "leakage" / f"{digest(identity)}.json"
        try:
            found = read_json(file)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            if known_only:
                continue
            found = find_leakage(corpus, groups, Rules(), progress=progress).as_dict()
            write_json(file, found)
        places = {str(number): place for number, (place, _) in enumerate(tasks)}
        plan.leakage[domain.name] = {
            "rules": rules,
            "documents": found["documents"],
            "flagged": found["flagged"],
            "removed": False,
            "texts": [{**places[name], **counts} for name, counts in found["groups"].items()],
            "examples": [{**places[example.pop("group")], **example} for example in found["examples"]],
            "digests": found["digests"],
        }


def remove_leaks(plan: Plan, config: StudyConfig, parts: Parts, progress: bool = False) -> None:
    """Leave the documents that hold such a text out of the corpora, before anything is adapted to them."""
    look_for_leaks(plan, config, parts, progress=progress)
    for domain, found in plan.leakage.items():
        found["removed"] = True
        if found["digests"]:
            plan.corpora[domain] = plan.corpora[domain].without(found["digests"])


def leakage_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return what is told of each corpus: all but the digests of its documents."""
    return [
        {"domain": domain, **{name: value for name, value in found.items() if name != "digests"}}
        for domain, found in plan.leakage.items()
    ]


def _judged(plan: Plan, config: StudyConfig, parts: Parts) -> list[tuple[dict[str, str], list[str]]]:
    """Return task, split and texts of every split that a model is judged on; the same task only once."""
    found: list[tuple[dict[str, str], list[str]]] = []
    seen: set[str] = set()
    places = [(domain.name, task.name) for domain in config.domains for task in domain.tasks]
    for place in [*places, *((OTHER, task.name) for task in config.other_tasks)]:
        task = plan.tasks[place]
        if (identity := task.fingerprint()) not in seen:
            seen.add(identity)
            found += [({"task": place[1], "split": split}, texts) for split, texts in parts.judged_texts(task).items()]
    return found
