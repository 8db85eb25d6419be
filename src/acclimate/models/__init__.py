"""Internals of Hugging Face models: kinds, families, loading, attention, gates, batching and saving."""

from acclimate.model_kinds import (
    CAUSAL,
    KINDS,
    MASKED,
    ModelKind,
    get_kind,
    kind_of,
    kind_of_checkpoint,
    register_kind,
)
from acclimate.models.attention import HeadLayer, Projection, head_rows
from acclimate.models.encoding import encode
from acclimate.models.extensions import (
    DomainAdapters,
    add_adapters,
    add_domain_adapters,
    domain_adapters,
    has_adapters,
    keep_original,
)
from acclimate.models.families import (
    Family,
    describe_attention,
    describe_computation,
    family_of,
    gradient_may_change,
    language_head,
    longest_text,
    reads_positions,
    step_context,
    training_callbacks,
)
from acclimate.models.gates import PARTS, Part, UnitGroup, gate_units
from acclimate.models.loading import LanguageModel, dropout_rates, head_parameters, load_language_model, load_tokenizer
from acclimate.models.probe import attach
from acclimate.models.saving import save_model

__all__ = [
    "CAUSAL",
    "KINDS",
    "MASKED",
    "PARTS",
    "DomainAdapters",
    "Family",
    "HeadLayer",
    "LanguageModel",
    "ModelKind",
    "Part",
    "Projection",
    "UnitGroup",
    "add_adapters",
    "add_domain_adapters",
    "attach",
    "describe_attention",
    "describe_computation",
    "domain_adapters",
    "dropout_rates",
    "encode",
    "family_of",
    "gate_units",
    "get_kind",
    "gradient_may_change",
    "has_adapters",
    "head_parameters",
    "head_rows",
    "keep_original",
    "kind_of",
    "kind_of_checkpoint",
    "language_head",
    "load_language_model",
    "load_tokenizer",
    "longest_text",
    "reads_positions",
    "register_kind",
    "save_model",
    "step_context",
    "training_callbacks",
]
