"""Training a tokenizer on a corpus: WordPiece as in BERT, or byte-level BPE as in RoBERTa.

The same text gives the same tokenizer. For WordPiece the library alone does not guarantee that: its trainer numbers
the pieces ``##x`` in the order of a hash table, the numbers break ties between merges, and two runs end with different
pieces. Here all letters get their numbers in advance, alone and as ``##x``. This also ensures that every word of known
letters can be split into pieces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from acclimate.errors import UserError
from acclimate.options.training import SAMPLE_CHARACTERS
from acclimate.progress import Progress

TokenizerKind = Literal["wordpiece", "byte-bpe"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = ("wordpiece", "byte-bpe")
DEFAULT_VOCAB_SIZE = 30_000
MAX_ALPHABET = 1_000
"""Maximum letters in a WordPiece vocabulary: the most frequent ones. Words with other letters are unknown."""
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""In the order of RoBERTa's first ids: its positions start after the id of the padding token, 1."""


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
