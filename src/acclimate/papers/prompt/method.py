"""MLM with a soft prompt: learned vectors after each text, with a frozen model (Lester et al., EMNLP 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from acclimate.api import (
    AdaptContext,
    FreezeOtherRows,
    Method,
    Published,
    check_positive,
    register_method,
    virtual_ids,
)


@register_method(
    "prompt",
    paper="Lester et al., EMNLP 2021",
    summary="masked language modelling that trains only a soft prompt appended to each text",
)
@dataclass
class MLMPrompt(Method):
    """Masked language modelling that trains the vectors of a soft prompt; fine-tuning on a task trains all weights.

    The prompt follows the text, as in the DGA paper. (ContinualLM prepends it, and the code of DGA passes it through
    the embedding layer twice.) Its vectors are vocabulary entries that the tokenizer appends to every text, so the
    result is an ordinary model folder.

    Attributes:
        length: Number of prompt vectors.
        start: Initialization: ``"vocabulary"`` copies embeddings of random tokens, ``"uniform"`` (released code) draws
            from -0.5 to 0.5.
    """

    purpose: ClassVar[str] = "Forget less"
    learning_rate: ClassVar[float] = 0.3
    without_adapter: ClassVar[str] = "it trains rows of the embedding table"
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "puts its vectors after the text, where a causal model cannot read them"

    length: int = 100
    start: Annotated[
        Literal["vocabulary", "uniform"],
        Published(
            {"released-code": "uniform"},
            "What the paper found best among starts that need no labels.",
        ),
    ] = "vocabulary"

    def __post_init__(self) -> None:
        """Validate the length."""
        check_positive(length=self.length)
        self._rule: FreezeOtherRows | None = None  # set by `prepare`

    @property
    def virtual_tokens(self) -> int:
        """Number of prompt vectors."""
        return self.length

    @property
    def virtual_start(self) -> Literal["vocabulary", "uniform"]:
        """Initialization of the prompt vectors."""
        return self.start

    def prepare(self, run: AdaptContext) -> None:
        """Freeze everything except the prompt's rows of the embedding table."""
        run.model.requires_grad_(False)
        table = run.model.get_input_embeddings().weight
        table.requires_grad_(True)
        self._rule = FreezeOtherRows(table, virtual_ids(run.tokenizer))  # type: ignore[arg-type]

    def update_rule(self) -> FreezeOtherRows | None:
        """Return the rule that freezes the other rows of the embedding table."""
        return self._rule
