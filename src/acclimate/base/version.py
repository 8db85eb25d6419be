"""The version of the package, and where its documentation is."""

__version__ = "0.1.0"

DOCS_URL = ""
"""Address of the published documentation, with a slash at the end; empty until there is one."""


def docs_page(name: str) -> str:
    """Return the address of a page of the documentation, such as ``report``, or its path in the repository."""
    return f"{DOCS_URL}{name}/" if DOCS_URL else f"docs/{name}.md"
