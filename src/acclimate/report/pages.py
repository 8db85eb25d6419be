"""How pages are made: templates that escape what comes from data, and the style that all pages share."""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def fill(package: str, name: str, **values: Any) -> str:
    """Fill a template of a package; it may include those of this one, such as ``style.css.j2``.

    Args:
        package: Where the template is.
        name: Its file.
        values: What it asks for. All but markup is escaped.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("acclimate.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
