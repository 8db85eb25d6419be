"""Contrast of texts that share a code, with a feed-forward per domain (Hallee et al., 2024)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedModel

from acclimate.api import AdaptContext, DomainExperts, HeadLayer, UserError, has_adapters, register_method
from acclimate.papers.pairs.method import PairContrasted

NAME = re.compile(r"\w[\w-]*")
"""Pattern of a domain, whose name becomes that of a folder."""


@register_method(
    "experts",
    paper="Hallee et al., 2024",
    summary="pairs with a feed-forward per domain; the results are a sentence encoder for each domain, and their mean",
)
@dataclass
class DomainExpertPairs(PairContrasted):
    """Contrast of :class:`PairContrasted`, in an encoder whose feed-forward layers are copied for each domain.

    Each row of the table also names the domain of its text, and both texts of a pair are of one domain. A text is
    read with the feed-forward layers of its domain, which start as copies of the model's, and its first special token
    (``[CLS]``) has an embedding of the domain, which starts as that token's. All else is shared.

    A text without a domain, such as those of the corpus, is read with the mean of the experts, which is the result.
    Its subfolder ``experts`` has an ordinary sentence encoder for each domain.

    Attributes:
        table: A table with the columns ``text``, ``code`` and ``domain``, in a format of tasks.
        temperature: Divides the cosines.
        lm_weight: Weight of the LM loss, for the mean of the experts; 0 for the contrast alone.
    """

    without_adapter: ClassVar[str] = "it trains copies of the feed-forward layers"
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "marks a domain at the first special token, which only an encoder has in every text"
    columns: ClassVar[tuple[str, ...]] = ("text", "code", "domain")

    def __post_init__(self) -> None:
        """Validate the numbers."""
        super().__post_init__()
        self._experts: DomainExperts | None = None  # set by `prepare`

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that attention passes on the domain of each token, and that the model has ordinary layers."""
        if has_adapters(model):
            raise UserError("The model has adapters, prompts or entity vectors of its own; start from one without.")
        if not layers:
            raise UserError(
                f"{type(model).__name__} keeps its own attention, which does not pass on the domain of a token; use "
                "another model, or the method pairs."
            )

    def check(self, run: AdaptContext) -> None:
        """Read the table, and check its domains."""
        super().check(run)
        self.domains = sorted({domain for _, domain in self._codes})
        if wrong := [name for name in self.domains if not NAME.fullmatch(name)]:
            raise UserError(f"The domain '{wrong[0]}' of the table cannot be the name of a folder; rename it.")
        if len(self.domains) < 2:
            raise UserError("The table has only one domain; use the method pairs.")
        counts = Counter(code for codes in self._codes.values() for code in codes)
        paired = {domain for (_, domain), count in counts.items() if count > 1}
        if alone := [name for name in self.domains if name not in paired]:
            raise UserError(f"The domain '{alone[0]}' of the table has no two texts with the same code; leave it out.")
        if run.tokenizer("a")["input_ids"][0] != run.tokenizer.cls_token_id:
            raise UserError("The tokenizer puts no special token before a text, which would mark its domain.")

    def mark(self, run: AdaptContext, ids: np.ndarray, *part: str) -> np.ndarray:
        """Return the ids with the domain of the text."""
        table: Any = run.model.get_input_embeddings()
        return ids + table.num_embeddings * (1 + self.domains.index(part[0]))

    def prepare(self, run: AdaptContext) -> None:
        """Tokenize the texts of the table, and copy the feed-forward layers."""
        super().prepare(run)
        texts = Counter(domain for _, domain in self._codes)
        run.say("Domains: " + ", ".join(f"{name} ({texts[name]:,} texts)" for name in self.domains) + ".")
        token = run.tokenizer.cls_token_id
        self._experts = DomainExperts(run.model, len(self.domains), token)

    def finish(self, run: AdaptContext) -> None:
        """Put the mean of the experts into the model."""
        assert self._experts is not None, "prepare first"
        self._experts.close()

    def variants(self) -> Iterator[str]:
        """Yield the folder of each domain, with its weights in the model."""
        if self._experts is not None:
            for number, name in enumerate(self.domains):
                self._experts.use(number)
                yield f"experts/{name}"
            self._experts.use(None)
