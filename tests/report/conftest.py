"""Results of a study of two domains, as computed and with everything that a report can show."""

from __future__ import annotations

import pytest

from acclimate.report import render
from acclimate.results.study import StudyResults
from acclimate.study.compare import compare
from tests.report.full import everything
from tests.study.fakes import World, files, study


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> StudyResults:
    folder = tmp_path_factory.mktemp("report")
    data = files(folder / "data")
    domains = [
        {"name": "cs", "corpus": str(data / "cs.txt"), "tasks": [str(data / "intent")]},
        {"name": "food", "corpus": str(data / "food.txt"), "tasks": [str(data / "aspect")]},
    ]
    world = World(items=300, gain=0.25)
    config = study(data, domains=domains, seeds=5, adapt_seeds=None)  # three adaptations
    found = compare(config, folder / "out", progress=False, backend=world.backend())
    return StudyResults.from_dict(found)


@pytest.fixture(scope="session")
def full(results) -> StudyResults:
    return everything(results)


@pytest.fixture(scope="session")
def full_page(full) -> str:
    return render(full)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a function that runs a small study with changes to its configuration; None removes a key.

    Its report has no figures.
    """

    def run(**changes) -> StudyResults:
        values = study(files(tmp_path / "data"), **changes)
        values = {key: value for key, value in values.items() if value is not None}
        with monkeypatch.context() as patch:
            patch.setattr("acclimate.report.page.all_figures", lambda results: [])
            found = compare(values, tmp_path / "out", progress=False, backend=World().backend())
        return StudyResults.from_dict(found)

    return run
