"""Stop words of a language or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError, did_you_mean
from acclimate.base.files import find_file, read_lines
from acclimate.data.surface_forms import TextNormalizer


def read_stop_words(source: str, tokenizer: Any = None) -> frozenset[str]:
    """Return stop words in lower case.

    Args:
        source: ``"english"`` (the list of scikit-learn), ``"none"``, a file with one word per line, or the English
            name of a language of the package ``stop-words``, such as ``"german"``.
        tokenizer: A tokenizer of ``transformers``. The words are also added as it normalizes them, for example without
            accents.

    Raises:
        UserError: If there is no such file or language, the file is not UTF-8, or the package is missing.
    """
    if source == "none":
        return frozenset()
    if source == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return frozenset(ENGLISH_STOP_WORDS)
    if (file := find_file(source)) is not None:
        found = _read_word_file(file)
    else:
        found = _load_language(source)
    if tokenizer is None:
        return found
    normalize = TextNormalizer(tokenizer)
    normalized = (normalize(word).lower() for word in found)
    return found | frozenset(word for word in normalized if word)


def _read_word_file(path: Path) -> frozenset[str]:
    try:
        lines = read_lines(path, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"The stop word file '{path}' is not UTF-8; save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"The stop word file '{path}' cannot be read: {error.strerror or error}.") from error
    return frozenset(word.strip().lower() for word in lines if word.strip())


def _load_language(name: str) -> frozenset[str]:
    options = f"stop_words is '{name}': give 'english', 'none', a file with one word per line, or a language"
    try:
        import stop_words
    except ImportError as error:
        raise UserError(f"{options} such as german, which needs: pip install 'acclimate[stopwords]'.") from error
    languages = sorted({*stop_words.AVAILABLE_LANGUAGES} - {"english"})
    if name not in languages:
        raise UserError(f"{options}.{did_you_mean(name, languages)} Languages: {', '.join(languages)}.")
    return frozenset(word.lower() for word in stop_words.get_stop_words(name))
