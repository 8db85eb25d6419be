"""Every field of a job and every option, its default included, is part of the key of the job."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from acclimate.base.options import MISSING, option_fields
from acclimate.study.config import JOB_KINDS
from acclimate.study.graph import plan
from acclimate.study.inputs import read_options
from acclimate.study.job import Job, kinds
from acclimate.study.jobs.distill import COMMON_OPTIONS, TEACHER_OPTIONS
from tests.study.fakes import World, distilling, of_kind, read

WITHOUT_EFFECT = {"compile", "gradient_checkpointing", "save_every", "loader_workers", "overwrite", "report_to"}
WITHOUT_EFFECT |= {"preset"}  # its values count
WITHOUT_EFFECT |= {"clean", "mask_personal"}  # the texts are others
SET_BY_STUDY = {
    "adapt": {"seed"},
    "floor": {"labels_per_class", "draws", "max_length"},
    "probe": {"draws"},
    "teacher": {*TEACHER_OPTIONS, *COMMON_OPTIONS},  # from the options of distill
}
OTHER_DEFAULTS = {
    "masking": "span mask=0.7",
    "adapter": "lora",
    "rules": ("l2-sp strength=1",),
    "objective": "kl",
    "labels_per_class": (2,),
}
"""Defaults of options whose values are read during planning."""


def other_default(name, value):
    """Return another default of an option."""
    if name in OTHER_DEFAULTS:
        return OTHER_DEFAULTS[name]
    if isinstance(value, bool) or value is None:
        return 7 if value is None else not value
    if isinstance(value, int):
        return value + 1
    return (value / 2 or 0.5) if isinstance(value, float) else f"not {value}"


@pytest.fixture
def inputs(folder):
    """A study without settings, with jobs of every kind that has options."""
    merges = [{"of": "mlm", "method": {"interpolation": 0.5}}]
    return read(distilling(folder, adapt={}, finetune={}, seeds=1, probe={}, merges=merges), World(headless=True))


@pytest.mark.parametrize("kind", [kind.name for kind in kinds() if kind.options_type])
def test_another_default_of_an_option_gives_other_keys(inputs, kind, monkeypatch):
    options = option_fields(JOB_KINDS.lookup(kind).options_type)
    asked = [name for name, field in options.items() if field.option.study and field.default is not MISSING]
    names = [name for name in asked if name not in WITHOUT_EFFECT | SET_BY_STUDY.get(kind, set())]

    def keys():
        graph = plan(replace(inputs, options=read_options()))
        return {job.key for job in of_kind(graph, kind) if not job.is_shared_base and job.place.method != "kl"}

    before, same = keys(), []
    assert before
    for name in names:
        with monkeypatch.context() as changed:
            changed.setitem(options, name, replace(options[name], default=other_default(name, options[name].default)))
            same += [name] * bool(keys() & before)
    assert not same


def test_every_field_of_a_job_is_in_its_identity(inputs):
    assert {kind.__name__ for kind in kinds() if "identity" in vars(kind)} <= {"BenchmarkJob"}  # adds a file's content
    for job in plan(inputs).jobs.values():
        assert job.identity.keys() == {entry.name for entry in fields(job) if entry.compare}
        for name in job.identity:
            assert type(job).key.func(_with(job, name)) != job.key


def _with(job: Job, name: str):
    """Return a job with another identity of a field."""
    other = replace(job)
    other.__dict__["identity"] = {**job.identity, name: "another"}
    return other
