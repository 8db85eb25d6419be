"""What a method is, and the list of all there are.

A method is a recipe of parts: objectives over views, perhaps an update rule, perhaps a preparation. Every module in
``acclimate.methods`` is imported when the list is first read, and so is every entry point of the group
``acclimate.methods`` in other packages: one file with ``@register`` is all that a new method needs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from acclimate.files import found_file, hash_file
from acclimate.masking import Masking
from acclimate.objectives import BatchObjective, MaskedLM, Objective
from acclimate.parameters import build
from acclimate.registry import Registry, own_code
from acclimate.training.run import Run
from acclimate.updates import UpdateRule


@dataclasses.dataclass(frozen=True)
class Stage:
    """One of several adaptations that make up a method.

    Attributes:
        method: What it does.
        reads: The text of the domain or that of the task.
        options: Options of ``adapt`` that differ from those of the run.
    """

    method: Method
    reads: Literal["domain", "task"]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Method:
    """Base of all methods; by itself plain masked language modelling.

    Subclasses are dataclasses: their fields are the parameters, with the paper's values as defaults.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    trains: ClassVar[bool] = True
    """False for a method that leaves the model as it is."""
    learning_rate: ClassVar[float] = 1e-4
    """What adaptation uses unless it is told otherwise."""
    loads_without_us: ClassVar[bool] = True
    """False for a method whose result ``transformers`` alone cannot load."""
    reads: ClassVar[Literal["domain", "task"]] = "domain"
    """Whose text it adapts to in a study that says nothing else: see ``on`` in the study file."""
    starts_from: ClassVar[str | None] = None
    """What the card says a model was made from; None for the path of the model that was given."""
    files: ClassVar[tuple[str, ...]] = ()
    """Parameters that may be paths of files; in a study file they start at its folder."""
    own_rate: ClassVar[bool] = False
    """True for a method that masks as much as it finds: a rate would do nothing."""
    needs_task: ClassVar[bool] = False
    """True for a method that looks at ``run.task``: it cannot run without one."""

    @property
    def virtual_tokens(self) -> int:
        """How many learned vectors every text is read with; see :mod:`acclimate.modules.virtual_tokens`."""
        return 0

    @property
    def virtual_start(self) -> Literal["vocabulary", "uniform"]:
        """Where those start."""
        return "vocabulary"

    def prepare(self, run: Run) -> None:
        """Measure or build what the method needs before the first step."""

    def masking(self, rate: float) -> Masking | None:
        """Return which tokens are hidden, if that is part of the method; called after :meth:`prepare`.

        Args:
            rate: Share of tokens that the user wants chosen.

        Returns:
            None for what the user names, which is random masking by default.
        """
        return None

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the loss terms; called after :meth:`prepare`."""
        return [MaskedLM()]

    def update_rule(self) -> UpdateRule | None:
        """Return what happens around each optimiser step; called after :meth:`prepare`."""
        return None

    def finish(self, run: Run) -> None:
        """Take away what was only there for the training, before the model is written."""

    def stages(self) -> list[Stage]:
        """Return adaptations that are made one after the other instead of this one; mostly there are none."""
        return []

    def settings(self) -> dict[str, Any]:
        """Return the parameters and their values."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def file_contents(self) -> dict[str, str]:
        """Return a hash of every parameter that is a file, and of code of your own: files change under their names."""
        given = {name: getattr(self, name) for name in self.files}
        found = {name: found_file(str(value)) for name, value in given.items() if value}
        contents = {name: hash_file(path) for name, path in found.items() if path is not None}
        return contents | {f"code of {module}": code for module, code in own_code(type(self)).items()}


REGISTRY: Registry[Method] = Registry("acclimate.methods", "method", "methods")
register, names, lookup = REGISTRY.register, REGISTRY.names, REGISTRY.lookup


def get(name: str, **settings: Any) -> Method:
    """Make a method with its parameters; strings are converted to the type of the parameter.

    Raises:
        UserError: If the method or a parameter is unknown, or a value does not fit.
    """
    return build(lookup(name), "method", name, settings)
