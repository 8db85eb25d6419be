"""Small Python packages with documentation."""

from __future__ import annotations

from pathlib import Path

from acclimate.labs.demo.docstrings import Document
from acclimate.labs.demo.task import TOPICS

PROSE = "Compute the smooth envelope of a long and noisy record by filtering it forwards and then backwards in time."


def write_package(root: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
    return root


def documented(name: str, text: str, *, kind: str = "def") -> str:
    head = f"class {name}:" if kind == "class" else f"def {name}():"
    return f'{head}\n    """{text}"""\n'


def library(per_topic: int = 8) -> list[Document]:
    """Return distinct documents of every topic, from the first module of each."""
    made = []
    for label, modules in TOPICS.items():
        package = modules[0].split(".")[0]
        for number in range(per_topic):
            words = " ".join(f"{label.split()[0]}{number}w{place}" for place in range(30))
            made.append(Document(package, modules[0], f"{label}.item{number}", f"Summary {label} {number}.\n{words}"))
    return made
