"""New tokens in the vocabulary of a model, learned from domain text or given as words (ChipNeMo, Liu et al., 2023).

A vocabulary grows by continued byte-pair encoding: what its own tokenizer splits is merged further. Texts without new
pieces keep their tokens, and the model its hidden states and logits for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from acclimate.adaptation.method import cache_key
from acclimate.adaptation.mlm_head import train_parts
from acclimate.adaptation.run import Feature, Run
from acclimate.adaptation.tokenizer import Piece, extend_tokenizer, learn_pieces, sample_documents, split_into_tokens
from acclimate.adaptation.tokenizer import tokenizer_model as read_model
from acclimate.adaptation.vocabulary_options import split_new_tokens
from acclimate.base.errors import UserError, check_positive, first_line
from acclimate.base.files import cache_folder, find_file, hash_file, read_json, write_json
from acclimate.base.progress import Progress, print_message
from acclimate.base.registry import build_dataclass
from acclimate.data.documents import Corpus
from acclimate.data.fasttext import load_fasttext, lookup_vector, train_fasttext
from acclimate.data.surface_forms import SurfaceForm, TextNormalizer, read_surface_forms
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.distributed import ProcessGroup
from acclimate.models.encoding import encode
from acclimate.models.extensions import check_can_grow
from acclimate.models.families import language_head
from acclimate.models.loading import LanguageModel
from acclimate.parts.modules.new_rows import TrainNewRows, add_rows, map_vectors

NEW_TOKENS_FILE = "new-tokens.json"
"""File next to the model that says which tokens are new, and what they save."""
EXAMPLES = 10
"""Words that the report names."""
FASTTEXT = {"dimension": 100, "buckets": 200_000, "epochs": 5, "min_count": 5}
"""Size of the word vectors that new tokens start from."""
LEAST_KNOWN = 20
"""Least tokens of the vocabulary with a word vector, from which the map to embeddings is learned."""
PROBED_TEXTS, PROBED_TOKENS = 8, 64
"""Size of the text on which the probability of new tokens is measured."""
VERSION = 1
"""Increment when the same text gives other tokens."""


@dataclass
class NewTokenSettings:
    """Where new tokens start, and how they are chosen and trained.

    Attributes:
        start: Initial embeddings: ``"mean"`` of the tokens that a new one replaces, or ``"zero"``. ``"fasttext"``
            trains word vectors on the domain text, ``"vectors"`` reads a file of them; a ridge regression on the
            tokens of the vocabulary that have a vector maps them to embeddings. Tokens without a vector start from
            the mean.
        outputs: Initial rows of a head that is not tied to the embeddings: ``"mean"``, or ``"zero"`` as in ChipNeMo.
        vectors: A file of word or entity vectors: a line per word, with its numbers after it (``.vec``), or a ``.bin``
            of fastText.
        min_count: Least occurrences of a pair of tokens that is merged; words that are given are not counted.
        warm_up_tokens: Tokens of domain text on which the new rows alone are trained first.
    """

    start: Literal["mean", "zero", "fasttext", "vectors"] = "mean"
    outputs: Literal["mean", "zero"] = "mean"
    vectors: str = ""
    min_count: int = 10
    warm_up_tokens: int = 0

    def __post_init__(self) -> None:
        """Validate the combination."""
        check_positive(min_count=self.min_count)
        if self.warm_up_tokens < 0:
            raise UserError(f"warm_up_tokens must not be negative, as {self.warm_up_tokens} is.")
        if (self.start == "vectors") != bool(self.vectors):
            raise UserError("New tokens read 'vectors' with start=vectors, and only then; give both or neither.")


@dataclass
class NewTokens:
    """The tokens that a run adds.

    Attributes:
        limit: Number of tokens to learn from the text; None if words are given.
        words: Words that become tokens.
        settings: The other settings.
        record: The report on the vocabulary, after :meth:`add`.
    """

    limit: int | None
    words: tuple[str, ...]
    settings: NewTokenSettings
    record: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> NewTokens | None:
        """Return what the option ``new_tokens`` asks for; None for no new tokens.

        Raises:
            UserError: If a setting is wrong or a file is missing or empty.
        """
        if given is None:
            return None
        what, settings = split_new_tokens(given)
        made = build_dataclass(NewTokenSettings, "the option", "new-tokens", settings)
        if made.vectors and find_file(made.vectors) is None:
            raise UserError(f"The file of vectors '{made.vectors}' does not exist.")
        if isinstance(what, int):
            return cls(what, (), made)
        return cls(None, what if isinstance(what, tuple) else _read_words(what), made)

    def identity(self) -> dict[str, Any]:
        """Return what determines the tokens and their start."""
        file = find_file(self.settings.vectors) if self.settings.vectors else None
        changed = {"vectors": hash_file(file)} if file else {}
        return {"limit": self.limit, "words": cache_key({"words": self.words}), **asdict(self.settings), **changed}

    def add(
        self, loaded: LanguageModel, text: Corpus, seed: int, progress: bool, group: ProcessGroup | None = None
    ) -> None:
        """Add the tokens to a model and its tokenizer.

        Args:
            loaded: The model, which gets rows, and its tokenizer, which is replaced.
            text: The domain text.
            seed: Random seed of word vectors.
            progress: Whether to show progress bars and the report.
            group: The processes of the run; the first learns the tokens, and the others read them from the cache.

        Raises:
            UserError: If the vocabulary cannot be extended, or there is nothing to add.
        """
        check_can_grow(loaded.model)
        tokenizer, first = loaded.tokenizer, len(loaded.tokenizer)
        vocabulary = read_model(tokenizer)["vocab"]
        with (group or ProcessGroup()).main_process_first():
            pieces, self.record = self._learn(loaded, text, progress)
        longer = extend_tokenizer(tokenizer, pieces)
        parts = [[vocabulary[part] for part in piece.parts] for piece in pieces]
        inputs = self._start(loaded, text, read_surface_forms(longer)[first:], parts, seed, progress)
        self._tables = add_rows(loaded.model, first, parts, inputs=inputs, outputs=self.settings.outputs == "mean")
        self._rows = range(first, first + len(pieces))
        loaded.tokenizer = longer
        print_message(describe(self.record), enabled=progress)

    def warm_up(self, loaded: LanguageModel, rows: TokenDataset, work: Path, **options: Any) -> None:
        """Record how much probability the new tokens take, and train their rows alone, if the settings ask for it.

        Args:
            loaded: The model.
            rows: Text to train on.
            work: Folder for checkpoints.
            options: Other arguments of :func:`acclimate.adaptation.mlm_head.train_parts`.
        """
        progress = options["progress"]
        self.record["probability"] = self._probability(loaded, rows)
        share = f"At the start they get {self.record['probability']:.2%} of the predicted probability."
        print_message(share, enabled=progress)
        if not self.settings.warm_up_tokens:
            return
        print_message(f"Their rows are trained alone on {self.settings.warm_up_tokens:,} tokens.", enabled=progress)
        options |= {"title": "warm up new tokens", "rule": TrainNewRows(self._tables, self._rows)}
        train_parts(loaded, rows, work, self._tables, tokens=self.settings.warm_up_tokens, **options)

    def _learn(self, loaded: LanguageModel, text: Corpus, progress: bool) -> tuple[list[Piece], dict[str, Any]]:
        """Return the new tokens and the report, from the cache or from a sample of the text."""
        tokenizer, model = loaded.tokenizer, read_model(loaded.tokenizer)
        choice = {name: value for name, value in self.identity().items() if name in ("limit", "words", "min_count")}
        content = tokenizer.backend_tokenizer.to_str()
        key = cache_key({**choice, "text": text.fingerprint, "tokenizer": content, "version": VERSION})
        file = cache_folder() / "new-tokens" / f"{key}.json"
        if file.is_file():
            found = read_json(file)
            return [Piece(**{**one, "parts": tuple(one["parts"])}) for one in found["pieces"]], found["report"]
        sample, _ = sample_documents(text, progress=progress)
        words = split_into_tokens(tokenizer, sample)
        given = split_into_tokens(tokenizer, [f" {word}" for word in self.words])
        pieces = learn_pieces(
            given if self.words else words,
            model["vocab"],
            limit=self.limit,
            min_count=1 if self.words else self.settings.min_count,
            mark=model.get("continuing_subword_prefix") or "",
            every="merges" in model,
        )
        if not pieces:
            why = (
                "each of the given words is a token already, or has none of its letters in the vocabulary"
                if self.words
                else f"no two tokens of a word occur {self.settings.min_count} times in the text; lower min_count"
            )
            raise UserError(f"There are no new tokens: {why}.")
        report = self._report(words, split_into_tokens(extend_tokenizer(tokenizer, pieces), sample), pieces, model)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"pieces": [asdict(piece) for piece in pieces], "report": report})
        return pieces, report

    def _report(
        self,
        before: Mapping[tuple[str, ...], int],
        after: Mapping[tuple[str, ...], int],
        pieces: Sequence[Piece],
        model: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return tokens per word before and after, and the words that save most; see :func:`describe`."""
        mark = model.get("continuing_subword_prefix") or ""
        sizes: list[dict[str, int]] = []
        counts: dict[str, int] = {}
        for words in (before, after):
            sizes.append({"".join(token.removeprefix(mark) for token in word): len(word) for word in words})
            counts |= {"".join(token.removeprefix(mark) for token in word): count for word, count in words.items()}
        totals = [sum(len(word) * count for word, count in words.items()) for words in (before, after)]
        number = max(1, sum(before.values()))
        saved = {word: counts[word] * (sizes[0][word] - sizes[1].get(word, sizes[0][word])) for word in sizes[0]}
        most = sorted((word for word in saved if saved[word] > 0), key=lambda word: (-saved[word], word))[:EXAMPLES]
        return {
            "asked": self.limit or len(self.words),
            "tokens": [piece.text for piece in pieces],
            "counts": [piece.count for piece in pieces],
            "words": number,
            "tokens_per_word": [total / number for total in totals],
            "saved": 1 - totals[1] / max(1, totals[0]),
            "most_saved": {word: [sizes[0][word], sizes[1][word], counts[word]] for word in most},
        }

    def _start(
        self,
        loaded: LanguageModel,
        text: Corpus,
        forms: Sequence[SurfaceForm],
        parts: Sequence[Sequence[int]],
        seed: int,
        progress: bool,
    ) -> Tensor | None:
        """Return the initial embeddings (tokens, width); None for the means of the parts."""
        table: Any = loaded.model.get_input_embeddings().weight
        start = self.settings.start
        if start == "mean":
            return None
        if start == "zero":
            return torch.zeros(len(parts), table.shape[1])
        old = read_surface_forms(loaded.tokenizer)
        if start == "fasttext" or self.settings.vectors.endswith(".bin"):
            look_up = self._fasttext(loaded, text, seed, progress)
        else:
            look_up = read_vectors(self.settings.vectors)
        known = {number: found for number, form in enumerate(old) if (found := look_up(form, True)) is not None}
        if len(known) < LEAST_KNOWN:
            raise UserError(
                f"Only {len(known)} tokens of the vocabulary have a word vector, too few to map the vectors to "
                "embeddings; use start=mean, or vectors of the words of this language."
            )
        found = [look_up(form, False) for form in forms]
        self.record["with_vectors"] = sum(one is not None for one in found)
        dimension = len(next(iter(known.values())))
        vectors = torch.stack([torch.zeros(dimension) if one is None else one for one in found])
        mapped = map_vectors(vectors, torch.stack([*known.values()]), table[[*known]])
        means = torch.stack([table[list(ids)].mean(0) for ids in parts]).detach().cpu()
        without = torch.tensor([one is None for one in found])
        return torch.where(without[:, None], means, mapped)

    def _fasttext(self, loaded: LanguageModel, text: Corpus, seed: int, progress: bool) -> Any:
        """Return a function that looks up surface forms in fastText vectors: given ones, or trained on the text."""
        if self.settings.vectors:
            model = load_fasttext(self.settings.vectors)
        else:
            normalize = TextNormalizer(loaded.tokenizer)
            texts = [normalize(one) for one in sample_documents(text, progress=progress)[0]]
            with Progress("fastText", 100, unit="%", enabled=progress) as bar:
                model = train_fasttext(texts, seed=seed, report=lambda share: bar.update(int(100 * share)), **FASTTEXT)

        def look_up(form: SurfaceForm, whole: bool) -> Tensor | None:
            if not form.text or (whole and not (form.starts and form.text in model.wv.key_to_index)):
                return None
            vector = torch.from_numpy(lookup_vector(model, form.text, form.starts, "aware"))
            return vector if bool(vector.any()) else None

        return look_up

    @torch.no_grad()
    def _probability(self, loaded: LanguageModel, rows: TokenDataset) -> float:
        """Return the mean probability of all new tokens together at some positions of the text."""
        model, head = loaded.model, language_head(loaded.model)
        training = model.training
        model.eval()
        shares = []
        for row in (rows[number] for number in range(min(PROBED_TEXTS, len(rows)))):
            ids = torch.as_tensor(row[:PROBED_TOKENS]).long()[None].to(model.device)
            logits = head(encode(model, ids, torch.zeros_like(ids))[0]).float()
            shares.append(nn.functional.softmax(logits, -1)[:, self._rows.start : self._rows.stop].sum(-1))
        model.train(training)
        return float(torch.cat(shares).mean())


class AddedTokens(Feature):
    """The new tokens of a run."""

    def __init__(self, run: Run) -> None:
        """Read the words and the settings."""
        found = NewTokens.of(run.options.new_tokens)
        assert found is not None
        self.new = found

    def identity(self) -> dict[str, Any]:
        """Return what determines the tokens and their start; the settings are part of it."""
        return {"new_tokens": self.new.identity()}

    def prepare(self, run: Run) -> None:
        """Add the tokens to the model and its tokenizer."""
        self.new.add(run.loaded, run.text, run.options.seed, run.progress, run.group)

    def warm_up(self, run: Run) -> None:
        """Record how much probability they take, and train their rows alone, if the settings ask for it."""
        self.new.warm_up(run.loaded, run.rows, run.work / "new-tokens", **run.about_warm_up)
        run.result.preparation[NEW_TOKENS_FILE] = self.new.record


def _read_words(path: str | Path) -> tuple[str, ...]:
    """Return the lines of a text file, without empty ones."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The new tokens '{path}' cannot be read: {first_line(error)}.") from error
    if not (words := tuple(line.strip() for line in lines if line.strip())):
        raise UserError(f"The file of new tokens '{path}' is empty; give a word per line.")
    return words


def describe(report: Mapping[str, Any]) -> str:
    """Return the report on a new vocabulary in a few sentences."""
    before, after = report["tokens_per_word"]
    examples = [f"{word.strip('Ġ▁')} ({old} to {new})" for word, (old, new, _) in report["most_saved"].items()]
    lines = [
        f"New tokens: {len(report['tokens']):,}. Words of the text take {after:.3f} tokens instead of {before:.3f}, "
        f"{report['saved']:.1%} fewer."
    ]
    if examples:
        lines.append(f"Most is saved on {', '.join(examples[:5])}.")
    if (missing := report["asked"] - len(report["tokens"])) > 0:
        lines.append(f"That is {missing:,} fewer than asked for: the others are tokens already or too rare.")
    return " ".join(lines)


def load_vectors(path: str | Path) -> dict[str, Tensor]:
    """Return the vectors of a text file with a word and its numbers per line.

    Raises:
        UserError: If a line has another form.
    """
    vectors: dict[str, Tensor] = {}
    dimension = 0
    try:
        with Path(path).expanduser().open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                word, *values = re.split("[ \t]+", line.rstrip())  # words of fastText may hold other kinds of spaces
                if number == 1 and len(values) == 1:
                    continue  # the header of word2vec: number of words and dimension
                dimension = dimension or len(values)
                if not values:
                    raise ValueError(f"line {number} has no numbers")
                if len(values) != dimension:
                    raise ValueError(f"line {number} has {len(values)} numbers instead of {dimension}")
                vectors[word] = torch.tensor([float(value) for value in values])
    except (OSError, ValueError) as error:
        raise UserError(f"The vectors '{path}' cannot be read: {first_line(error)}.") from error
    if not all(bool(vector.isfinite().all()) for vector in vectors.values()):
        raise UserError(f"The vectors '{path}' contain NaN or infinite values.")
    return vectors


def read_vectors(path: str | Path) -> Any:
    """Return a function that looks up surface forms in :func:`load_vectors`, as they are written or in lower case."""
    vectors = load_vectors(path)

    def look_up(form: SurfaceForm, whole: bool) -> Tensor | None:
        if not form.starts or not form.text:
            return None
        return vectors.get(form.text, vectors.get(form.text.lower()))

    return look_up
