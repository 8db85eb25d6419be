"""Passages on the entities of a task (TOP-Training, Sengupta et al., 2023), generated or retrieved."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from acclimate.api import (
    DECIMALS,
    CachedFunction,
    Document,
    Documents,
    EntryFinder,
    FunctionKey,
    OperationContext,
    Progress,
    Sampler,
    Transform,
    UserError,
    Writing,
    fingerprint,
    model_fingerprint,
    normalize_words,
    read_documents,
    read_entries,
    read_stop_words,
    register_transform,
    split_sentences,
)

PHRASE_WORDS = 3
"""Maximum words of a mined entity."""
CANDIDATES = 20
"""Candidates that are counted in the corpus, per entity that is kept."""
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The parameters k1 and b of BM25."""
_BREAK = re.compile(r"[^\w\s'’-]+|\n|\s[-'’]|[-'’]\s")


def count_phrases(texts: Iterable[str], stop_words: frozenset[str]) -> Counter[str]:
    """Return in how many texts each phrase occurs that could name an entity.

    These are sequences of at most three words between stop words and punctuation marks. A part of a longer one counts
    only if it occurs in other texts as well; numbers and single characters name nothing alone.
    """
    counts = Counter[tuple[str, ...]]()
    for text in texts:
        found, run = set[tuple[str, ...]](), list[str]()
        for word in (word for part in _BREAK.split(text) for word in (*normalize_words(part), "")):
            run = [*run, word] if word and word not in stop_words else []
            found.update(tuple(run[-size:]) for size in range(1, min(len(run), PHRASE_WORDS) + 1))
        counts.update(one for one in found if any(len(word) > 1 and not word.isnumeric() for word in one))
    nested = {
        part
        for phrase, count in counts.items()
        for part in (phrase[:-1], phrase[1:], *((word,) for word in phrase[:-1] if len(phrase) == PHRASE_WORDS))
        if counts[part] == count
    }
    return Counter({" ".join(phrase): count for phrase, count in counts.items() if phrase not in nested})


def cut_passages(text: str, length: int, context: OperationContext) -> list[tuple[str, int]]:
    """Return the passages of a document, whole sentences up to a number of tokens, with their numbers of tokens."""
    sentences = split_sentences(text)
    passages, own, size = list[tuple[str, int]](), list[str](), 0
    for sentence, tokens in zip(sentences, context.count(sentences), strict=True):
        if own and size + tokens > length:
            passages.append((" ".join(own), size))
            own, size = [], 0
        own.append(sentence)
        size += tokens
    return [*passages, *([(" ".join(own), size)] if own else [])]


@register_transform(
    "passages",
    paper="TOP-Training, Sengupta et al., 2023",
    summary="passages on the entities of the task, retrieved from the corpus or made by a function",
)
@dataclass(frozen=True)
class Passages(Transform):
    """Writes passages on the entities of the task.

    Without a model or a generator they are those of the corpus that are best for each entity by BM25; one that is best
    for several is written once. The entities are those of a list, or phrases of the texts of the task that are
    frequent there, rare in the corpus and long. The paper finds them with scispaCy and generates with Galactica.

    Attributes:
        words: File with one entity per line; None mines them from the texts of the task.
        entities: Maximum number of mined entities.
        passages: Maximum number of passages of each entity: 1 to 10 in the paper.
        length: Maximum tokens of a retrieved passage, where a longer sentence is a passage by itself; maximum new
            tokens of a passage that the model writes.
        model: Causal language model that writes the passages: a folder or a name on the Hugging Face Hub.
        temperature: Temperature of its sampling, as in the released code.
        top_p: Probability of the most probable tokens that it samples from, as in the released code.
        seed: Random seed of its sampling.
        generator: A function from a prompt to passages, or a language model, which writes one; as ``by`` of
            ``generate``, with options in quotation marks.
        prompt: The prompt; ``{entity}`` is the entity. The default is from the released code.
        key: What identifies the function, as ``key`` of ``generate``.
        stop_words: Stop words that end a phrase: ``english``, ``none``, a file, or a language of ``stop-words``.
    """

    main: ClassVar[str] = "words"
    files: ClassVar[tuple[str, ...]] = ("words", "stop_words")
    models: ClassVar[tuple[str, ...]] = ("model",)
    functions: ClassVar[tuple[str, ...]] = ("generator",)
    words: str | None = None
    entities: int = 500
    passages: int = 5
    length: int = 128
    model: str | None = None
    temperature: float = 0.9
    top_p: float = 0.9
    seed: int = 0
    generator: Writing | None = None
    prompt: str = "Title: {entity}"
    key: FunctionKey | None = None
    stop_words: str = "english"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If a number is out of range, the prompt has no place for the entity, or a model and a generator
                are given.
        """
        if self.model is not None and self.generator is not None:
            raise UserError("Transform 'passages': give a model or a generator, not both.")
        if not (self.temperature > 0 and 0 < self.top_p <= 1):
            raise UserError("Transform 'passages': temperature is above 0, and top_p above 0 and at most 1.")
        for name in ("entities", "passages", "length"):
            if getattr(self, name) < 1:
                raise UserError(f"Transform 'passages': {name} must be at least 1, not {getattr(self, name)}.")
        if "{entity}" not in self.prompt:
            raise UserError("Transform 'passages': prompt must contain {entity}.")

    @property
    def generates(self) -> bool:
        """Whether passages are generated, not retrieved."""
        return self.model is not None or self.generator is not None

    @property
    def reads(self) -> tuple[str, ...]:
        """The text of the task, if the entities are mined from it."""
        return ("target",) if self.words is None else ()

    def apply(self, documents: Documents, context: OperationContext) -> Iterator[Document]:
        """Find the entities and the passages."""
        if self.words is not None:
            listed = {" ".join(normalize_words(entry)): entry.strip() for entry in read_entries(self.words)}
        else:
            listed = {entity: entity for entity in self._mine(documents, context)}
        listed.pop("", None)
        if not listed:
            raise UserError("Transform 'passages' finds no entity; give a list with words=FILE.")
        context.notes["entities"] = {"number": len(listed), "first": list(listed.values())[:10]}
        if self.generates:
            yield from self._generate(list(listed.values()), context)
        else:
            yield from self._retrieve(listed, documents, context)

    def _mine(self, documents: Documents, context: OperationContext) -> list[str]:
        """Return the phrases of the texts of the task with the highest scores, the highest first.

        The score is ``(1 + ln tf) idf log2(1 + words)``; the last factor prefers terms of several words, as C-value
        does (Frantzi et al., 2000). Without it the list is full of common single words.
        """
        counts = count_phrases(context.target or (), read_stop_words(self.stop_words))
        candidates = sorted(counts, key=lambda one: (-counts[one], one))[: self.entities * CANDIDATES]
        finder, found = EntryFinder(candidates, ignore_case=True), Counter[str]()
        for text in documents:
            found.update(set(finder.find(text)))
        # What is generated need not be in the corpus, but a phrase of a single text may be no name.
        candidates = [one for one in candidates if found[one] or (self.generates and counts[one] > 1)]
        scores = {
            one: round(
                (1 + math.log(counts[one]))
                * math.log((1 + len(documents)) / (1 + found[one]))
                * math.log2(1 + len(one.split())),
                DECIMALS,
            )
            for one in candidates
        }
        return sorted(scores, key=lambda one: (-scores[one], one))[: self.entities]

    def _retrieve(
        self, entities: Mapping[str, str], documents: Documents, context: OperationContext
    ) -> Iterator[Document]:
        """Yield the best passages of the corpus for the entities, each once, in the order of the corpus.

        Args:
            entities: Names of the entities by their normalized words.
            documents: The corpus.
            context: It counts tokens, and takes notes.
        """
        finder, number = EntryFinder(entities, ignore_case=True), 0
        best: dict[str, list[tuple[float, int, str]]] = {}
        with Progress("Searching passages", len(documents), unit="documents", enabled=context.progress) as bar:
            for place, text in enumerate(documents):
                bar.update(place + 1)
                if not finder.find(text):
                    continue
                for passage, size in cut_passages(text, self.length, context):
                    number -= 1  # so that the first of equals is the largest
                    norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * size / self.length)
                    for entity, count in Counter(finder.find(passage)).items():
                        entry = (count * (SATURATION + 1) / (count + norm), number, passage)
                        kept = best.setdefault(entity, [])
                        (heapq.heappush if len(kept) < self.passages else heapq.heappushpop)(kept, entry)
        named: dict[int, list[str]] = {}
        texts = {number: passage for kept in best.values() for _, number, passage in kept}
        for entity, kept in best.items():
            for _, number, _ in kept:
                named.setdefault(number, []).append(entities[entity])
        context.notes["without_passage"] = len(entities) - len(best)
        for number in sorted(texts, reverse=True):
            yield Document(texts[number], {"entities": sorted(named[number])})

    def _generate(self, entities: Sequence[str], context: OperationContext) -> Iterator[Document]:
        """Yield the passages that the model or the function makes of the prompt of each entity."""
        if self.model is not None:
            made_with: dict[str, Any] = {"made_with": Path(self.model).name}
            generate = self._sampling(self.model)
        else:
            assert self.generator is not None
            generate = CachedFunction(self.generator, self.key, read_documents, prompt="{text}")
            made_with = {} if self.key is None else {"made_with": self.key}
        empty = 0
        with Progress("Generating passages", len(entities), unit="entities", enabled=context.progress) as bar:
            prompts = (self.prompt.replace("{entity}", entity) for entity in entities)
            for number, (entity, found) in enumerate(zip(entities, generate.map(prompts, len(entities)), strict=True)):
                made = found[: self.passages]
                empty += not made
                for text, fields in made:
                    yield Document(text, {**fields, "entities": [entity], "made_by": generate.name, **made_with})
                bar.update(number + 1, generate.rate())
        context.notes.update(generate.account(), without_passage=empty)

    def _sampling(self, model: str) -> CachedFunction:
        """Return the function that samples passages after a prompt, with a seed of each prompt."""
        settings = [self.passages, self.length, self.temperature, self.top_p, self.seed]
        sampler = Sampler(model)

        def sample(prompt: str) -> list[str]:
            ids, seed = sampler.encode(prompt), int(fingerprint([prompt, self.seed]), 16) % 2**63
            return sampler.sample([ids] * self.passages, self.length, self.temperature, self.top_p, seed)

        return CachedFunction(sample, fingerprint([model_fingerprint(model), *settings]), read_documents)
