"""The passes of ``passes.cpp``, compiled for this processor where there is a compiler; without one torch does it all.

Nothing has to be installed or chosen: the compiler that is there is called once, for half a second, and what it made
stays in the cache. ``ACCLIMATE_COMPILE=0`` leaves it alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from acclimate.files import cache_folder

logger = logging.getLogger(__name__)

SWITCH, NO = "ACCLIMATE_COMPILE", ("0", "no", "off", "false")
SOURCE = Path(__file__).with_name("passes.cpp")
COMPILERS = ("c++", "g++", "clang++")
"""Those that are looked for; before them the one that ``$CXX`` names."""
OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
"""No option that lets the compiler change values (``-ffast-math``): that a NaN stays one is promised."""
SECONDS = 120
"""After which a compiler is given up; it takes half a second."""
MAPS, PROCESSOR = Path("/proc/self/maps"), Path("/proc/cpuinfo")


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled passes; None if they are not wanted, or cannot be had here."""
    if os.environ.get(SWITCH, "").lower() in NO:
        return None
    threads = _threads_of_torch()
    if threads is None:
        return None
    try:
        file = _place(threads)
        if not _is_ours(file):
            names = (os.environ.get("CXX", ""), *COMPILERS)
            compiler = next(filter(None, map(shutil.which, names)), None)
            if compiler is None:
                logger.info("no compiler (%s): dropout, attention and losses are torch's own", ", ".join(COMPILERS))
                return None
            _compile(compiler, threads, file)
        return _load(file)
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("dropout, attention and losses are torch's own: %s", error)
        return None


def _is_ours(file: Path) -> bool:
    """Say whether the file is there and this user made it: code of others is not run, wherever the cache is."""
    try:
        return file.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _load(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError:
        file.unlink(missing_ok=True)  # so that the next process compiles it anew
        raise


def torch_library() -> ctypes.CDLL:
    """Return the library that torch works with on a CPU; an OSError says that this build has another."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _threads_of_torch() -> Path | None:
    """Return the file of the OpenMP library that torch uses; None if it cannot be told.

    With another one there would be two teams of threads, each waiting for work on the cores of the other; and other
    packages bring theirs.
    """
    try:
        used = torch_library().GOMP_parallel
        place = ctypes.cast(used, ctypes.c_void_p).value or 0
        lines = MAPS.read_text(encoding="utf-8").splitlines()
    except (OSError, AttributeError):  # another system, or another kind of build
        return None
    for line in lines:
        span, *_, file = line.split(maxsplit=5)
        first, end = (int(number, 16) for number in span.split("-"))
        if first <= place < end:
            return Path(file)
    return None


def _place(threads: Path) -> Path:
    """Return where the compiled passes are kept, by all that they depend on."""
    digest = hashlib.sha256(SOURCE.read_bytes())
    for part in (*OPTIONS, str(threads), _processor()):
        digest.update(part.encode() + b"\0")
    return cache_folder() / "compiled" / f"{digest.hexdigest()[:24]}.so"


def _processor() -> str:
    """Describe what the processor can do: machines of several kinds may share the folder."""
    try:
        lines = PROCESSOR.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    says = {line for line in lines if line.startswith(("flags", "Features", "model", "cpu family", "CPU part"))}
    return "\n".join([platform.machine(), *sorted(says)])


def _compile(compiler: str, threads: Path, file: Path) -> None:
    """Compile into ``file``, which is whole or not there: several processes may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
        made = Path(folder) / file.name
        # The library of torch comes first, so that the compiler's own, which would be another, is not needed.
        libraries = ["-Wl,--as-needed", str(threads)]
        command = [compiler, *OPTIONS, "-shared", "-fPIC", str(SOURCE), *libraries, "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise OSError(f"{compiler} failed: {(done.stderr.strip() or 'without a word').splitlines()[0]}")
        os.replace(made, file)
