"""What an inspection of importances shows in a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def importance_tables(report: dict[str, Any]) -> list[Table | str]:
    """Return, for each part, tables of the domains beside chance, and a sentence that says how to read them.

    Args:
        report: As in ``importance.json``.
    """
    shown: list[Table | str] = []
    for letter, found in report["parts"].items():
        title = f"{letter}, {found['layers']} x {found['units']} {found['name']}"
        if alike := _alike(f"{title}: how alike importances are", found):
            shown.append(alike)
            if len(found["shares"]) > 2:
                shown.append(_pairs(found))
            shown.append(_reading(found))
        shown.append(_shares(f"{title}: share by normalised importance", found, report["bins"]))
    shown.append(_certainty(report["domains"]))
    whole = [name for name, domain in report["domains"].items() if domain["tokens"] <= min(domain["read"])]
    if whole and len(report["settings"]["seeds"]) > 1:
        shown.append(f"The whole text of {', '.join(whole)} was read: there, seeds differ in dropout only.")
    return shown


def _alike(title: str, found: dict[str, Any]) -> Table | None:
    """Make the table of cosines and correlations; None with one domain and one seed, where nothing is compared."""
    columns = {
        f"{name}\n{against}": found[kind][key]
        for kind, name in (("cosine", "cosine,"), ("correlation", "r,"))
        for key, against in (("to_others", "other domains"), ("between_seeds", "other seeds"))
        if any(value is not None for value in found[kind][key].values())
    }
    if not columns:
        return None
    table = _table(title, list(columns))
    for name in found["shares"]:
        table.add_row(name, *(f"{values[name]:.2f}" for values in columns.values()))
    for kind, chance in found["random"].items():
        cosine = f"{chance['cosine']['mean']:.2f}"
        table.add_row(f"random, {kind}", *(cosine if "cosine" in name else "0" for name in columns), style="dim")
    return table


def _certainty(domains: dict[str, Any]) -> Table:
    """Make the table of how much was read and how sure the importances are, each of the seed that has the least."""
    table = _table("What was read", ["tokens", "standard error"])
    for name, domain in domains.items():
        errors = domain["standard_error"]
        sure = "too little text to tell" if None in errors else f"{max(errors):.3f}"
        table.add_row(name, f"{min(domain['read']):,}", sure)
    return table


def _pairs(found: dict[str, Any]) -> Table:
    names = list(found["shares"])
    table = _table("Cosine of each pair of domains", names)
    for name in names:
        row = found["cosine"]["between"][name]
        table.add_row(name, *(f"{row[other]:.2f}" if other in row else "" for other in names))
    return table


def _reading(found: dict[str, Any]) -> str:
    chances = " or ".join(
        f"{mean:.2f} ({kind}; 95 % from {low:.2f} to {high:.2f})"
        for kind, chance in found["random"].items()
        for mean, low, high in [(chance["cosine"][key] for key in ("mean", "low", "high"))]
    )
    return (
        f"Two independent random importances have the cosine {chances} after the same normalisation: read a cosine "
        "between domains against that, and against the one between seeds. r is the correlation within layers before "
        "the normalisation; chance gives 0."
    )


def _shares(title: str, found: dict[str, Any], bins: list[float]) -> Table:
    table = _table(title, [f"from {low:g}" for low in bins[:-1]])
    for name, parts in found["shares"].items():
        table.add_row(name, *(f"{share:.0%}" for share in parts))
    for kind, chance in found["random"].items():
        table.add_row(f"random, {kind}", *(f"{share['mean']:.0%}" for share in chance["shares"]), style="dim")
    return table


def _table(title: str, columns: list[str]) -> Table:
    import rich.box
    from rich.table import Table as Made

    table = Made(title=title, title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
