"""MLM with prompts that a hypernetwork makes from each text (after Jiang et al., Findings of EMNLP 2023)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    Prompts,
    UserError,
    add_prompts,
    check_not_negative,
    check_positive,
    prompts_of,
    register_method,
    virtual_ids,
)
from acclimate.papers.hyper_prompt.objective import RandomPrompt, StateComparison, squared_cosine, squared_distance


@register_method(
    "hyper-prompt",
    paper="Jiang et al., Findings of EMNLP 2023",
    summary="MLM with a prompt that a small network makes from each text; without it, states stay the base model's",
)
@dataclass
class HyperPrompt(Method):
    """L = L_MLM + agreement mean ||h_r - h_0||^2 / width + disagreement mean cos(h_p, h_0)^2.

    The prompt of a text x is P(x) = sum_m a_m(x) V_m: a network computes the shares a(x) of learned components V_m
    from the mean word embedding of the text. All weights train. h_p are the last states of the text with its own
    prompt, h_r with the embeddings of random words as prompt, and h_0 those of the model before this adaptation,
    without a prompt; the means are over the tokens of the text. So a prompt that belongs to no domain that was
    learned leaves the model as it was, and the prompt of the domain changes it.

    A model that this method has adapted keeps its network, which the next domain trains further. No domain needs a
    name: in an end task, each text gets the prompt that the network makes from it.

    Reconstructed from the abstract, since neither the equations nor code were at hand: what the network reads, how
    it mixes components, what a random prompt is, and the form and the weights of both terms are choices.

    Attributes:
        length: Number of prompt vectors.
        components: Number of prompts that are mixed.
        hidden: Width of the hidden layer of the network.
        agreement: Weight of the distance from the model before, with random prompts.
        disagreement: Weight of the squared cosine with the model before, with the prompts of the texts.
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 3.6
    loads_without_acclimate: ClassVar[bool] = False
    without_adapter: ClassVar[str] = "it trains a network in the embedding layer"
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "puts its vectors after the text, where a causal model cannot read them"

    length: int = 20
    components: int = 16
    hidden: int = 64
    agreement: float = 1.0
    disagreement: float = 0.1

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(length=self.length, components=self.components, hidden=self.hidden)
        check_not_negative(agreement=self.agreement, disagreement=self.disagreement)
        self._terms: list[Objective | BatchObjective] = []  # set by `prepare`

    @property
    def virtual_tokens(self) -> int:
        """Number of prompt vectors."""
        return self.length

    def has_virtual_tokens(self, model: PreTrainedModel) -> bool:
        """Return whether an earlier adaptation left its network."""
        return prompts_of(model.config) is not None

    def check(self, run: AdaptContext) -> None:
        """Check that a network of an earlier adaptation has the size of this one."""
        before, wanted = prompts_of(run.model.config), (self.length, self.components, self.hidden)
        if before and (before.length, before.components, before.hidden) != wanted:
            raise UserError(
                f"The model has a network for prompts already: give length={before.length} "
                f"components={before.components} hidden={before.hidden}, or start from a model without."
            )
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Add the network, unless there is one."""
        prompt, model = tuple(virtual_ids(run.tokenizer)), run.model
        if prompts_of(model.config) is None:
            unread = {run.tokenizer.pad_token_id, run.tokenizer.mask_token_id} - {None}
            what = Prompts(prompt[0], self.length, self.components, self.hidden, tuple(sorted(unread)))
            add_prompts(model, what, run.seed)
        table: Any = model.get_input_embeddings()
        drawn = RandomPrompt(prompt, table.num_embeddings)
        terms = (
            StateComparison("agreement", squared_distance, drawn, prompt, self.agreement),
            StateComparison("disagreement", squared_cosine, "original", prompt, self.disagreement),
        )
        self._terms = [term for term in terms if term.weight]

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss, and the terms whose weight is not 0."""
        return [LanguageModelling(), *self._terms]
