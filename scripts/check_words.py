"""Fail on words that the glossary asks to avoid: ``python scripts/check_words.py``.

The list is the last section of ``docs/dev/glossary.md``. All text files that git tracks are searched, file names and
identifiers included.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "dev" / "glossary.md"
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".j2", ".js", ".css", ".sh", ".cff", ""}
EXEMPT = {"docs/dev/glossary.md", "LICENSE"}


def banned_words() -> dict[re.Pattern[str], str]:
    """Read the section: what to avoid, and what to write in its place."""
    section = GLOSSARY.read_text(encoding="utf-8").partition("## Words to avoid")[2]
    rows = re.findall(r"^- `(.+?)`: (.+)$", section, flags=re.M)
    return {re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])", re.I): instead for pattern, instead in rows}


def violations(name: str, text: str, banned: dict[re.Pattern[str], str]) -> list[str]:
    """Return a line for each banned word in a file, its name included."""
    found = []
    for number, line in enumerate([name, *text.splitlines()]):
        plain = line.replace("_", " ")
        for pattern, instead in banned.items():
            if match := pattern.search(plain):
                found.append(f"{name}:{number}: '{match.group(0)}': write '{instead}'")
    return found


def main() -> int:
    """Check all tracked files; return the exit status."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    banned = banned_words()
    found: list[str] = []
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in TEXT and name not in EXEMPT and path.is_file():
            found += violations(name, path.read_text(encoding="utf-8"), banned)
    sys.stdout.write("\n".join(found or [f"No banned words ({len(banned)} patterns)."]) + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
