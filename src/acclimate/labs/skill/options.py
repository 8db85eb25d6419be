"""The verb ``skill``."""

from __future__ import annotations

from importlib.resources import files

from acclimate.base.options import options, verb
from acclimate.base.verbs import PUBLISH, register_verb


@register_verb(
    "skill",
    "acclimate.labs.skill.options:skill",
    show="show_skill",
    example="acclimate skill > SKILL.md",
    page="docs/commands.md",
    section=PUBLISH,
    order=7,
)
@options
class SkillOptions:
    """Print instructions for coding agents."""


@verb(SkillOptions)
def skill(options: SkillOptions) -> str:
    """Return instructions for coding agents, as Markdown in the format of SKILL.md."""
    return (files("acclimate.labs.skill") / "SKILL.md").read_text(encoding="utf-8")


def show_skill(text: str, options: SkillOptions) -> list[str]:
    """Return what ``acclimate skill`` prints."""
    return [text.rstrip()]
