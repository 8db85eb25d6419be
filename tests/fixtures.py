"""Fixtures: tiny random models and tokenizers, made without a network."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

import hypothesis
import pytest
import torch
import transformers
from hypothesis.internal.conjecture import providers

import acclimate
from acclimate.base.errors import warn_once
from tests.accelerator import emulated
from tests.tiny import DECODERS, ENCODERS, save_tiny

PAPERS = Path(acclimate.__file__).with_name("papers")
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item):
    """Skip a test that needs the folder of a paper that is not there."""
    for name in (name for mark in item.iter_markers("needs") for name in mark.args):
        if not (PAPERS / name).is_dir():
            pytest.skip(f"there is no folder papers/{name}")


@pytest.fixture(autouse=True, scope="session")
def _accelerator():
    """Emulate an accelerator in all tests if ``ACCLIMATE_EMULATE=1``; see tests/accelerator.py."""
    with emulated() if os.environ.get("ACCLIMATE_EMULATE") == "1" else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session", params=sorted(ENCODERS))
def any_encoder(request, tmp_path_factory) -> Path:
    """The folder of a tiny random masked LM, for each supported architecture."""
    return save_tiny(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory) -> dict[str, Path]:
    """The folders of tiny random masked LMs of all supported architectures, by name."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, folder / kind) for kind in sorted(ENCODERS)}


@pytest.fixture(scope="session")
def decoders(tmp_path_factory) -> dict[str, Path]:
    """The folders of tiny random causal LMs, by name of the family."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, folder / kind) for kind in sorted(DECODERS)}


@pytest.fixture(scope="session")
def encoder_decoders(tmp_path_factory) -> dict[str, Path]:
    """The folders of two tiny random encoder-decoders, with sentinels and with a mask token."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, folder / kind) for kind in ("t5", "bart")}


@pytest.fixture(scope="session")
def tiny_llama(decoders) -> Path:
    """The folder of a tiny random Llama and a byte-level tokenizer; its queries are grouped."""
    return decoders["llama"]


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """The folder of a tiny random BERT with a masked-LM head and a tokenizer."""
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models; tests that use it are skipped if it does not exist."""
    if not SHARED.is_dir():
        pytest.skip("there is no shared folder")
    return SHARED


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def _few_steps():
    """Let fine-tuning with the defaults end after five passes; the tests of the recipe set their own minimum."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acclimate.tasks.recipe.STEPS", 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waits_for_the_disk():
    """Let ``fsync`` return at once, since no test outlives a power cut, and do not count the frozen objects.

    Studies ask whether any objects are excluded from garbage collection, and counting visits half a million.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


DRAWN = (
    "tests.report.",
    "tests.labs.demo.",
    "tests.labs.periods.test_gap",
)
"""Beginnings of the names of modules whose reports have real figures."""


@pytest.fixture(autouse=True, scope="module")
def _empty_figures(request):
    """Draw the figures of reports, but render them only in the tests of reports: that takes most of a small study."""
    if request.module.__name__.startswith(DRAWN):
        yield
        return
    from matplotlib.figure import Figure

    savefig = Figure.savefig

    def save_empty(self, file, *arguments, **options):
        if options.get("format") != "svg":
            return savefig(self, file, *arguments, **options)
        return file.write('<svg viewBox="0 0 432 288"></svg>')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save_empty)
        yield


@pytest.fixture(autouse=True)
def _warn_again():
    """Let each test see warnings that another has caused."""
    warn_once.cache_clear()


def pytest_collection_modifyitems(config, items):
    """Try a third of the examples of each property in the quick suite, the same ones in each run.

    ``-m "slow or hypothesis"`` tries all, and others each time.
    """
    if config.option.markexpr != "not slow":
        return
    # Constants of the modules that happen to be loaded, which differ between processes, would be tried, too.
    providers._get_local_constants = providers.Constants
    tests = {getattr(item, "function", None) for item in items}
    while tests := {test for test in tests if test is not None}:
        for test in tests:
            if found := vars(test).get("_hypothesis_internal_use_settings"):
                few = min(found.max_examples, max(5, found.max_examples // 3))
                test._hypothesis_internal_use_settings = hypothesis.settings(found, max_examples=few, derandomize=True)
        tests = {getattr(test, "__wrapped__", None) for test in tests if not hasattr(test, "hypothesis")}


def pytest_collection_finish():
    """Exclude the objects that the imports of all tests have made from garbage collection, which starts here.

    ``accelerate`` collects garbage after every training, and studies after every job. Visiting the objects of all
    imported modules takes several times as long as training a tiny model.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _freeze_garbage_collector():
    """Exclude the objects that earlier test modules have made, too."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    os.environ["ACCLIMATE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
