"""Commands of the cases, and checks of the folder after a command."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.hostile.makers import STUDY, study
from tests.tiny import TEXTS

SHORT = "--batch-size 4 --max-length 24 --precision fp32 --quiet"
ADAPT = f"adapt --model bert --steps 1 {SHORT} --out out"
TEXT = f"{ADAPT} --corpus text.txt"
TRAIN = f"adapt --model bert --corpus text.txt {SHORT} --out out"
BARE = f"adapt --model bert --corpus text.txt --steps 1 {SHORT}"
TUNE = f"finetune --model bert --task task --seeds 1 --epochs 1 {SHORT} --out out"
DRY = "compare study.yaml --out out --dry-run"
PRETRAIN = f"pretrain --corpus text.txt --steps 1 {SHORT} --out out"
DISTILL = f"distill --teacher bert --student bert --task task {SHORT} --out out"
ADVISE = "advise --model bert --corpus text.txt --general none.txt --quiet --out a.json"
AUTO = "auto --model bert --corpus text.txt --task task --out out --quiet"
ANNOTATE = "annotate --model bert --task task --out out --quiet"
IMPORTANCE = "inspect importance --model bert --corpus a=text.txt --corpus c=text.txt --out out --quiet"
EMBEDDINGS = "inspect embeddings --before bert --after bert --out out --quiet"
MASKS = "inspect masks --model bert --corpus text.txt --out out --quiet"
MERGE = "merge --method 'interpolation alpha=0.5' --model bert --base bert --out out --quiet"
BENCHMARKS = "inspect benchmarks --model llama"
INSTRUCTIONS = "inspect instructions --model llama --prompts prompts.jsonl --max-tokens 2 --out found.json"
DECODE = f"adapt --model llama --corpus text.txt --steps 1 {SHORT} --out out"
CAUSAL = f"{PRETRAIN} --objective causal --size tiny --vocab-size 300 --set hidden_size=32"
INIT = "init new.yaml --model bert --corpus text.txt"
LEAKAGE = "inspect leakage --quiet"
DONE = r"^Training loss in nats: [mc]lm \d+\.\d+, mean of step 1$"
TUNED = r"^F1 .* \(\d+ in test\)"


def made(folder: Path) -> None:
    """Check that ``out`` is a complete model with finite weights."""
    assert (folder / "out" / "config.json").is_file() and (folder / "out" / "acclimate.json").is_file()
    assert all(np.isfinite(value).all() for value in load_file(folder / "out" / "model.safetensors").values())


def not_run(folder: Path) -> None:
    """Check that the code that came with the model did not run."""
    assert not (folder / "ran").exists()


def readable_by_all(folder: Path) -> None:
    """Check that files follow the umask."""
    closed = [path.name for path in (folder / "out").rglob("*") if path.stat().st_mode & 0o44 != 0o44]
    assert closed == []


def holds(name: str, content: str) -> Any:
    """Return a check that a file has not been changed."""

    def check(folder: Path) -> None:
        assert (folder / name).read_text() == content

    return check


def few_files() -> None:
    """Leave one file descriptor."""
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    opened = []
    with suppress(OSError):
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    os.close(opened[-1])


def in_a_deleted_folder() -> None:
    """Change to a folder that does not exist any more."""
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")


def same_label(name: str, value: np.ndarray) -> tuple[str, np.ndarray]:
    """Return a weight with a name as ``torch.compile`` saves it."""
    return f"_orig_mod.{name}", value


def is_still_a_link(folder: Path) -> None:
    """Check that the model lies where the link points to."""
    assert (folder / "out").is_symlink() and (folder / "real" / "config.json").is_file()


def is_in_home(folder: Path) -> None:
    """Check that ``~`` was expanded."""
    assert (folder / "home" / "out" / "config.json").is_file() and not (folder / "~").exists()


def still_has_its_text(folder: Path) -> None:
    """Check that ``text.txt`` has not been replaced."""
    assert TEXTS[0] in (folder / "text.txt").read_text()


def hostile_names(folder: Path) -> None:
    """Write a study whose names and texts hold HTML."""
    domain = {**STUDY["domains"][0], "name": "</table><svg onload=alert(1)>"}
    notes = ["<img src=x onerror=alert(1)>"]
    study(title="<script>alert(1)</script>", notes=notes, domains=[domain], methods=["none"])(folder)


def is_escaped(folder: Path) -> None:
    """Check that the report holds none of the HTML of :func:`hostile_names`."""
    page = (folder / "out" / "report.html").read_text()
    assert not any(text in page for text in ("<script>alert", "<img src=x", "<svg onload"))
