"""Settings files: any content gives a value or a one-line error, quickly."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.base.settings_file import read_settings
from tests.cases import each


def read(folder, text: str | bytes, name: str = "study.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.process_time()
    try:
        return read_settings(path, "study file")
    finally:
        assert time.process_time() - began < 5


LEVELS = range(1, 40)
BOMBS = {
    "aliases": "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in LEVELS),
    "merges": "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in LEVELS),
    "chain": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} {'[' * 40}*a{n - 1}{']' * 40}\n" for n in LEVELS),
    "itself": "a: &a [*a]\n",
    "nested": "[" * 1500,
    "nested TOML": "a = " + "[" * 5000 + "]" * 5000,
    "number": f"adapt: {{steps: {10**400}}}",
    "number in TOML": f"steps = {10**400}",
    "digits": f"steps: {'9' * 9000}",
    "size": "a: " + "x" * 2_000_000,
    "half of a character": 'general: ["\\ud800"]',
}
REFUSED = r"study\.(yaml|toml)'.* (deep|far|greater|limit|larger|expected|surrogate)"


@each("name", sorted(BOMBS))
def test_absurd_files_are_refused_at_once(tmp_path, name):
    with pytest.raises(UserError, match=REFUSED) as caught:
        read(tmp_path, BOMBS[name], "study.toml" if "TOML" in name else "study.yaml")
    assert "\n" not in str(caught.value)


SCALARS = ["!!bool x", "!!int ''", "!!float x", "!!timestamp x", "!!binary é", "!!set [a]", "!!omap x", "=", "1:99:99"]


@each("value", [*SCALARS, "!!python/object/apply:os.system [true]", "2026-99-99", "? [a]\n: b", "%YAML 9.9", "\t- a"])
def test_values_that_do_not_fit_their_tags(tmp_path, value):
    try:
        read(tmp_path, f"a: {value}\n")
    except UserError as error:
        assert "\n" not in str(error)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=60) | st.text("ab:-[]{}&*!<>|?%#'\"\n ,019.~", max_size=60), toml=st.booleans())
def test_any_text_is_parsed_or_refused(tmp_path, text, toml):
    try:
        read(tmp_path, text, "a.toml" if toml else "a.yaml")
    except UserError as error:
        assert "\n" not in str(error)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_ordinary_values_come_back(tmp_path, value):
    assert read(tmp_path, json.dumps(value)) == value
    assert read(tmp_path, "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\n")["other"] == {"a": 1, "b": 3}
