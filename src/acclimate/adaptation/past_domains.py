"""What a model carries from the domains it was adapted to before, as a feature of a run."""

from __future__ import annotations

from pathlib import Path

from acclimate.adaptation.carried import Carried
from acclimate.adaptation.run import Feature, Run


class PastDomains(Feature):
    """The state next to the model; the run adds its own domain, and writes it next to its result."""

    def __init__(self, run: Run) -> None:
        """Read the state without its tensors."""
        run.carried = Carried.read(run.options.model)

    def prepare(self, run: Run) -> None:
        """Read the tensors, which must belong to the model."""
        run.carried.attach(run.loaded.model)

    def close(self, run: Run) -> None:
        """Add the domain."""
        run.carried.close(run.options, run.text, run.method.name)

    def finish(self, run: Run, folder: Path) -> None:
        """Write the state; the last stage of a method with stages has written its own."""
        if not run.method.stages():
            run.carried.write(folder)
