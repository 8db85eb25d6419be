"""Reading the docstrings of packages, and reducing them to prose."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.labs.demo.docstrings import (
    drop_duplicates,
    extract_prose,
    library_documents,
    package_documents,
    package_folder,
)
from tests.labs.demo.packages import PROSE, documented, write_package

NUMPYDOC = """Return the weighted mean along an axis.

The mean is taken of :func:`~fake.stats.weigh` and ``values``, see [1]_ for *why*.

.. versionadded:: 1.2
   Only in new versions.

Parameters
----------
values : array_like, shape (n,)
    The numbers whose mean is taken.
axis : int, optional
    The axis along which it is taken.

Returns
-------
mean : float
    The weighted mean of the numbers.

Notes
-----
Large sums lose digits::

    total = sum(values)

See Also
--------
median : Another middle of the numbers here.

References
----------
.. [1] Somebody, a book about means, 1901.

Examples
--------
>>> mean([1, 2, 3])
2.0
"""


def test_only_prose_remains_of_a_numpy_docstring():
    assert extract_prose(NUMPYDOC).split("\n") == [
        "Return the weighted mean along an axis.",
        "The mean is taken of weigh and values, see for why.",
        "The numbers whose mean is taken.",
        "The axis along which it is taken.",
        "The weighted mean of the numbers.",
        "Large sums lose digits:",
    ]


def test_wrapped_lines_are_joined():
    assert extract_prose("One sentence that\nis wrapped.\n\nAnother one follows here.") == (
        "One sentence that is wrapped.\nAnother one follows here."
    )


def test_formulas_and_tables_are_removed():
    assert (
        extract_prose("A line of prose.\n\nx^2 + y^2 = 1.0 (3) [4]\n\n===  ===\n1    2\n===  ===")
        == "A line of prose."
    )


def test_doctests_within_prose_are_removed():
    assert extract_prose("Before it all.\n\n>>> f(1)\n2\n\nAfter it all.") == "Before it all.\nAfter it all."


def test_an_unclosed_code_fence_extends_to_the_end():
    assert extract_prose("Before it all.\n```\ncode is here") == "Before it all."


@given(st.text())
def test_any_text_gives_valid_paragraphs(text):
    cleaned = extract_prose(text)
    assert "\n\n" not in cleaned
    assert all(len(line.split()) >= 3 for line in cleaned.split("\n") if cleaned)


def test_docstrings_of_all_kinds_are_read_without_import(tmp_path):
    source = f'"""Module. {PROSE}"""\nraise RuntimeError("imported")\n'
    source += documented("outer", f"Function. {PROSE}")
    source += f'class Thing:\n    """Class. {PROSE}"""\n    def part(self):\n        """Method. {PROSE}"""\n'
    source += f'if True:\n    def late():\n        """Late. {PROSE}"""\n'
    root = write_package(tmp_path / "fake", {"__init__.py": "", "signal/filters.py": source})
    found = list(package_documents("fake", root, min_words=5))
    assert [document.source for document in found] == [
        "fake.signal.filters:",
        "fake.signal.filters:outer",
        "fake.signal.filters:Thing",
        "fake.signal.filters:Thing.part",
        "fake.signal.filters:late",
    ]
    assert found[3].text == f"Method. {PROSE}"


def test_tests_short_texts_and_invalid_files_are_skipped(tmp_path):
    files = {
        "__init__.py": f'"""{PROSE} {PROSE}"""',
        "short.py": '"""Too short."""',
        "tests/test_it.py": f'"""Not this. {PROSE} {PROSE}"""',
        "broken.py": f'def (:\n    """Not this. {PROSE}"""',
    }
    root = write_package(tmp_path / "fake", files)
    (root / "latin.py").write_bytes(b'"""caf\xe9 \xe9"""')
    assert [document.module for document in package_documents("fake", root)] == ["fake"]


def test_documents_come_in_the_order_of_file_names(tmp_path):
    files = {f"{name}.py": documented(name, f"{name} {PROSE}") for name in ("zeta", "alpha", "mid")}
    root = write_package(tmp_path / "fake", files)
    first = [document.name for document in package_documents("fake", root, min_words=5)]
    assert first == ["alpha", "mid", "zeta"]
    assert first == [document.name for document in package_documents("fake", root, min_words=5)]


def test_library_documents_exclude_tests_and_site_packages(tmp_path):
    text = f'"""{PROSE} {PROSE}"""'
    files = {"json/decoder.py": text, "site-packages/numpy/a.py": text, "test/b.py": text, "idlelib/c.py": text}
    found = list(library_documents(write_package(tmp_path, files)))
    assert [(document.package, document.module) for document in found] == [("json", "json.decoder")]


def test_drop_duplicates(tmp_path):
    files = {"a.py": documented("one", PROSE), "b.py": documented("two", PROSE)}
    found = list(drop_duplicates(package_documents("fake", write_package(tmp_path, files), min_words=5)))
    assert [document.name for document in found] == ["one"]


def test_a_missing_package_is_an_error():
    with pytest.raises(UserError, match="'no_such_package' is not installed: pip install no_such_package"):
        package_folder("no_such_package")


def test_import_name_and_distribution_name_may_differ():
    assert (package_folder("sklearn") / "__init__.py").is_file()


def test_reading_documents_does_not_import_the_package():
    code = (
        "import sys; from acclimate.labs.demo.docstrings import package_documents; from itertools import islice;"
        "print(len(list(islice(package_documents('networkx'), 5))), 'networkx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "False"]
