"""Fail on words that the glossary advises against.

    python scripts/check_words.py                    # every text file that git tracks
    python scripts/check_words.py docs README.md     # only these files and folders
    python scripts/check_words.py --counts           # one line per package instead of one per match

The words are the last section of ``docs/dev/glossary.md``. File names and identifiers are checked as well.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "dev" / "glossary.md"
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".j2", ".html", ".js", ".css", ".sh", ".cff", ""}
EXEMPT = {"docs/dev/glossary.md", "LICENSE"}


def read_patterns() -> list[tuple[re.Pattern[str], str]]:
    """Return the patterns of the glossary and what to write instead."""
    section = GLOSSARY.read_text(encoding="utf-8").partition("## Words to avoid")[2]
    rows = re.findall(r"^- `(.+?)`: (.+)$", section, flags=re.M)
    # A phrase may continue on the next line, there perhaps after the sign of a comment.
    return [
        (re.compile(re.sub(r"(\[[^]]*\])| ", lambda match: match[1] or r"[\s#]+", pattern)), instead)
        for pattern, instead in rows
    ]


def find_words(name: str, text: str, patterns: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[int, str, str]]:
    """Yield line number, match and advice for each word to avoid; line 0 is the name of the file."""
    plain = f"{name}\n{text}".lower().replace("_", " ")
    for pattern, instead in patterns:
        for match in pattern.finditer(plain):
            start, end = match.span()
            # Checked here and not in the pattern, which is then several times as fast.
            if not (plain[start - 1 : start].isalpha() or plain[end : end + 1].isalpha()):
                yield plain.count("\n", 0, start), " ".join(match[0].split()), instead


def list_files(paths: list[str]) -> Iterator[str]:
    """Yield the tracked text files, by default all of the repository."""
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in SUFFIXES and name not in EXEMPT and path.is_file():
            yield name


def main(arguments: list[str]) -> int:
    """Check the files; return 1 if a word was found."""
    counts = "--counts" in arguments
    patterns = read_patterns()
    found: list[str] = []
    per_package: Counter[str] = Counter()
    for name in list_files([argument for argument in arguments if argument != "--counts"]):
        for line, word, instead in find_words(name, (ROOT / name).read_text(encoding="utf-8"), patterns):
            found.append(f"{name}:{line}: '{word}': write '{instead}'")
            per_package["/".join(Path(name).parts[:-1][:3]) or name] += 1
    lines = [f"{count:5} {package}" for package, count in per_package.most_common()] if counts else found
    sys.stdout.write("\n".join(lines or [f"No words to avoid ({len(patterns)} patterns)."]) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
