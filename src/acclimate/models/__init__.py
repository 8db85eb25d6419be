"""The only room that knows what a Hugging Face model looks like inside."""

from acclimate.models.attention import HeadLayer, Projection, attach, head_rows
from acclimate.models.checkpoints import save_model
from acclimate.models.encoding import encode, longest_text
from acclimate.models.extensions import adapter_size, add_adapters, keep_original
from acclimate.models.gates import PARTS, Part, UnitGroup, gate_units
from acclimate.models.loading import LanguageModel, head_parameters, language_head, load_language_model, load_tokenizer

__all__ = [
    "PARTS",
    "HeadLayer",
    "LanguageModel",
    "Part",
    "Projection",
    "UnitGroup",
    "adapter_size",
    "add_adapters",
    "attach",
    "encode",
    "gate_units",
    "head_parameters",
    "head_rows",
    "keep_original",
    "language_head",
    "load_language_model",
    "load_tokenizer",
    "longest_text",
    "save_model",
]
