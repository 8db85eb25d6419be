"""The identity of a fine-tuning or distillation has every option, defaults included."""

from __future__ import annotations

from typing import Annotated

from acclimate.adaptation.step_options import FreezeForTask
from acclimate.base.bounds import NonNegative
from acclimate.base.options import Option, options, recorded_names
from acclimate.tasks.distillation.distill import Distillation
from acclimate.tasks.finetune import Finetuning
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.options import DistillOptions, FinetuneOptions
from acclimate.tasks.training_cache import IN_ROWS
from tests.cases import each
from tests.tasks.test_classification import keyword_task


@options
class FrozenByDefault(FinetuneOptions):
    """Options of ``finetune`` with another default."""

    freeze: FreezeForTask = ("embeddings",)


@options
class TunedByDefault(FinetuneOptions):
    """Options of ``finetune`` with another default."""

    tune: Annotated[bool, Option("Choose the learning rate.")] = True


@options
class NarrowByDefault(DistillOptions):
    """Options of ``distill`` with another default."""

    margin: Annotated[NonNegative, Option("Margin.")] = 0.5


def run_of(cls, model, **given):
    models = {"teacher": model, "student": model} if issubclass(cls, DistillOptions) else {"model": model}
    made = cls(**models, task=keyword_task(), precision="fp32", **given)
    return (Distillation if issubclass(cls, DistillOptions) else Finetuning)(made)


@each("cls", [FinetuneOptions, DistillOptions])
def test_the_identity_has_every_option_even_those_that_are_not_given(cls, tiny_bert):
    read = {"model", "teacher", "student", "task"}  # by their content
    assert set(recorded_names(cls)) - read <= run_of(cls, tiny_bert).identity()["options"].keys()


@each(
    ("cls", "changed"),
    [(FinetuneOptions, FrozenByDefault), (FinetuneOptions, TunedByDefault), (DistillOptions, NarrowByDefault)],
)
def test_another_default_is_another_identity(cls, changed, tiny_bert):
    before, after = (run_of(kind, tiny_bert).identity() for kind in (cls, changed))
    assert before != after
    assert before == run_of(cls, tiny_bert).identity()


def test_the_first_stage_is_identified_by_its_task_and_its_options(tiny_bert):
    alone, first = (run_of(FinetuneOptions, tiny_bert, first=task) for task in (None, keyword_task(train=16)))
    longer = run_of(FinetuneOptions, tiny_bert, first=keyword_task(train=16), first_epochs=2)
    found = [run.identity() for run in (alone, first, longer)]
    assert found[0] != found[1] != found[2]


def test_a_cached_training_is_identified_by_every_option_that_its_rows_do_not_have():
    """A new option is in the key unless somebody says here, with a reason, that the rows or the precision have it."""
    assert set(IN_ROWS) == {"max_length", "few_shot", "negative", "select", "metric", "precision"}
    assert set(IN_ROWS) < set(recorded_names(ResolvedOptions))
