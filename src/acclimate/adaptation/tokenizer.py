"""Training a tokenizer on a corpus, WordPiece as in BERT or byte-level BPE as in RoBERTa, or extending one.

The same text gives the same tokenizer. For WordPiece the library alone does not guarantee that: its trainer numbers
the pieces ``##x`` in the order of a hash table, the numbers break ties between merges, and two runs end with different
pieces. Here all letters get their numbers in advance, alone and as ``##x``. This also ensures that every word of known
letters can be split into pieces.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from acclimate.adaptation.options import SAMPLE_CHARACTERS
from acclimate.base.errors import UserError
from acclimate.base.progress import Progress

TokenizerKind = Literal["wordpiece", "byte-bpe"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = ("wordpiece", "byte-bpe")
DEFAULT_VOCAB_SIZE = 30_000
MAX_ALPHABET = 1_000
"""Maximum letters in a WordPiece vocabulary: the most frequent ones. Words with other letters are unknown."""
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""In the order of RoBERTa's first ids: its positions start after the id of the padding token, 1."""

ENCODED_TEXTS = 1_000
"""Texts that are encoded at a time."""
SPACE_MARK = "▁"
"""What the first token of a word begins with in SentencePiece."""
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def sample_documents(
    corpus: Iterable[str], characters: int = SAMPLE_CHARACTERS, progress: bool = True
) -> tuple[list[str], int]:
    """Read a corpus once and keep a random part of its documents, the same in every run and for every order.

    A hash of its text decides whether a document is kept. Whenever the kept documents exceed the limit, about half of
    them are dropped.
    No document contributes more than a hundredth of the limit (but at least 1,000 characters), so that one long book
    does not dominate.

    Args:
        corpus: The documents.
        characters: Maximum characters to keep; what is kept is at least about half of that, or the whole corpus.
        progress: Show a progress bar.

    Returns:
        The documents in the order of the corpus, and the number of characters of the whole corpus.
    """
    longest, limit, kept, size, total = max(1_000, characters // 100), 2**64, [], 0, 0
    with Progress("Reading text for the tokenizer", None, unit="characters", enabled=progress) as bar:
        for text in corpus:
            total += len(text)
            bar.update(total)
            place = int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")
            if place < limit:
                kept.append((place, text[:longest]))
                size += len(kept[-1][1])
            while size > characters and len(kept) > 1:
                limit //= 2
                kept = [pair for pair in kept if pair[0] < limit] or kept[:1]
                size = sum(len(text) for _, text in kept)
    return [text for _, text in kept], total


def train_tokenizer(
    texts: Sequence[str],
    kind: TokenizerKind,
    vocab_size: int | None = None,
    *,
    lowercase: bool | None = None,
    masked: bool = True,
    progress: bool = True,
) -> PreTrainedTokenizerBase:
    """Train a tokenizer that, once saved, ``AutoTokenizer`` can load without ``acclimate``.

    Args:
        texts: Training text.
        kind: ``"wordpiece"`` (Wu et al., 2016, as in BERT) or ``"byte-bpe"`` (Radford et al., 2019, as in RoBERTa),
            which represents every character and decodes every text unchanged.
        vocab_size: Number of entries, special tokens included; by default 30,000, or fewer if the text has too few
            pieces.
        lowercase: Whether to ignore case (WordPiece then also strips accents); by default only for WordPiece.
        masked: Whether it is for a masked model: then it has a mask token, and puts a start and an end token around
            each text. Otherwise it puts only the start token before a text, so that a prompt can be continued.
        progress: Show a progress bar.

    Raises:
        UserError: If the vocabulary is too small for the letters of the text, or the text gives too few pieces.
    """
    size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    tokenizer: PreTrainedTokenizerBase
    if kind == "wordpiece":
        tokenizer = _train_wordpiece(texts, size, lowercase is not False, progress)
    else:
        tokenizer = _train_byte_bpe(texts, size, bool(lowercase), masked, progress)
    if len(tokenizer) < size and vocab_size is not None:
        raise UserError(
            f"The text is enough for a vocabulary of {len(tokenizer):,} tokens, not {vocab_size:,}. Set vocab-size to "
            f"{len(tokenizer)} or less, or give more text."
        )
    return tokenizer


def _train_on_texts(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Sequence[str], progress: bool) -> None:
    def with_progress() -> Iterable[str]:
        with Progress("Training the tokenizer", len(texts), unit="documents", enabled=progress) as bar:
            for number, text in enumerate(texts):
                bar.update(number)
                yield text

    tokenizer.train_from_iterator(with_progress(), trainer=trainer, length=len(texts))


def _check_vocab_size(size: int, needed: int, what: str) -> None:
    if size <= needed:
        raise UserError(
            f"{what} alone take {needed} entries of the vocabulary; vocab-size must be larger than that, not {size}."
        )


def _train_wordpiece(texts: Sequence[str], size: int, lower: bool, progress: bool) -> BertTokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = _frequent_letters(texts, tokenizer)
    # Punctuation and Chinese characters are words by themselves, never continuations.
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    inner = [f"##{letter}" for letter in letters if len(split(f"a{tokenizer.normalizer.normalize_str(letter)}")) == 1]
    inner = [piece for piece in inner if tokenizer.normalizer.normalize_str(piece[2:]).strip() == piece[2:]]
    _check_vocab_size(size, len(BERT_TOKENS) + len(letters) + len(inner), "The letters of the text")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        # The trainer numbers special tokens first and in this order.
        special_tokens=[*BERT_TOKENS, *inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    _train_on_texts(tokenizer, trainer, texts, progress)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=lower)


def _frequent_letters(texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return the most frequent letters after normalization, sorted."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for letter, count in raw.items():
        for normal in tokenizer.normalizer.normalize_str(letter).split():
            counts.update(dict.fromkeys(normal, count))
    frequent = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return sorted(frequent[:MAX_ALPHABET])


def _train_byte_bpe(
    texts: Sequence[str], size: int, lower: bool, masked: bool, progress: bool
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    start, padding, end, unknown, _ = ROBERTA_TOKENS
    # The mask replaces a word with the space before it.
    mask = AddedToken(ROBERTA_TOKENS[-1], lstrip=True, normalized=False, special=True)
    special = [start, padding, end, unknown, *([mask] if masked else [])]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_vocab_size(size, len(special) + len(letters), "The 256 bytes and the special tokens")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=special,
        initial_alphabet=letters,
        show_progress=False,
    )
    _train_on_texts(tokenizer, trainer, texts, progress)
    ids = json.loads(tokenizer.to_str())["model"]["vocab"]
    tokenizer.post_processor = (
        processors.RobertaProcessing((end, ids[end]), (start, ids[start]), trim_offsets=True, add_prefix_space=False)
        if masked
        else processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, ids[start])]
        )
    )
    around = {"cls_token": start, "sep_token": end, "mask_token": mask} if masked else {}
    # RobertaTokenizer would rebuild itself from the vocabulary and lose the lowercasing.
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=start,
        eos_token=end,
        unk_token=unknown,
        pad_token=padding,
        **around,
        model_input_names=["input_ids", "attention_mask"],
    )


@dataclass(frozen=True)
class Piece:
    """A new entry of a vocabulary.

    Attributes:
        text: The entry, with the markers of its tokenizer.
        left: The entry that it begins with.
        right: The entry that it ends with.
        parts: The entries of the original vocabulary that it replaces.
        count: How often it occurs in the text, in its new tokenization.
    """

    text: str
    left: str
    right: str
    parts: tuple[str, ...]
    count: int


def tokenizer_model(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the model of a fast tokenizer that new entries can extend, as in ``tokenizer.json``.

    Raises:
        UserError: If it is neither WordPiece nor byte-pair encoding.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    kind = None if backend is None else type(backend.model).__name__
    if kind not in ("WordPiece", "BPE"):
        what = "a slow tokenizer" if kind is None else f"a vocabulary of the kind {kind}"
        raise UserError(
            f"New tokens extend WordPiece and byte-pair vocabularies, but this model has {what}; remove new-tokens."
        )
    model: dict[str, Any] = json.loads(backend.to_str())["model"]
    return model


def split_into_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count the words of texts, each as the tokens that a tokenizer splits it into.

    Special, unknown and byte tokens, digits and punctuation end a word, so that no new token contains them.
    """
    backend = tokenizer.backend_tokenizer
    excluded = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    usable: dict[str, bool] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for start in range(0, len(texts), ENCODED_TEXTS):
        batch = list(texts[start : start + ENCODED_TEXTS])
        for encoding in backend.encode_batch(batch, add_special_tokens=False):
            word: list[str] = []
            before = None
            for token, index in zip(encoding.tokens, encoding.word_ids, strict=True):
                if token not in usable:
                    usable[token] = token not in excluded and _is_of_letters(token)
                if word and (index != before or token.startswith(SPACE_MARK) or not usable[token]):
                    counts[tuple(word)] += 1
                    word = []
                if usable[token]:
                    word.append(token)
                before = index
            if word:
                counts[tuple(word)] += 1
    return counts


def _is_of_letters(token: str) -> bool:
    letters = any(character.isalpha() for character in token)
    return letters and not any(character.isdigit() for character in token) and not BYTE_TOKEN.fullmatch(token)


def learn_pieces(
    words: Mapping[tuple[str, ...], int],
    known: Collection[str],
    *,
    limit: int | None = None,
    min_count: int = 1,
    mark: str = "",
    every: bool = True,
) -> list[Piece]:
    """Continue byte-pair encoding on words that a vocabulary has split (Sennrich et al., 2016, from another start).

    The most frequent pair of neighboring tokens becomes a token, again and again. Of equally frequent pairs the first
    in alphabetical order is taken, so that the same text gives the same tokens.

    Args:
        words: Occurrences of each word, as its tokens.
        known: The vocabulary. A pair that spells a known token is never merged.
        limit: Number of new tokens; None for as many as possible.
        min_count: Least occurrences of a pair.
        mark: What the continuations of a word begin with (WordPiece).
        every: Whether tokens count that only occur inside larger new tokens. Byte-pair encoding needs them; WordPiece
            does not, and they are left out.

    Returns:
        The new tokens in the order in which they were learned.
    """
    text = _Segments(words)
    heap = [(-count, pair) for pair, count in text.pairs.items()]
    heapq.heapify(heap)
    made: dict[str, Piece] = {}
    used = 0  # new tokens that count
    while heap and (limit is None or used < limit):
        count, pair = heapq.heappop(heap)
        if not count or -count != text.pairs[pair]:
            continue  # the pair has another count by now, with which it is in the heap too
        if -count < min_count:
            break
        spelled = pair[0] + pair[1].removeprefix(mark)
        if spelled in known or spelled in made:
            continue
        parts = itertools.chain.from_iterable(made[part].parts if part in made else (part,) for part in pair)
        touched = [token for token in {*pair} if token in made]
        used -= sum(every or text.occurrences[token] >= min_count for token in touched)
        made[spelled] = Piece(spelled, *pair, tuple(parts), 0)
        for near in text.merge(pair, spelled):
            heapq.heappush(heap, (-text.pairs[near], near))
        used += sum(every or text.occurrences[token] >= min_count for token in (*touched, spelled))
    found = [replace(piece, count=text.occurrences[spelled]) for spelled, piece in made.items()]
    return [piece for piece in found if every or piece.count >= min_count]


class _Segments:
    """The words of a text as tokens, with the occurrences of tokens and of pairs of neighbors."""

    def __init__(self, words: Mapping[tuple[str, ...], int]) -> None:
        self._words = [list(word) for word in words]
        self._counts = list(words.values())
        self._places: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.occurrences: Counter[str] = Counter()
        for number, word in enumerate(self._words):
            self._add(number, word, 1)

    def merge(self, pair: tuple[str, str], spelled: str) -> list[tuple[str, str]]:
        """Replace a pair of tokens everywhere; return the pairs that have another count than before, and any."""
        changed: set[tuple[str, str]] = set()
        for number in self._places.pop(pair):
            old = self._words[number]
            self._words[number] = new = _merge(old, pair, spelled)
            self._add(number, old, -1)
            self._add(number, new, 1)
            changed.update(itertools.pairwise(old), itertools.pairwise(new))
        return [near for near in changed if self.pairs[near] > 0]

    def _add(self, number: int, word: Sequence[str], sign: int) -> None:
        count = sign * self._counts[number]
        for token in word:
            self.occurrences[token] += count
        for near in itertools.pairwise(word):
            self.pairs[near] += count
            if sign > 0:
                self._places[near].add(number)


def _merge(word: Sequence[str], pair: tuple[str, str], spelled: str) -> list[str]:
    """Replace each occurrence of a pair of tokens in a word, from the left."""
    merged: list[str] = []
    for token in word:
        # A token that was merged just now is not part of another pair: it differs from both parts.
        if merged and merged[-1] == pair[0] and token == pair[1]:
            merged[-1] = spelled
        else:
            merged.append(token)
    return merged


def extend_tokenizer(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer with new entries after the last one of its vocabulary.

    Texts without the new pieces have the same tokens as before: WordPiece looks for the longest entry, and byte-pair
    encoding applies the new merges after all others.

    Raises:
        UserError: As :func:`tokenizer_model`.
    """
    tokenizer_model(tokenizer)
    longer = copy.deepcopy(tokenizer)
    content = json.loads(longer.backend_tokenizer.to_str())
    model = content["model"]
    model["vocab"] |= {piece.text: len(tokenizer) + number for number, piece in enumerate(pieces)}
    if "merges" in model:
        joined = bool(model["merges"]) and isinstance(model["merges"][0], str)
        merges = [[piece.left, piece.right] for piece in pieces]
        model["merges"] += [" ".join(pair) for pair in merges] if joined else merges
    longer._tokenizer = Tokenizer.from_str(json.dumps(content))
    return longer
