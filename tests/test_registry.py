"""Entries of a registry have names of their own."""

import pytest

from acclimate.base.registry import Registry


def test_two_entries_cannot_share_a_name():
    registry = Registry("acclimate.methods", "method", "methods")
    registry.register("new")(type("First", (), {}))
    with pytest.raises(ValueError, match="two methods have the name 'new'"):
        registry.register("new")(type("Second", (), {}))
