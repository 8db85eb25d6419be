"""Logit swap self-distillation."""

from __future__ import annotations

import pytest

from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.parts.objectives import LanguageModelling


def test_settings():
    assert [type(term) for term in get("lssd", alpha=0).objectives()] == [LanguageModelling], "no second model"
    with pytest.raises(UserError, match="alpha must be zero or more"):
        get("lssd", alpha=-1)
