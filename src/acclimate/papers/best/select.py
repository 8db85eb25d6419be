"""The documents with the highest scores of quality or fitness, with quotas for the sources of the corpus."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from acclimate.api import (
    MAX_FEATURES,
    Budget,
    CachedFunction,
    Documents,
    FunctionKey,
    OperationContext,
    Progress,
    UserError,
    Writing,
    atomic_file,
    cache_folder,
    content_order,
    fill_tokens,
    find_file,
    fingerprint,
    load_embedding,
    load_task,
    normalize_words,
    print_message,
    read_number,
    read_rating,
    register_selection,
    settle,
    texts_fingerprint,
)

log = logging.getLogger(__name__)

Score = Callable[[Sequence[str]], Iterable[float | None]]
"""Returns the score of each of several documents, or None for no score; higher is better."""
BLOCK = 64
"""Documents that are scored at once."""
CLASSIFIER_DOCUMENTS = 20_000
"""Maximum documents of each class from which the classifier of the domain learns."""
SCORE_PARAMETERS = ("name", "by", "model", "rater", "ratings", "criterion", "against", "code")
"""What of the identity determines the scores."""
FEWEST_RATED = 20
"""Minimum rated texts: a fifth of them measures the agreement."""
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


def rule_score(text: str) -> float:
    """Return the share of the rules for English web pages of Gopher (Rae et al., 2021, Table A1) that a text obeys."""
    words, lines = text.split(), [line.strip() for line in text.splitlines() if line.strip()]
    if not words:
        return 0.0
    count, ends = len(words), sum(line.endswith(("...", "…")) for line in lines)
    rules = (
        50 <= count <= 100_000,
        3 <= sum(map(len, words)) / count <= 10,
        text.count("#") <= 0.1 * count,
        text.count("...") + text.count("…") <= 0.1 * count,
        sum(line.startswith(("-", "*", "•")) for line in lines) <= 0.9 * len(lines),
        ends <= 0.3 * len(lines),
        sum(any(map(str.isalpha, word)) for word in words) >= 0.8 * count,
        len(STOP_WORDS & {word.lower() for word in words}) >= 2,
    )
    return sum(rules) / len(rules)


class NgramModel:
    """A trigram model of words with the smoothing of Witten and Bell (1991).

    ``p(w | h) = (count(h, w) + types(h) p(w | h')) / (count(h) + types(h))``, where ``h'`` lacks the first word of
    ``h``; below the unigrams, all words of the vocabulary and one unknown word are equally probable.
    """

    order = 3

    def __init__(self, texts: Iterable[str]) -> None:
        """Count the n-grams of some texts."""
        self.counts: dict[tuple[str, ...], Counter[str]] = {}
        for text in texts:
            words = ["<s>"] * (self.order - 1) + normalize_words(text)
            for place in range(self.order - 1, len(words)):
                for size in range(self.order):
                    self.counts.setdefault(tuple(words[place - size : place]), Counter())[words[place]] += 1
        self.totals = {history: (found.total(), len(found)) for history, found in self.counts.items()}
        self.words = set(self.counts.get((), ()))

    def probability(self, word: str, history: tuple[str, ...]) -> float:
        """Return the probability of a word after others; all words outside the vocabulary are one unknown word."""
        value = 1 / (len(self.words) + 1)
        for size in range(len(history) + 1):
            place = history[len(history) - size :]
            if place in self.totals:
                total, types = self.totals[place]
                value = (self.counts[place][word] + types * value) / (total + types)
        return value

    def score(self, text: str) -> float:
        """Return the mean log probability of the words of a text; -inf without words."""
        words = ["<s>"] * (self.order - 1) + normalize_words(text)
        places = range(self.order - 1, len(words))
        logs = [math.log(self.probability(words[i], tuple(words[i - self.order + 1 : i]))) for i in places]
        return sum(logs) / len(logs) if logs else -math.inf


def train_classifier(target: Sequence[str], others: Sequence[str]) -> Score:
    """Return the log-odds of a logistic regression on TF-IDF vectors that tells target texts from others."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(analyzer=normalize_words, sublinear_tf=True, max_features=MAX_FEATURES)
    model = make_pipeline(words, LogisticRegression(class_weight="balanced", max_iter=1000))
    try:
        model.fit([*target, *others], [True] * len(target) + [False] * len(others))
    except ValueError as error:
        raise UserError("Selection 'best': the texts have no words from which a classifier could learn.") from error
    return lambda texts: model.decision_function(list(texts)).tolist()


def train_rater(task: Any, embed: Callable[[Sequence[str]], np.ndarray] | None = None) -> tuple[Score, dict[str, Any]]:
    """Return a ridge regression that imitates ratings, and its agreement with ratings that it has not read.

    Args:
        task: A regression task; the rater learns from its train and dev texts, and is measured on its test texts.
        embed: Returns the vectors of texts (texts, dimensions); None for TF-IDF vectors.

    Returns:
        The rater; ``read`` and ``held_out``, the numbers of texts; Spearman's correlation with the held-out ratings
        and its 95 % interval (Bonett and Wright, 2000); and the mean absolute errors of the rater and of the mean.

    Raises:
        UserError: If there are too few texts, pairs of texts, or texts without words.
    """
    from scipy.stats import spearmanr
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    read, held = [*task.train, *task.dev], task.test
    if len(read) + len(held) < FEWEST_RATED or len(held) < 4 or read[0].text_pair is not None:
        raise UserError(
            f"Selection 'best': ratings need at least {FEWEST_RATED} single texts with a number each; '{task.name}' "
            f"has {len(read) + len(held)}."
        )
    words = TfidfVectorizer(analyzer=normalize_words, sublinear_tf=True, max_features=MAX_FEATURES)
    vectors = words if embed is None else FunctionTransformer(embed)
    model = make_pipeline(vectors, RidgeCV(np.geomspace(1e-3, 1e3, 13)))
    (texts, wanted), (others, known) = (
        ([example.text for example in part], np.array([example.target for example in part])) for part in (read, held)
    )
    try:
        model.fit(texts, wanted)
    except ValueError as error:
        raise UserError("Selection 'best': the rated texts have no words from which a rater could learn.") from error
    found = model.predict(others)
    varies = np.ptp(found) > 0 < np.ptp(known)
    rho = float(np.clip(spearmanr(found, known).statistic, -1, 1)) if varies else 0.0
    reach = 1.96 * math.sqrt((1 + rho**2 / 2) / max(1, len(held) - 3))
    low, high = (math.tanh(math.atanh(max(-1 + 1e-9, min(1 - 1e-9, rho))) + side * reach) for side in (-1, 1))
    errors = [float(np.abs(guess - known).mean()) for guess in (found, wanted.mean())]
    agreement = {"read": len(read), "held_out": len(held), "spearman": rho, "low": low, "high": high}
    agreement |= {"error": errors[0], "error_of_mean": errors[1]}
    return lambda given: model.predict(list(given)).tolist(), agreement


def divide(budget: int, sizes: np.ndarray) -> np.ndarray:
    """Return whole numbers in proportion to sizes, with ``budget`` as their sum (largest remainders)."""
    shares = budget * sizes / sizes.sum()
    parts = np.floor(shares).astype(np.int64)
    parts[np.argsort(parts - shares, kind="stable")[: budget - int(parts.sum())]] += 1
    return parts


@register_selection(
    "best",
    paper="DataMan, Peng et al., ICLR 2025; Guo et al., ACL 2025",
    summary="documents with the highest scores, in all or by source",
)
@dataclass(frozen=True)
class Best(Budget):
    """Keeps the documents with the highest scores.

    Scores are cached. Documents without a score, such as empty ones, come last, and are counted.

    Attributes:
        by: ``rules`` for the rules for web pages of Gopher; ``perplexity`` for the loss per token of ``model`` or,
            without one, of a trigram model of the target text; ``domain`` for a classifier that tells the target text
            from others; ``rater``; or ``ratings`` for a rater that is trained to imitate given ratings.
        rater: ``FILE.py:FUNCTION``: a function from a text to a number, or None for no score, such as a rater of
            quality; in Python the function itself. Or a language model as a writer with its options, in quotation
            marks: ``rater="http://HOST:PORT/v1 model=NAME prompt='... {text}'"``; the first number in its answer
            is the score. It is asked once for each document.
        ratings: With ``by=ratings``: a table of texts with a number each. A rater is trained on them, and its
            agreement is measured on a fifth of them; it is in the report.
        criterion: Column of the ratings, if there are several criteria.
        key: What identifies the rater in the cache, such as the version of a service; by default its code.
        model: Language model whose loss is measured: a folder or a name on the Hugging Face Hub. With ``by=ratings``
            an encoder, whose vectors the rater reads instead of TF-IDF vectors.
        against: The other texts of the classifier: a sample of the ``pool``, or the ``general`` text.
        least: Minimum score.
        quota: Shares of the sources (files or datasets) in the budget of tokens: ``original`` as in the corpus,
            ``equal``, or None for the best of all. A source that is too small is sampled with replacement, as in the
            released code of DataMan.
        repeat: How often each document occurs in the result. The budget includes the repetitions: with 5, a fifth of
            it holds different documents, so that one epoch reads the best of them five times.
        seed: Random seed of the sampling, and of the order of equal scores.
    """

    main: ClassVar[str] = "by"
    functions: ClassVar[tuple[str, ...]] = ("rater",)
    files: ClassVar[tuple[str, ...]] = ("ratings",)
    models: ClassVar[tuple[str, ...]] = ("model",)
    by: Literal["rules", "perplexity", "domain", "rater", "ratings"] = "rules"
    model: str | None = None
    rater: Writing | None = None
    ratings: str | None = None
    criterion: str | None = None
    key: FunctionKey | None = None
    against: Literal["pool", "general"] = "pool"
    least: float | None = None
    quota: Literal["original", "equal"] | None = None
    repeat: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If there is no budget, or parameters do not fit each other.
        """
        super().__post_init__()
        budget = next((name for name in ("tokens", "share", "documents") if getattr(self, name) is not None), None)
        if budget is None and self.least is None:
            raise UserError("Selection 'best' needs a limit: give tokens, documents, share or least.")
        if (self.by == "rater") != (self.rater is not None):
            raise UserError("Selection 'best': by=rater goes with rater=FILE.py:FUNCTION.")
        if (self.by == "ratings") != (self.ratings is not None) or (self.criterion and not self.ratings):
            raise UserError("Selection 'best': by=ratings goes with ratings=FILE, and criterion with both.")
        if self.ratings is not None and find_file(self.ratings) is None:
            raise UserError(f"Selection 'best': there is no file '{self.ratings}'; give ratings=FILE of rated texts.")
        if self.quota and budget not in ("tokens", "share"):
            raise UserError("Selection 'best': quotas are shares of tokens; give tokens or share.")
        if self.repeat < 1 or (self.repeat > 1 and budget not in ("tokens", "share")):
            raise UserError("Selection 'best': repeat is at least 1, and needs tokens or share.")

    @property
    def reads(self) -> tuple[str, ...]:
        """The target text or general text, depending on the score."""
        if self.by == "domain":
            return ("target", "general") if self.against == "general" else ("target",)
        return ("target",) if self.by == "perplexity" and self.model is None else ()

    def apply(self, documents: Documents, context: OperationContext) -> Documents:
        """Score the documents, and take the best."""
        scores = self._read_scores(documents, context)
        known = np.isfinite(scores)
        if not known.any():
            raise UserError(f"Selection '{self.describe()}': no document has a score, so none is the best.")
        order = content_order(documents, self.seed)
        order = order[np.argsort(-settle(scores[order]), kind="stable")]
        if self.least is not None:
            order = order[scores[order] >= self.least]
        if self.tokens is None and self.share is None:
            kept = self.fill(order, documents.tokens)
        else:
            kept = self._fill_quotas(order, documents, context)
        out = np.setdiff1d(np.arange(len(documents)), kept)
        context.notes["without_score"] = int((~known).sum())
        context.notes["scores"] = {
            name: {f"{q:g}": float(np.quantile(found, q, method="nearest")) for q in QUANTILES} if len(found) else {}
            for name, found in (("kept", scores[kept][known[kept]]), ("dropped", scores[out][known[out]]))
        }
        return documents.take(np.tile(np.sort(kept), self.repeat))

    def _fill_quotas(self, order: np.ndarray, documents: Documents, context: OperationContext) -> np.ndarray:
        """Return the best documents up to the budget, in all or of each source; some more than once."""
        tokens = documents.tokens
        budget = int(self.tokens or round(float(self.share or 0) * int(tokens.sum()))) // self.repeat
        if not len(order):
            return order
        if self.repeat > 1 and tokens[order[0]] > 2 * budget:
            raise UserError(
                f"Selection 'best': a budget of {budget * self.repeat:,} tokens is too small to hold a document "
                f"{self.repeat} times; give more tokens, or repeat less."
            )
        if not self.quota:
            return fill_tokens(order, tokens, budget)
        sizes = np.bincount(documents.source, tokens, len(documents.sources))
        sizes = np.where(self.quota == "equal", sizes > 0, sizes)
        quotas, rng, kept, report = divide(budget, sizes), np.random.default_rng(self.seed), list[np.ndarray](), {}
        for number, quota in enumerate(quotas.tolist()):
            best = order[documents.source[order] == number]
            if not quota or not len(best):
                continue
            chosen = fill_tokens(best, tokens, quota)
            missing = quota - int(tokens[chosen].sum())
            if len(chosen) == len(best) and missing > 0:
                drawn = rng.choice(best, 1 + int(2 * missing / max(1, tokens[best].mean())))
                while tokens[drawn].sum() < missing:
                    drawn = np.concatenate([drawn, rng.choice(best, len(drawn))])
                drawn = fill_tokens(drawn, tokens, missing)
                near = abs(missing - int(tokens[drawn].sum())) < missing  # not one more document that is far too long
                chosen = np.concatenate([chosen, drawn]) if near else chosen
            kept.append(chosen)
            place = documents.sources[number]
            again = len(chosen) - len(set(chosen.tolist()))
            report[place] = {"quota": quota, "tokens": int(tokens[chosen].sum()), "repeated": again}
        context.notes["quotas"] = report
        return np.concatenate(kept) if kept else order[:0]

    def _read_scores(self, documents: Documents, context: OperationContext) -> np.ndarray:
        """Return the scores (documents,), from the cache if they are there."""
        own = {name: value for name, value in self.identity().items() if name in SCORE_PARAMETERS}
        key = fingerprint([own, context.identity(self.reads), texts_fingerprint(documents)])
        file = cache_folder() / "scores" / f"{key}.npy"
        if file.is_file() and self.ratings is None:  # a rater is trained again, to measure its agreement
            return np.load(file)
        found = list[float]()
        with Progress("Scoring documents", len(documents), unit="documents", enabled=context.progress) as bar:
            for value in self._scores(documents, context):
                found.append(math.nan if value is None else float(value))
                bar.update(len(found))
        scores = np.nan_to_num(np.array(found), nan=-np.inf)
        with atomic_file(file) as stream:
            np.save(stream, scores)
        return scores

    def _scores(self, documents: Documents, context: OperationContext) -> Iterator[float | None]:
        """Yield the score of each document."""
        if self.rater is not None:
            rate = CachedFunction(self.rater, self.key, read_rating, "rater", parse=read_number)
            yield from (score for (score,) in rate.map(documents, len(documents)))
            context.notes["rater"] = rate.account()
            return
        score = self._scorer(documents, context)
        for first in range(0, len(documents), BLOCK):
            yield from score(documents[first : first + BLOCK])

    def _scorer(self, documents: Documents, context: OperationContext) -> Score:
        """Return the function that scores documents."""
        target = list(context.target or ())
        if self.by == "rules":
            return lambda texts: list(map(rule_score, texts))
        if self.by == "domain":
            if self.against == "general":
                others: Any = context.general
            else:
                others = [
                    documents[int(place)] for place in content_order(documents, self.seed)[:CLASSIFIER_DOCUMENTS]
                ]
            return train_classifier(target[:CLASSIFIER_DOCUMENTS], list(others)[:CLASSIFIER_DOCUMENTS])
        if self.by == "ratings":
            task = load_task(self.ratings, label_column=self.criterion, task_kind="regression")
            embed = None if self.model is None else load_embedding(self.model, documents, (), context)
            score, agreement = train_rater(task, embed)
            context.notes["rater"] = agreement
            found = (
                f"with the {agreement['held_out']:,} ratings held out (Spearman {agreement['spearman']:.2f}, 95 % "
                f"interval {agreement['low']:.2f} to {agreement['high']:.2f})"
            )
            if agreement["low"] > 0:
                print_message(f"The rater trained on '{self.ratings}' agrees {found}.", context.progress)
            else:
                log.warning(
                    "The rater trained on '%s' shows no agreement %s: what it selects may be arbitrary. Give more "
                    "ratings.",
                    *(self.ratings, found),
                )
            return score
        if self.model is None:
            ngrams = NgramModel(target)
            return lambda texts: list(map(ngrams.score, texts))
        if context.load_model is None:
            raise ValueError("the context loads no models")
        loss = context.load_model(self.model)
        return lambda texts: [-value for value in loss(texts)]
