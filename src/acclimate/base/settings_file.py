"""Reading of settings files, such as studies: YAML or TOML, within limits that keep a bad file from costing time."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError, shorten
from acclimate.base.files import check_regular_file

MAX_BYTES, MAX_VALUES, MAX_DEPTH = 10**6, 10**5, 50
"""Limits of a settings file: its size, its values with all aliases expanded, and how deeply they are nested."""
MAX_INTEGER = 2**63 - 1
"""Largest integer in a settings file."""
SURROGATES = re.compile("[\ud800-\udfff]")


def read_settings(path: str | Path, what: str) -> Any:
    """Read a settings file: TOML if its name ends in ``.toml``, else YAML.

    Args:
        path: An existing file.
        what: What the file is, for messages.

    Raises:
        UserError: If the file cannot be parsed, or exceeds a limit.
    """
    import tomllib

    import yaml  # not needed by most commands

    path = Path(path)
    check_regular_file(path)
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"The {what} '{path}' is larger than {MAX_BYTES:,} bytes; is it the right file?")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
        value = tomllib.loads(text) if path.suffix == ".toml" else _load_yaml(text)
        _check_values(value)
    except RecursionError as error:
        raise UserError(f"Cannot parse {what} '{path}': it is too deeply nested") from error
    except (yaml.YAMLError, ValueError) as error:  # invalid TOML, encodings and dates are ValueErrors
        raise UserError(f"Cannot parse {what} '{path}': {' '.join(str(error).split())}") from error
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of PyYAML
        raise UserError(f"Cannot parse {what} '{path}': a value does not fit its tag") from error
    return value


def check_study_file(path: str | Path) -> Path:
    """Return the path of a study file.

    Raises:
        UserError: If there is none.
    """
    path = Path(os.path.expanduser(path))
    if not path.is_file():
        raise UserError(f"No study file at '{path}'. Give the path of a .yaml or .toml file.")
    return path


def read_value(text: str) -> Any:
    """Return the value that a text is in a YAML file: a number, true or false, a list, a text, ...

    Raises:
        UserError: If the text cannot be parsed.
    """
    import yaml

    try:
        return _load_yaml(text)
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise UserError(f"Cannot parse the value {shorten(text)}; quote it if it is a text, as '\"a: b\"'.") from error


def _check_values(value: Any, name: str = "") -> None:
    """Refuse integers that no setting can have and texts that no file can, before something uses them."""
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            _check_values(key)
            _check_values(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError(f"{name or 'a key'} is a number greater than {MAX_INTEGER:,}")
    elif isinstance(value, str) and SURROGATES.search(value):
        raise ValueError(f"{name or 'a key'} has half of a surrogate pair, which is no character")


def _construct_text(loader: Any, node: Any) -> str:
    text: str = loader.construct_scalar(node)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _load_yaml(text: str) -> Any:
    """Parse YAML like ``yaml.safe_load``, but with limits, and without three of its surprises.

    Duplicate keys are refused; ``safe_load`` silently keeps the last. ``010`` and ``1:30`` are text, as in YAML 1.2;
    ``safe_load`` reads an octal and a sexagesimal number, 8 and 90. Two escapes of a pair are one character, as in
    JSON. Aliases can describe values of any size.

    Raises:
        yaml.YAMLError: If the text cannot be parsed, has a duplicate key or exceeds a limit.
    """
    import yaml

    measured: dict[int, tuple[int, int]] = {}

    def measure(node: Any, depth: int = 0) -> tuple[int, int]:
        """Return the number of values of a node, and the depth of their nesting, with all aliases expanded."""
        if id(node) not in measured:
            entries = () if isinstance(node, yaml.ScalarNode) else node.value
            parts = [part for entry in entries for part in (entry if isinstance(entry, tuple) else (entry,))]
            # The depth on the way down detects an alias of the node itself.
            found = [measure(part, depth + 1) for part in parts] if depth <= MAX_DEPTH else [(0, MAX_DEPTH)]
            values, deepest = 1 + sum(size for size, _ in found), 1 + max((below for _, below in found), default=0)
            if values > MAX_VALUES or deepest > MAX_DEPTH:
                problem = "its aliases expand too far" if values > MAX_VALUES else "it is too deeply nested"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            measured[id(node)] = values, deepest
        return measured[id(node)]

    class Loader(yaml.SafeLoader):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)
            number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            return self.DEFAULT_SCALAR_TAG if number and re.match(r"[-+]?0[0-9_]+$|.*:", value) else tag

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                # "<<" merges another mapping, whose keys may be overridden.
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"the key '{key.value}' is duplicated", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.add_constructor("tag:yaml.org,2002:str", _construct_text)
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        measure(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()
