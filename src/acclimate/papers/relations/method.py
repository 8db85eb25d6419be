"""Relation prediction over a taxonomy next to masked language modelling (ESCOXLM-R, Zhang et al., ACL 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.api import (
    RELATIONS,
    AdaptContext,
    BatchObjective,
    ClassificationHeads,
    DrawnClassification,
    DrawRelations,
    LabelledMethod,
    LanguageModelling,
    Objective,
    UserError,
    check_not_negative,
    check_positive,
    encode_pairs,
    register_method,
)


@register_method(
    "relations",
    paper="Zhang et al., ACL 2023",
    summary="language modelling plus the relation of two entries of a taxonomy: same code, same group, or neither",
)
@dataclass
class TaxonomyRelations(LabelledMethod):
    """L = L_LM + weight x mean over drawn pairs of the cross-entropy of their relation.

    A step reads a pair of entries for each text of the corpus. The relations are *linked* (the same code), *grouped*
    (another code of the same group) and *random* (another group); the released code draws pairs for which two of them
    are true, which do not exist here. The group of an entry is the beginning of its code. A head on the mean of the
    last hidden states predicts the relation, and is discarded.

    The paper trains on the entries themselves: give the taxonomy as the corpus, too.

    Attributes:
        taxonomy: A table with the columns ``text`` and ``code``, in a format of tasks. By default the task of the run,
            whose labels are the codes.
        level: Characters of a code that name its group (ESCO: 2); with ``separator``, parts of it.
        separator: What separates the parts of a code, such as ``.``; empty if every character is a level.
        weight: Weight of the loss (paper: 1).
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 2.0
    files: ClassVar[tuple[str, ...]] = ("taxonomy",)

    taxonomy: str | None = None
    level: int = 2
    separator: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(level=self.level)
        check_not_negative(weight=self.weight)
        self._term: DrawnClassification | None = None  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Read the taxonomy."""
        self._codes = self.read_codes(run, self.taxonomy)
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Find the pairs and add the head."""
        codes, dropped = self._codes
        entries = [(self._group(code), code, text) for text, code in codes.items()]

        def encode(first: str, second: str) -> list[int]:
            ids: list[int] = encode_pairs(run, [first], [second], run.max_length)[0].tolist()
            return ids

        longest = max(map(len, run.tokenizer([text for _, _, text in entries])["input_ids"]))
        pairs = DrawRelations(entries, encode, min(run.max_length, 2 * longest))
        counts = dict(zip(RELATIONS, pairs.counts, strict=True))
        if sum(count > 0 for count in counts.values()) < 2:
            only = ", ".join(name for name, count in counts.items() if count) or "none"
            raise UserError(
                f"The {len(entries):,} entries of the taxonomy have pairs of one relation only ({only}); check the "
                f"codes, and that their first {self.level} characters or parts name groups (level, separator)."
            )
        shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        run.say(f"Taxonomy: {len(entries):,} entries with pairs: {shown}{dropped}.")
        width = run.model.config.get_text_config().hidden_size
        heads = run.seeded(lambda: ClassificationHeads(width, [len(RELATIONS)]))
        self.attach_heads(run, tasks=heads)
        self._term = DrawnClassification(pairs, heads, self.weight, name="relations")

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the loss of the relations."""
        assert self._term is not None, "prepare first"
        return [LanguageModelling(), self._term]

    def _group(self, code: str) -> str:
        """Return the part of a code that names its group."""
        if not self.separator:
            return code[: self.level]
        return self.separator.join(code.split(self.separator)[: self.level])
