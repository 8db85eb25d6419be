"""The options of each verb, declared once; importing them loads neither torch nor transformers."""

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
from acclimate.options.inspection import AdviseOptions, AnnotateOptions, DemoOptions
from acclimate.options.tasks import DistillOptions, FinetuneOptions, SupervisedOptions
from acclimate.options.training import AdaptOptions, PretrainOptions, TrainingOptions

__all__ = [
    "AdaptOptions",
    "AdviseOptions",
    "AnnotateOptions",
    "DemoOptions",
    "DistillOptions",
    "FinetuneOptions",
    "Option",
    "OptionField",
    "PretrainOptions",
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
