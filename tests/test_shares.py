"""Work that processes share."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from acclimate.base import shares
from acclimate.base.errors import UserError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="one process elsewhere")


class Dying:
    """A process whose end is seen after some looks."""

    sentinel = 0

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def exitcode(self) -> int | None:
        self.looks -= 1
        return None if self.looks >= 0 else -9

    def start(self) -> None:
        """Do nothing, as the next two."""

    join = terminate = start


@pytest.mark.parametrize("looks", range(8))
def test_a_process_that_dies_at_any_moment_is_noticed(looks, monkeypatch):
    fake = SimpleNamespace(Process=lambda **_: Dying(looks))
    monkeypatch.setattr(shares.multiprocessing, "get_context", lambda _: fake)
    monkeypatch.setattr(shares, "wait", lambda *_: None)
    with pytest.raises(UserError, match="-9"):
        shares.share_work(lambda first, stop: None, 8, 2, 2, lambda done: None)
