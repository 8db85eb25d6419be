"""The only room that knows what a Hugging Face model looks like inside."""

from acclimate.backbone.adapters import adapter_size, add_adapters
from acclimate.backbone.checkpoints import save_model
from acclimate.backbone.encoding import encode, longest_text
from acclimate.backbone.ensembles import keep_original
from acclimate.backbone.heads import HeadLayer, Projection, attach, head_rows
from acclimate.backbone.language_head import head_parameters, language_head
from acclimate.backbone.loading import LoadedModel, load_masked_lm, load_tokenizer
from acclimate.backbone.units import PARTS, Gated, Part, gate_units

__all__ = [
    "PARTS",
    "Gated",
    "HeadLayer",
    "LoadedModel",
    "Part",
    "Projection",
    "adapter_size",
    "add_adapters",
    "attach",
    "encode",
    "gate_units",
    "head_parameters",
    "head_rows",
    "keep_original",
    "language_head",
    "load_masked_lm",
    "load_tokenizer",
    "longest_text",
    "save_model",
]
