"""TSDAE: texts are reconstructed from their sentence vectors (Wang et al., Findings of EMNLP 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    HeadLayer,
    Method,
    Objective,
    Published,
    UserError,
    is_sentence_encoder,
    load_pooling_head,
    pool_first_token,
    register_method,
    with_presets,
)
from acclimate.papers.tsdae.model import TiedDecoder
from acclimate.papers.tsdae.objective import SentenceReconstruction

DECODER_NAME = "acclimate_decoder"
"""Name of the decoder's submodule of the model during training, so that checkpoints include it."""


@register_method(
    "tsdae",
    paper="Wang et al., Findings of EMNLP 2021",
    summary="texts are reconstructed from the vectors of damaged texts; the result is a sentence encoder",
)
@with_presets
@dataclass
class TSDAE(Method):
    """L = mean over tokens t of -log p(x_t | x_<t, v), where v is the vector of the text without most of its words.

    The encoder reads the text with 60 % of its words deleted; pooling turns its hidden states into v. The decoder is
    the same network with the same weights, but its tokens attend to earlier tokens and, in an additional
    cross-attention per layer, to v alone. The cross-attention is discarded after the training. There is no masking.

    A sentence encoder keeps its pooling and further modules, and v is their result, though only the encoder is
    trained. Any other encoder becomes a sentence encoder: a folder that ``SentenceTransformer`` loads. Its masked-LM
    head is trained as the head of the decoder, and predicts masked tokens no longer.

    ``DenoisingAutoEncoderLoss`` of sentence-transformers has the same value and gradients (without dropout). It
    splits words with NLTK; here words are as in whole-word masking.

    Attributes:
        preset: ``"paper"`` for its pooling, for models that are no sentence encoders. None for the defaults.
        deletion: Probability that a word is deleted (paper: 0.6).
        pooling: ``"own"`` for the pooling of the sentence encoder, or the mean over tokens if the model is not one;
            ``"mean"``, or ``"cls"`` for the first token (paper), only for such other models.
    """

    purpose: ClassVar[str] = "Learn sentence embeddings"
    cost: ClassVar[float] = 2.8
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "reads texts in both directions and reconstructs them from left to right"
    learning_rate: ClassVar[float] = 3e-5
    paper_options: ClassVar[Mapping[str, Any]] = {"batch_size": 8, "steps": 100_000, "learning_rate": 3e-5}
    without_adapter: ClassVar[str] = "it trains a cross-attention that only the decoder has"

    preset: Literal["paper"] | None = None
    deletion: float = 0.6
    pooling: Annotated[
        Literal["own", "mean", "cls"],
        Published(
            {"paper": "cls"},
            "Keeps the pooling of a sentence encoder; the mean suits other models.",
        ),
    ] = "own"

    def __post_init__(self) -> None:
        """Validate the probability."""
        if not 0 <= self.deletion < 1:
            raise UserError(
                f"deletion is the probability that a word is deleted, 0 or more and below 1, not {self.deletion}."
            )
        self._term: SentenceReconstruction | None = None  # set by `prepare`

    @property
    def sentence_pooling(self) -> Literal["mean", "cls"]:
        """The pooling of a model that is no sentence encoder."""
        return "mean" if self.pooling == "own" else self.pooling

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the model can be its own decoder, and has no pooling but that of the method."""
        TiedDecoder.check(model, layers)
        source = model.name_or_path or ""
        if self.pooling != "own" and source and is_sentence_encoder(source):
            raise UserError(f"'{source}' is a sentence encoder with a pooling; remove the parameter 'pooling'.")

    def prepare(self, run: AdaptContext) -> None:
        """Add the cross-attention."""
        source = run.model.name_or_path or ""
        head = pool_first_token if self.pooling == "cls" else load_pooling_head(source, run.device)
        decoder = run.seeded(lambda: TiedDecoder(run.model, run.layers))
        run.model.add_module(DECODER_NAME, decoder)
        self._term = SentenceReconstruction(decoder.decode, head, self.deletion)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the reconstruction loss."""
        assert self._term is not None, "prepare first"
        return [self._term]

    def finish(self, run: AdaptContext) -> None:
        """Remove the cross-attention."""
        run.model.get_submodule(DECODER_NAME).remove()  # type: ignore[operator]
        delattr(run.model, DECODER_NAME)
