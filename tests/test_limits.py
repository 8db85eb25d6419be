"""Chat templates of others are rendered within limits of memory, time and length."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from acclimate.base import limits
from acclimate.base.errors import UserError
from acclimate.base.limits import LimitedTemplate
from tests.cases import each

TURNS = [{"role": "user", "content": "q"}]


def tokenizer(template: str):
    """Compile at each call, as the first call does: constants are computed then."""

    def apply(turns, tokenize, **more):
        return ImmutableSandboxedEnvironment().from_string(template).render(messages=turns, **more)

    return SimpleNamespace(name_or_path="model", apply_chat_template=apply)


@pytest.mark.slow
@each(
    "template",
    [
        "{{ 'a' * (10 ** 10) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ 'a' * 3000 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
    ],
)
def test_a_template_that_takes_gigabytes_or_hours_is_refused(template, monkeypatch):
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 1)
    monkeypatch.setattr(limits, "TEMPLATE_LENGTH", 2000)
    with (
        LimitedTemplate(tokenizer(template)) as limited,
        pytest.raises(UserError, match="The chat template of 'model'"),
    ):
        limited.render(TURNS)


def test_a_template_is_rendered_many_times_and_its_errors_are_named():
    with LimitedTemplate(tokenizer("{{ messages[0].content }}{{ 1 / tools }}")) as limited:
        assert [limited.render(TURNS, tools=number) for number in (1, 2)] == ["q1.0", "q0.5"]
        with pytest.raises(ValueError, match="division by zero"):
            limited.render(TURNS, tools=0)
        assert limited.render(TURNS, tools=4) == "q0.25"
