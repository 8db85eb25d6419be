"""Test-set contamination of a study: dev and test texts in corpora and in train splits.

Contaminated corpus documents are reported or removed; contaminated train splits are only reported. Findings are
cached, so each text is searched once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from acclimate.base.files import cache_folder, read_json, write_json
from acclimate.base.records import fingerprint, texts_fingerprint
from acclimate.data.contamination import ContaminationReport, MatchRules, find_contamination, summarize_contamination
from acclimate.data.documents import Corpus, format_count
from acclimate.results.scores import ContaminationRow
from acclimate.study.inputs import OTHER, StudyInputs

VERSION = 3
"""Version of the cached findings. Increase it when the search would give other findings for the same texts."""


@dataclass(frozen=True)
class Contamination:
    """Contamination found in the texts of a study.

    Attributes:
        corpora: Findings in the corpus of each domain.
        train: Findings in train splits.
        documents: Hashes of the contaminated documents, by domain.
        unchecked: Descriptions of the texts that were skipped because their findings were not cached.
    """

    corpora: list[ContaminationRow] = field(default_factory=list)
    train: list[ContaminationRow] = field(default_factory=list)
    documents: Mapping[str, list[str]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[ContaminationRow]:
        """All findings."""
        return [*self.corpora, *self.train]

    def warnings(self) -> list[str]:
        """Return a warning for each corpus and train split that contains dev or test texts."""
        found = []
        for row in self.corpora:
            if row.flagged:
                texts = sum(counts.found for counts in row.texts)
                what = "left out" if row.removed else "kept, unless 'leakage: remove' leaves them out"
                found.append(
                    f"! {format_count(row.flagged, 'document')} of {row.domain} with "
                    f"{format_count(texts, 'dev or test text')}: {what}"
                )
        for row in self.train:
            if texts := sum(counts.found for counts in row.texts):
                found.append(
                    f"! the train split of {row.train_of} holds {format_count(texts, 'dev or test text')} of "
                    f"{row.texts[0].task}, with labels"
                )
            found += [
                f"! the train split of {row.train_of} has rows of {counts.shared_groups} of its {counts.split} split"
                for counts in row.texts
                if counts.groups_in_train
            ]
        return found


def check_contamination(inputs: StudyInputs, *, progress: bool = False, cached_only: bool = False) -> Contamination:
    """Search corpora and train splits for the dev and test texts of every task of a study.

    Args:
        inputs: Inputs of the study. With ``leakage: off`` nothing is searched.
        progress: Show progress bars.
        cached_only: Use cached findings only. With ``leakage: remove``, corpora are searched nevertheless, since the
            documents to remove determine the identity of the jobs.
    """
    if inputs.config.leakage == "off":
        return Contamination()
    removed = inputs.config.leakage == "remove"
    corpora, documents, unchecked = [], {}, []
    for domain, found in _search_corpora(inputs, progress, cached_only and not removed):
        if found is None:
            unchecked.append(f"the text of {domain}")
        else:
            row, documents[domain] = found
            row.removed = removed
            corpora.append(row)
    train = []
    for name, finding in _search_train_splits(inputs, progress, cached_only):
        if finding is None:
            unchecked.append(f"the train split of {name}")
        else:
            train.append(finding)
    return Contamination(corpora, train, documents, unchecked)


def remove_contamination(inputs: StudyInputs, found: Contamination) -> StudyInputs:
    """Return inputs without the contaminated documents, read or replayed, if the study sets ``leakage: remove``."""
    if inputs.config.leakage != "remove":
        return inputs
    corpora = {
        domain: corpus.without(found.documents[domain]) if found.documents.get(domain) else corpus
        for domain, corpus in inputs.corpora.items()
    }
    selected = {
        place: corpus.without(digests) if (digests := found.documents.get(_selected_name(*place))) else corpus
        for place, corpus in inputs.selected.items()
    }
    own = corpora.keys() | {_selected_name(*place) for place in selected}
    leaked = {digest for name in found.documents.keys() - own for digest in found.documents[name]}
    return replace(inputs, corpora=corpora, selected=selected, leaked=frozenset(leaked))


def _selected_name(domain: str, method: str) -> str:
    """Return how the text of a method with a selection of its own is called."""
    return f"{domain} ({method})"


def _search_corpora(
    inputs: StudyInputs, progress: bool, cached_only: bool
) -> Iterator[tuple[str, tuple[ContaminationRow, list[str]] | None]]:
    """Yield each domain with the findings in its corpus and the hashes of the contaminated documents.

    A text that is replayed is treated as the corpus of another domain, since it is training text as well.
    The corpus is read once for all tasks. The findings are None if they are not cached and ``cached_only`` is set.
    """
    tasks = _evaluation_texts(inputs)
    if not tasks:
        return
    groups = {str(number): texts for number, (_, texts) in enumerate(tasks)}
    places = {str(number): place for number, (place, _) in enumerate(tasks)}
    rules = asdict(MatchRules())
    for name, corpus in _read_corpora(inputs).items():
        identity = {
            "version": VERSION,
            "corpus": str(corpus.fingerprint),
            "texts": [texts_fingerprint(texts) for texts in groups.values()],
            "rules": rules,
        }
        search = partial(find_contamination, corpus, groups, MatchRules(), progress=progress)
        found = _cached(fingerprint(identity), cached_only, search)
        if found is None:
            yield name, None
        else:
            values = {"domain": name, "rules": rules, **summarize_contamination(found, places)}
            yield name, (ContaminationRow.from_dict(values), list(found["digests"]))


def _read_corpora(inputs: StudyInputs) -> dict[str, Corpus]:
    """Return the texts that adaptations read, by the name of their domain, or of their files if they are replayed."""
    found = {domain.name: inputs.corpora[domain.name] for domain in inputs.config.domains}
    found |= {_selected_name(*place): corpus for place, corpus in inputs.selected.items()}
    if not inputs.mixed_in:
        return found
    from acclimate.adaptation.mix_sources import text_name

    texts = {source.text.fingerprint: source.text for source, _ in inputs.mixed_in}
    for number, text in enumerate(texts.values(), 1):
        if isinstance(text, Corpus):
            name = f"{text_name(text)} (replayed)"
            found[name if name not in found else f"{name} {number}"] = text
    return found


def _search_train_splits(
    inputs: StudyInputs, progress: bool, cached_only: bool
) -> Iterator[tuple[str, ContaminationRow | None]]:
    """Yield the name of each task that is trained on, with the findings in its train split (None as above)."""
    rules, seen = asdict(MatchRules()), set[str]()
    for (home, name), train_of, train, evaluated, groups in _train_splits(inputs):
        identity = {
            "version": VERSION,
            "train": texts_fingerprint(train),
            "texts": {split: texts_fingerprint(texts) for split, texts in evaluated.items()},
            "rules": rules,
        }
        key = fingerprint(identity)
        if key in seen:
            continue
        seen.add(key)
        search = partial(find_contamination, train, evaluated, MatchRules(), progress=progress)
        found = _cached(key, cached_only, search)
        if found is None:
            yield train_of, None
        else:
            places = {split: {"task": name, "split": split, **groups.get(split, {})} for split in evaluated}
            values = {"domain": home, "train_of": train_of, "rules": rules, **summarize_contamination(found, places)}
            yield train_of, ContaminationRow.from_dict(values)


def _cached(key: str, cached_only: bool, search: Callable[[], ContaminationReport]) -> dict[str, Any] | None:
    """Return the cached findings; on a cache miss search and cache them, or return None with ``cached_only``."""
    file = cache_folder() / "leakage" / f"{key}.json"
    try:
        found: dict[str, Any] = read_json(file)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        if cached_only:
            return None
        found = search().as_dict()
        write_json(file, found)
    return found


def _tasks(inputs: StudyInputs) -> Iterator[tuple[str, str]]:
    """Yield (domain, name) of each task, with tasks of other domains last."""
    yield from ((domain.name, task.name) for domain in inputs.config.domains for task in domain.tasks)
    yield from ((OTHER, task.name) for task in inputs.config.other_tasks)


def _evaluation_texts(inputs: StudyInputs) -> list[tuple[dict[str, str], list[str]]]:
    """Return the task and split, and the texts, of every dev and test split; tasks with equal content appear once."""
    from acclimate.tasks.interfaces import evaluation_texts

    found: list[tuple[dict[str, str], list[str]]] = []
    seen: set[str] = set()
    for place in _tasks(inputs):
        task = inputs.tasks[place].task
        if (content := task.fingerprint()) not in seen:
            seen.add(content)
            found += [({"task": place[1], "split": split}, texts) for split, texts in evaluation_texts(task).items()]
    return found


def _train_splits(
    inputs: StudyInputs,
) -> Iterator[tuple[tuple[str, str], str, list[str], dict[str, list[str]], dict[str, dict[str, Any]]]]:
    """Yield (domain, name) of a task, the task trained on, its train texts, the evaluation texts, and shared groups.

    The task trained on is the task itself or its ``first`` task, whose groups have names of their own; each pair of
    equal content is yielded once.
    """
    from acclimate.tasks.groups import shared_groups
    from acclimate.tasks.interfaces import item_texts

    seen: set[tuple[str, str]] = set()
    for place in _tasks(inputs):
        task, first = inputs.tasks[place].task, inputs.tasks[place].first
        own = item_texts(task)
        evaluated = {split: texts for split, texts in own.items() if split != "train"}
        for trained_on in (task, first):
            if trained_on is None or (pair := (task.fingerprint(), trained_on.fingerprint())) in seen:
                continue
            seen.add(pair)
            train = (own if trained_on is task else item_texts(trained_on)).get("train")
            if train and evaluated:
                groups = {split: shared_groups(task, split) for split in evaluated if trained_on is task}
                yield place, place[1] if trained_on is task else trained_on.name, train, evaluated, groups
