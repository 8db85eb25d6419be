"""What tests of studies share."""

from __future__ import annotations

import pytest

from tests.study.fakes import files


@pytest.fixture
def folder(tmp_path):
    """Small corpora and tasks."""
    return files(tmp_path / "data")


@pytest.fixture
def no_report(monkeypatch):
    """Leave out the drawing of figures where only cells matter."""
    monkeypatch.setattr("acclimate.report.write_report", lambda results, path: path)
