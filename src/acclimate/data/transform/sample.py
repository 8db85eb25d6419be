"""Text that a model generates itself, scored and filtered (SGEAT, Wang et al., NeurIPS 2022)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.files import atomic_file, cache_folder
from acclimate.base.progress import Progress
from acclimate.base.ranking import best_first, content_order, content_ranks
from acclimate.base.records import fingerprint, read_kept, texts_fingerprint
from acclimate.data.operations import EXAMPLES, TRANSFORMS, Context, Transform
from acclimate.data.pool import Document, Documents
from acclimate.data.transform.generate import CachedFunction, read_number, read_rating
from acclimate.data.transform.pseudo_labels import Labeler
from acclimate.data.writers import Key, Writing
from acclimate.models.checkpoints import model_fingerprint
from acclimate.models.generating import BATCH_FACTOR, Decoding, write_texts
from acclimate.models.loading import load_language_model

SCORED = 64
"""Texts that are scored at once."""
SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)
"""Kept shares for which the account has attribute rate and perplexity."""
SAMPLING = ("model", "samples", "prompt_tokens", "length", "temperature", "top_p", "seed")
"""Parameters that determine the samples, before they are filtered."""
_VERSION = 2  # increment when the same parameters give different samples


class Sampler:
    """A causal language model that continues prompts."""

    def __init__(self, path: str) -> None:
        """Load the model.

        Raises:
            UserError: If it cannot be loaded, or does not generate text.
        """
        loaded = load_language_model(path)
        if loaded.kind.uses_masking:
            raise UserError(f"'{path}' is a masked model; sampling needs one that generates text.")
        self._model: Any = to_device(loaded.model)
        self._tokenizer = loaded.tokenizer
        begin, end = loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id
        self._adds_begin = loaded.tokenizer("")["input_ids"][:1] == [begin]
        self._begin = end if begin is None else begin
        if self._begin is None:
            raise UserError(f"The tokenizer of '{path}' has neither a start nor an end token.")

    def prompt(self, text: str | None, tokens: int) -> list[int] | None:
        """Return the ids of a prompt.

        Args:
            text: The text that begins with the prompt; None for a prompt that is the start token alone.
            tokens: Number of its tokens.

        Returns:
            The ids; None if the text has fewer tokens.
        """
        if text is None:
            return [self._begin]
        ids, begin = self.encode(text), int(self._adds_begin)
        return ids[: begin + tokens] if len(ids) >= begin + tokens else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole text, after the start token if the tokenizer adds one."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [*([self._begin] if self._adds_begin else []), *ids]

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        length: int,
        temperature: float,
        top_p: float,
        seed: int,
        on_step: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Continue prompts at random, each by at most ``length`` tokens, and call ``on_step`` with the tokens so far.

        Returns:
            Prompts with their continuations.

        Raises:
            UserError: If the model does not read that many tokens.
        """
        how = Decoding(length, (), temperature, seed, top_p)
        made = write_texts(self._model, self._tokenizer, prompts, how, "length", BATCH_FACTOR, on_step)
        every = [[*prompt, *one.ids] for prompt, one in zip(prompts, made, strict=True)]
        return [str(text) for text in self._tokenizer.batch_decode(every, skip_special_tokens=True)]


@TRANSFORMS.register(
    "sample",
    paper="SGEAT, Wang et al., NeurIPS 2022",
    summary="text that the model generates, without samples that have an unwanted attribute",
)
@dataclass(frozen=True)
class Sample(Transform):
    """Generates text with the model that will be adapted, and keeps the samples with the least of an attribute.

    A model that is adapted to the result has less of the attribute, such as toxicity, and stays close to what it
    generated before. The account has the rate of the attribute and the perplexity for several kept shares.

    Attributes:
        model: The model, a causal language model.
        samples: Number of samples.
        prompt_tokens: Tokens of documents of the corpus that samples begin with; 0 for samples without a prompt.
        length: Maximum new tokens of a sample.
        temperature: Temperature of the sampling.
        top_p: Probability of the most probable tokens that are sampled from.
        classifier: Classifier of texts that scores the samples, by the probability of ``label``.
        label: Its label that is the attribute.
        rater: ``FILE.py:FUNCTION``, instead of a classifier: a function from a text to a number; or a language model
            with its options in quotation marks, as ``rater="http://HOST:PORT/v1 model=NAME prompt='... {text}'"``,
            whose first number is the score. Scores are cached per text.
        key: Identifier of the rater in the cache, such as the version of a service; by default its code.
        keep: Whether samples with the ``lowest`` or the ``highest`` scores are kept.
        share: Share of the samples to keep, by default half; without a classifier or rater all samples are kept.
        threshold: Score from which a text counts as having the attribute, for its rate.
        judge: Language model whose perplexity is reported; None for the model itself.
        seed: Random seed.
    """

    main: ClassVar[str] = "model"
    models: ClassVar[tuple[str, ...]] = ("model", "classifier", "judge")
    functions: ClassVar[tuple[str, ...]] = ("rater",)
    model: str = ""
    samples: int = 1000
    prompt_tokens: int = 0
    length: int = 128
    temperature: float = 1.0
    top_p: float = 0.9
    classifier: str | None = None
    label: str | None = None
    rater: Writing | None = None
    key: Key | None = None
    keep: Literal["lowest", "highest"] = "lowest"
    share: float | None = None
    threshold: float = 0.5
    judge: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("Transform 'sample' needs model, a causal language model.")
        if self.classifier is not None and self.rater is not None:
            raise UserError("Transform 'sample': give a classifier or a rater, not both.")
        if not self.is_scored and self.share is not None:
            raise UserError("Transform 'sample': share needs what scores the samples: classifier and label, or rater.")
        if (self.classifier is None) != (self.label is None):
            raise UserError("Transform 'sample': classifier and label go together.")
        if min(self.samples, self.length) < 1 or self.prompt_tokens < 0:
            raise UserError("Transform 'sample': samples and length are at least 1, and prompt_tokens at least 0.")
        if not (self.temperature > 0 and 0 < self.top_p <= 1 and 0 < self._share <= 1):
            raise UserError("Transform 'sample': temperature is above 0; top_p and share are above 0 and at most 1.")

    @property
    def is_scored(self) -> bool:
        """Whether samples have a score."""
        return self.classifier is not None or self.rater is not None

    @property
    def _share(self) -> float:
        return 0.5 if self.share is None else self.share

    def apply(self, documents: Documents, context: Context) -> Iterator[Document]:
        """Generate, score, and keep the best."""
        score = self._scorer(context) if self.is_scored else None
        texts, counts = self._sample(documents, context)
        if score is None:
            context.notes.update(counts)
            yield from map(Document, texts)
            return
        scores, losses = self._measure(texts, score, context)
        is_known = np.isfinite(scores)
        texts, scores, losses = (
            [texts[place] for place in np.flatnonzero(is_known)],
            scores[is_known],
            losses[is_known],
        )
        order = best_first(-scores if self.keep == "lowest" else scores, content_ranks(texts))
        kept = np.sort(order[: max(1, round(self._share * len(order)))]) if len(order) else order
        context.notes.update(
            **counts,
            without_score=int((~is_known).sum()),
            curve=[
                self._point(share, order, scores, losses) for share in sorted({*SHARES, self._share}, reverse=True)
            ],
            dropped=[texts[place] for place in order[::-1][: min(EXAMPLES, len(order) - len(kept))].tolist()],
        )
        for place in kept.tolist():
            yield Document(texts[place], {"score": round(float(scores[place]), 6)})

    def _point(self, share: float, order: np.ndarray, scores: np.ndarray, losses: np.ndarray) -> dict[str, Any]:
        """Return attribute rate, mean score and perplexity of the best samples."""
        best = order[: max(1, round(share * len(order)))]
        nats = losses[best][np.isfinite(losses[best])]
        return {
            "share": share,
            "samples": len(best),
            "attribute_rate": float((scores[best] >= self.threshold).mean()) if len(best) else None,
            "mean_score": float(scores[best].mean()) if len(best) else None,
            "perplexity": math.exp(min(float(nats.mean()), 700)) if len(nats) else None,
        }

    def _scorer(self, context: Context) -> Callable[[Sequence[str]], Iterable[float]]:
        if self.rater is not None:
            rate = CachedFunction(self.rater, self.key, read_rating, "rater", parse=read_number)

            def score(texts: Sequence[str]) -> Iterator[float]:
                yield from (math.nan if found is None else found for (found,) in rate.map(texts, len(texts)))
                context.notes["rater"] = rate.account()

            return score
        labeler = Labeler(str(self.classifier), self.length + self.prompt_tokens + 2)
        if self.label not in labeler.labels:
            known = ", ".join(labeler.labels)
            raise UserError(f"Transform 'sample': '{self.classifier}' lacks the label '{self.label}'; it has {known}.")
        place = labeler.labels.index(self.label)
        return lambda texts: (
            float(one)
            for first in range(0, len(texts), SCORED)
            for one in labeler.probabilities(texts[first : first + SCORED])[0][:, place]
        )

    def _measure(
        self, texts: Sequence[str], score: Callable[[Sequence[str]], Iterable[float]], context: Context
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and the losses, in nats per token, of texts (texts,)."""
        if context.load_model is None:
            raise ValueError("the context loads no models")
        loss = context.load_model(self.judge or self.model)
        scores, losses = list[float](), list[float]()
        with Progress("Scoring samples", len(texts), unit="samples", enabled=context.progress) as bar:
            for one in score(texts):
                scores.append(one)
                bar.update(len(scores))
        with Progress("Measuring samples", len(texts), unit="samples", enabled=context.progress) as bar:
            for first in range(0, len(texts), SCORED):
                losses += loss(texts[first : first + SCORED])
                bar.update(len(losses))
        return np.array(scores), np.array(losses)

    def _sample(self, documents: Documents, context: Context) -> tuple[list[str], dict[str, int]]:
        """Return the distinct samples, and how many were made, empty and duplicates; from the cache if possible."""
        own = {name: getattr(self, name) for name in SAMPLING} | {"model": model_fingerprint(self.model)}
        key = fingerprint([_VERSION, own, texts_fingerprint(documents) if self.prompt_tokens else ""])
        file = cache_folder() / "samples" / f"{key}.json"
        if (found := read_kept(file, list[str])) is None:
            found = self._generate(documents, context)
            with atomic_file(file) as stream:
                stream.write(json.dumps(found).encode())
        filled = [text for text in found if text.strip()]
        texts = list(dict.fromkeys(filled))
        return texts, {"samples": len(found), "empty": len(found) - len(filled), "repeated": len(filled) - len(texts)}

    def _generate(self, documents: Documents, context: Context) -> list[str]:
        sampler = Sampler(self.model)
        if self.prompt_tokens:
            order = content_order(documents, self.seed).tolist()
            starts = (sampler.prompt(documents[place], self.prompt_tokens) for place in order)
            prompts = [ids for ids in starts if ids is not None]
            if not prompts:
                raise UserError(f"Transform 'sample': no document has {self.prompt_tokens} tokens; give fewer.")
        else:
            prompts = [sampler.prompt(None, 0) or []]
        every = [prompts[place % len(prompts)] for place in range(self.samples)]
        with Progress("Sampling", self.samples * self.length, unit="tokens", enabled=context.progress) as bar:
            return sampler.sample(every, self.length, self.temperature, self.top_p, self.seed, bar.update)
