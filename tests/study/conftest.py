"""Fixtures for tests of studies."""

from __future__ import annotations

import pytest

from tests.study.fakes import files


@pytest.fixture
def folder(tmp_path):
    """Small corpora and tasks."""
    return files(tmp_path / "data")


@pytest.fixture
def no_report(monkeypatch):
    """Skip drawing figures, for tests that only look at jobs."""
    monkeypatch.setattr("acclimate.report.write_report", lambda results, path: path)
