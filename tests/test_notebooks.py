"""The notebooks in examples/notebooks: they run, were committed with their outputs, and show nothing of a machine."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

import acclimate
from acclimate.adaptation import method as registry
from acclimate.labs.demo import docstrings
from tests.cases import each
from tests.docs.blocks import blocks, pages
from tests.test_docs import anchors

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SMALL = {
    "first-adaptation": "STEPS, HEAD_TOKENS, DOCUMENTS = 2, 100, 130",
    "own-method": "STEPS, HEAD_TOKENS, DOCUMENTS = 2, 100, 130",
    "study": "SEEDS, TOKENS, HEAD_TOKENS, EPOCHS, DOCUMENTS = 2, 500, 100, 1, 130",
}
"""Budgets of a test, by the name of the notebook. They replace the cell with the tag ``parameters``."""


def read(file: Path) -> nbformat.NotebookNode:
    return nbformat.read(file, nbformat.NO_CONVERT)


def is_parameters(cell: nbformat.NotebookNode) -> bool:
    return "parameters" in cell.metadata.get("tags", [])


def run_cell(source: str, names: dict) -> None:
    """Run a cell, and show the value of its last line as a notebook does."""
    tree = ast.parse(source)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if shown is not None:
        value = eval(compile(ast.Expression(shown.value), "cell", "eval"), names)
        if hasattr(value, "_repr_html_"):
            assert value._repr_html_()


def test_every_notebook_has_budgets_for_this_test():
    assert {file.stem for file in NOTEBOOKS} == set(SMALL) and len(NOTEBOOKS) == 3


@each("file", NOTEBOOKS)
def test_a_notebook_is_committed_with_its_outputs_and_without_traces_of_a_machine(file):
    notebook = read(file)
    nbformat.validate(notebook)
    assert sum(map(is_parameters, notebook.cells)) == 1
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds and "execute_result" in kinds
    assert not [text for cell in cells for output in cell.outputs if "Warning" in (text := output.get("text", ""))]
    text = file.read_text(encoding="utf-8")
    assert not re.findall(r"[\"' =](?:/(?:home|work|tmp|root|usr|Users|opt|var)/[^\"' ]*|[A-Z]:\\\\\w+)", text)
    assert len(text) < 200_000
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", "".join(cell.source for cell in notebook.cells)):
        path, _, anchor = target.partition("#")
        page = file.parent / path
        assert page.exists(), target
        assert not anchor or anchor in anchors(page.read_text(encoding="utf-8")), target


def python_sources() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each Python cell of a notebook and each Python block of a page."""
    for file in NOTEBOOKS:
        yield from (
            (f"{file.name}, cell {n}", one.source) for n, one in enumerate(read(file).cells) if one.cell_type == "code"
        )
    for page in pages():
        yield from ((block.place, block.text) for block in blocks(page) if block.language == "python")


def test_the_options_that_python_code_names_exist():
    """Notebooks and most blocks only run in slow tests."""
    checked, unknown = 0, []
    for place, source in python_sources():
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("acclimate."):
                function = getattr(acclimate, ast.unparse(call.func).removeprefix("acclimate."), None)
                known = inspect.signature(function).parameters if function else {}
                unknown += [f"{place}: {one.arg}" for one in call.keywords if one.arg and one.arg not in known]
                checked += 1
    assert checked > 10 and not unknown


@pytest.fixture(scope="module")
def documents() -> list[docstrings.Document]:
    """A part of the documentation of SciPy, as reading the whole takes seconds."""
    folder = docstrings.package_folder("scipy")
    return [
        docstrings.Document("scipy", f"scipy.{part}", document.name, document.text)
        for part in ("linalg", "signal")
        for document in docstrings.package_documents("scipy", folder / part)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_on_a_tiny_model(file, documents, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(docstrings, "package_documents", lambda name: documents)
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    try:
        for cell in read(file).cells:
            if is_parameters(cell):
                run_cell(f"MODEL = {str(tiny_bert)!r}\nOUT = 'out'\n{SMALL[file.stem]}", names)
            elif cell.cell_type == "code":
                run_cell(cell.source, names)
    finally:
        registry.REGISTRY.entries.pop("consistency", None)
    assert (tmp_path / "out").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_as_printed(file, tmp_path):
    from nbclient import NotebookClient

    NotebookClient(read(file), timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
