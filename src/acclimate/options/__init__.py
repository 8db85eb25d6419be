"""The options of each verb, declared once; importing them loads neither torch nor transformers.

Those of ``advise``, ``compare``, ``demo`` and ``inspect`` are in :mod:`acclimate.options.inspection`.
"""

from acclimate.options.declaration import (
    Option,
    OptionField,
    Section,
    build,
    defaults,
    explain,
    option_fields,
    options,
    recorded,
    recorded_names,
    section,
    values,
    verb,
)
from acclimate.options.embeddings import GenerateQueriesOptions
from acclimate.options.merging import MergeOptions
from acclimate.options.tasks import AnnotateOptions, DistillOptions, FinetuneOptions, ProbeOptions, SupervisedOptions
from acclimate.options.training import (
    AdaptOptions,
    PretrainOptions,
    TrainingOptions,
)

__all__ = [
    "AdaptOptions",
    "AnnotateOptions",
    "DistillOptions",
    "FinetuneOptions",
    "GenerateQueriesOptions",
    "MergeOptions",
    "Option",
    "OptionField",
    "PretrainOptions",
    "ProbeOptions",
    "Section",
    "SupervisedOptions",
    "TrainingOptions",
    "build",
    "defaults",
    "explain",
    "option_fields",
    "options",
    "recorded",
    "recorded_names",
    "section",
    "values",
    "verb",
]
