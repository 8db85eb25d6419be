"""Fixtures come from :mod:`tests.fixtures`, in the processes that run tests.

With ``-n``, the process that only hands out tests to others must not wait for the imports of torch.
"""

from __future__ import annotations

import gc
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_configure(config):
    """Register the fixtures, and undo what ``&`` and ``nohup`` do to signals, which tests send."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    if config.getoption("dist", "no") == "no":  # also in the processes that pytest-xdist starts
        gc.disable()  # while all tests are imported; pytest_collection_finish enables it
        config.pluginmanager.import_plugin("tests.fixtures")
