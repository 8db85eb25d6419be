"""The cells of one model in one domain: adaptations, losses, fine-tunings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from acclimate.masking import MASK_RATE, identify
from acclimate.study.cells import Cell
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.finetuning import add_finetunes
from acclimate.study.kept import add_others
from acclimate.study.moved import add_moved
from acclimate.study.parts import FIRST_ADAPT_OPTIONS, HARMLESS, RESERVED
from acclimate.study.settings import BUDGETS, UNADAPTED

if TYPE_CHECKING:
    from acclimate.study.plan import Base, Plan


def lay_out(
    plan: Plan,
    config: StudyConfig,
    model: ModelSpec,
    domain: DomainSpec,
    base: Base,
    adapt_defaults: dict[str, Any],
    finetune_defaults: dict[str, Any],
) -> None:
    """Add the cells of one model in one domain."""
    place = {"model": model.name, "domain": domain.name}
    for cell in _losses(plan, config, {**place, "method": None}, base.identity, base.needs):
        plan.add(cell)  # every study knows the losses of the model as it came
    for seed in config.seeds:
        add_others(plan, config, domain, {**place, "method": None}, base.source, seed, finetune_defaults)
    for method in config.methods:
        here = {**place, "method": method.label}
        if method.name == UNADAPTED:
            for seed in config.seeds:
                add_finetunes(plan, config, domain.tasks, here, base.source, seed, finetune_defaults)
            continue
        seeds = config.adapt_seeds or [config.adapt.seed]
        for part, labels in plan.readings[method.label].scopes(domain):
            there = {**here, **labels}
            adapted = []
            for seed in seeds:
                cell = _adaptation(plan, config, method, base, there, seed, adapt_defaults)
                adapted.append(cell.key)
                for loss in _losses(plan, config, {**there, "adapt_seed": seed}, cell.key, cell.key):
                    plan.add(loss)
                add_moved(plan, config, {**there, "adapt_seed": seed}, base.identity, cell.key)
            for index, seed in enumerate(config.seeds):
                source = adapted[index % len(adapted)]
                where = {**there, "adapt_seed": seeds[index % len(seeds)]}
                add_finetunes(plan, config, part.tasks, where, (source, source), seed, finetune_defaults)
                add_others(plan, config, domain, where, (source, source), seed, finetune_defaults)


def _adaptation(
    plan: Plan,
    config: StudyConfig,
    method: MethodSpec,
    base: Base,
    here: dict[str, Any],
    seed: int,
    defaults: dict[str, Any],
) -> Cell:
    given = {**config.adapt.given(), **method.adapt, "seed": seed}
    if any(key in method.adapt for key in BUDGETS):  # a budget of its own takes the place of the shared one
        given = {key: value for key, value in given.items() if key not in BUDGETS or key in method.adapt}
    known = {key: value for key, value in defaults.items() if key not in RESERVED}
    decides = {
        key: value
        for key, value in {**known, **given}.items()
        if key not in HARMLESS and (key in FIRST_ADAPT_OPTIONS or value != known.get(key))
    }
    masking = identify(
        decides.pop("masking", None), decides.get("mask_rate", MASK_RATE), decides.pop("masking_settings", None)
    )
    if masking is not None:  # cells from before there was a choice keep their keys
        decides["masking"] = masking
    read, told = plan.readings[method.label].sources(plan, here, given)
    cell = Cell(
        "adapt",
        {
            "model": base.identity,
            "method": method.name,
            "parameters": plan.settings[method.label],
            **told,
            "settings": decides,
        },
        {**here, "adapt_seed": seed},
        base.needs,
    )
    plan.adapt[plan.add(cell)] = {
        **given,
        "method": method.name,
        "settings": method.parameters or None,
        **read,
    }
    return cell


def _losses(plan: Plan, config: StudyConfig, here: dict[str, Any], model: str, needs: str | None) -> Iterator[Cell]:
    for role, name in (("domain", f"domain {here['domain']}"), ("general", "general")):
        if name in plan.texts:
            identity = {
                "model": model,
                "texts": plan.texts[name].identity,
                "max_length": config.evaluate.max_length,
            }
            yield Cell("loss", identity, {**here, "text": role}, needs)
