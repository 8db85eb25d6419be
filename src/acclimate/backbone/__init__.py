"""The only room that knows what a Hugging Face model looks like inside."""

from acclimate.backbone.encoding import encode
from acclimate.backbone.heads import HeadLayer, Projection, attach, head_rows
from acclimate.backbone.language_head import head_parameters, language_head
from acclimate.backbone.loading import LoadedModel, load_masked_lm, load_tokenizer

__all__ = [
    "HeadLayer",
    "LoadedModel",
    "Projection",
    "attach",
    "encode",
    "head_parameters",
    "head_rows",
    "language_head",
    "load_masked_lm",
    "load_tokenizer",
]
