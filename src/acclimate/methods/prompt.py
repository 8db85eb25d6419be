"""MLM with a soft prompt: only learned vectors behind each text learn (Lester et al., EMNLP 2021)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from acclimate.errors import check_positive
from acclimate.methods import Method, register
from acclimate.modules import virtual_ids
from acclimate.training.method import AdaptContext
from acclimate.updates import FreezeOtherRows


@register(
    "mlm-prompt", paper="Lester et al., EMNLP 2021", summary="MLM that trains a soft prompt behind each text only"
)
@dataclass
class MLMPrompt(Method):
    """Minimise the masked-LM loss over the vectors of a prompt, the model frozen; in the end task both learn.

    The prompt stands at the end, as in the DGA paper; ContinualLM has it in front, and the code of DGA sends it
    through the embedding layer twice. Here its vectors are entries of the vocabulary that the tokenizer appends, so
    that the result is an ordinary model folder.

    Attributes:
        length: Vectors of the prompt.
        start: Where they start: at ``"vocabulary"`` vectors drawn at random, or ``"uniform"`` in -0.5 to 0.5 (code).
    """

    learning_rate: ClassVar[float] = 0.3

    length: int = 100
    start: Literal["vocabulary", "uniform"] = "vocabulary"

    def __post_init__(self) -> None:
        """Check the length, and start without a rule: :meth:`prepare` makes it."""
        check_positive(length=self.length)
        self._rule: FreezeOtherRows | None = None

    @property
    def virtual_tokens(self) -> int:
        """The prompt."""
        return self.length

    @property
    def virtual_start(self) -> Literal["vocabulary", "uniform"]:
        """See ``start``."""
        return self.start

    def prepare(self, run: AdaptContext) -> None:
        """Freeze everything but the rows of the prompt in the embedding table."""
        run.model.requires_grad_(False)
        table = run.model.get_input_embeddings().weight
        table.requires_grad_(True)
        self._rule = FreezeOtherRows(table, virtual_ids(run.tokenizer))  # type: ignore[arg-type]

    def update_rule(self) -> FreezeOtherRows | None:
        """Return the rule that keeps the rest of the table."""
        return self._rule
