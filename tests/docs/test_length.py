"""The pages for users stay short enough to read."""

from __future__ import annotations

import re

from tests.docs.blocks import DOCS, GENERATED_TABLE

MOST = 25_000
"""Words of all pages for users: prose and tables written by hand."""
NOT_READ = re.compile(
    rf"^{GENERATED_TABLE}"
    r"|^ *```.*?^ *```$"  # a block of code
    r"|<!--.*?-->",
    flags=re.M | re.S,
)


def count_words(text: str) -> int:
    """Return the number of words of a page, without generated tables, blocks of code and comments."""
    return len(NOT_READ.sub("", text).split())


def test_pages_for_users_are_short():
    counts = {
        page.relative_to(DOCS).as_posix(): count_words(page.read_text(encoding="utf-8"))
        for page in [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")]
    }
    total = sum(counts.values())
    assert total <= MOST, f"{total} words; the longest pages: {sorted(counts.items(), key=lambda one: -one[1])[:5]}"


def test_generated_tables_and_code_do_not_count():
    table = "<!-- Table of x from y. -->\n\n| a | b |\n|---|---|\n| c | d |\n"
    page = f"one two\n\n{table}\nthree\n\n```console\n$ four\n```\n"
    assert count_words(page) == 3
