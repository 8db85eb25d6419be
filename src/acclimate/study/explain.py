"""What is wrong with a study file, in one line for people."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from acclimate.errors import did_you_mean


def explain(error: ValidationError, root: type[BaseModel]) -> str:
    """Put the first mistake that pydantic found in a ``root`` into one line, with the path of its key."""
    # A name that is not known explains one that is missing, not the other way round.
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    where = ""
    for part in first["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f"{'.' if where else ''}{part}"
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        known = sorted(_fields_at(root, first["loc"][:-1]))
        return f"unknown key '{where}'.{did_you_mean(name, known)} Known here: {', '.join(known)}."
    if first["type"] == "missing":
        return f"the key '{where}' is missing."
    message = first["msg"].removeprefix("Value error, ")
    return f"'{where}': {message}." if where else f"{message}."


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the keys of the section at ``location``."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _section(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section inside an annotation such as ``list[TaskSpec]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section(inner))), None)
