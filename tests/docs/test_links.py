"""Links between pages lead to files; `make docs` also checks their anchors and those of generated pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)[^)\s]*\)")
GENERATED = ("docs/reference/", "docs/methods/", "docs/results/gallery.md")
"""Places that only the site has."""


def broken_links(root: Path) -> list[str]:
    """Return the links of the pages of a repository, and of the READMEs of its papers, that lead nowhere."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *root.glob("docs/**/*.md")]
    found = []
    for page in [*pages, *root.glob("src/acclimate/papers/*/README.md")]:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in LINK.findall(text):
            place = (page.parent / target).resolve()
            if not place.exists() and not str(place.relative_to(root)).startswith(GENERATED):
                found.append(f"{page.relative_to(root)}: {target}")
    return found


def test_links_lead_to_files():
    assert not broken_links(ROOT)
