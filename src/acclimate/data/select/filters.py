"""Filters by length and by language."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.progress import Progress
from acclimate.data.operations import Context, Operation, register
from acclimate.data.pool import Documents

LANGUAGE_CHARACTERS = 2_000
"""Characters of a document from which its language is recognized."""
SHOWN_LANGUAGES = 10


@register("length", summary="documents that are neither too short nor too long")
@dataclass(frozen=True)
class Length(Operation):
    """Keeps documents by their number of tokens.

    Attributes:
        least: Minimum tokens of a document.
        most: Maximum tokens; None for no limit.
    """

    main: ClassVar[str] = "least"
    stays_in_control: ClassVar[bool] = True
    least: int = 8
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 0 or (self.most is not None and self.most < max(1, self.least)):
            raise UserError(f"Selection 'length': no document has {self.least} to {self.most} tokens.")

    def apply(self, documents: Documents, context: Context) -> Documents:
        """Keep the documents."""
        short = documents.tokens < self.least
        long = documents.tokens > (np.inf if self.most is None else self.most)
        context.notes.update(too_short=int(short.sum()), too_long=int(long.sum()))
        return documents.take(np.flatnonzero(~short & ~long))


@register("language", paper="py3langid; Lui and Baldwin, ACL 2012", summary="documents in some languages")
@dataclass(frozen=True)
class Language(Operation):
    """Keeps documents in given languages, as ``py3langid`` recognizes them.

    Attributes:
        keep: Codes of languages, such as ``en`` or ``en,de``.
        probability: Minimum probability of the language. Short texts have low ones.
    """

    main: ClassVar[str] = "keep"
    stays_in_control: ClassVar[bool] = True
    keep: str = "en"
    probability: float = 0.5

    def apply(self, documents: Documents, context: Context) -> Documents:
        """Recognize the language of every document.

        Raises:
            UserError: If ``py3langid`` is not installed, or does not know a language.
        """
        identifier, wanted = self._load()
        found: Counter[str] = Counter()
        kept, unsure = list[int](), 0
        with Progress("Recognizing languages", len(documents), unit="documents", enabled=context.progress) as bar:
            for number, text in enumerate(documents):
                language, probability = identifier.classify(text[:LANGUAGE_CHARACTERS])
                found[language] += 1
                unsure += language in wanted and probability < self.probability
                if language in wanted and probability >= self.probability:
                    kept.append(number)
                bar.update(number + 1)
        context.notes.update(languages=dict(found.most_common(SHOWN_LANGUAGES)), unsure=int(unsure))
        return documents.take(kept)

    def _load(self) -> tuple[Any, set[str]]:
        """Return the identifier and the languages to keep."""
        identifier = _load_identifier()
        wanted = {code.strip().lower() for code in self.keep.split(",") if code.strip()}
        known = {str(code) for code in identifier.labels}
        if unknown := sorted(wanted - known):
            codes = ", ".join(sorted(known))
            raise UserError(f"Selection 'language' does not know '{unknown[0]}'; give codes such as en, of {codes}.")
        return identifier, wanted


@functools.cache
def _load_identifier() -> Any:
    """Load the model that recognizes languages."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("Selection 'language' needs py3langid: pip install 'acclimate[language]'.") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
