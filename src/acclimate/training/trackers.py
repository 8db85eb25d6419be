"""Trackers of experiments, such as TensorBoard: those that the ``Trainer`` of transformers knows, by their names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from acclimate.errors import UserError, unknown

TENSORBOARD = "TENSORBOARD_LOGGING_DIR"
PACKAGES = {
    "azure_ml": "azureml-core",
    "comet_ml": "comet-ml",
    "dagshub": "dagshub mlflow",
    "flyte": "flytekit",
    "kubeflow": "kubeflow",
}
"""What to install for a tracker, where its package is called otherwise."""


def check_trackers(names: str | Sequence[str] | None) -> list[str]:
    """Return the trackers that were asked for, each once.

    Args:
        names: Names with commas between, or a list of them; ``"all"`` for all that are installed; ``"none"`` or None
            for none.

    Raises:
        UserError: If a name is not known, or the package of a tracker is not installed.
    """
    given = [names] if isinstance(names, str) else list(names or ())
    asked = [part.strip() for name in given for part in name.split(",") if part.strip()]
    if not asked or asked == ["none"]:
        return []
    from transformers.integrations import integration_utils as integrations

    known = [*integrations.INTEGRATION_TO_CALLBACK]
    there = set(integrations.get_available_reporting_integrations())
    if find_spec("flytekit"):  # the list of transformers forgets it
        there.add("flyte")
    if asked == ["all"]:
        return sorted(there)
    for name in asked:
        if name not in known:
            raise unknown("tracker", name, [*known, "all", "none"])
        if name not in there:
            package = PACKAGES.get(name, name)
            raise UserError(f"The tracker '{name}' is not installed: pip install {package}, or leave report-to out.")
    return list(dict.fromkeys(asked))


@contextmanager
def tracked(names: Sequence[str], out: Path | None) -> Iterator[None]:
    """Keep what TensorBoard writes: beside ``out``, or in ``runs``, unless the user says where.

    The folder that a trainer works in is gone at the end, and with it what trackers write there.
    """
    ours = "tensorboard" in names and TENSORBOARD not in os.environ
    if ours:
        os.environ[TENSORBOARD] = str(Path("runs") if out is None else out.parent / f"{out.name}.tensorboard")
    try:
        yield
    finally:
        if ours:
            os.environ.pop(TENSORBOARD, None)
