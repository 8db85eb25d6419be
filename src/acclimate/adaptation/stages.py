"""Methods that run several adaptations one after the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from acclimate.adaptation.method import Method
from acclimate.adaptation.options import NO_SIMILARITY
from acclimate.adaptation.replay_options import written_by
from acclimate.adaptation.result import AdaptResult, open_work_folder, read_manifest
from acclimate.adaptation.run import Run
from acclimate.base.files import MANIFEST_FILE, atomic_folder, read_lines, record_files, write_json
from acclimate.base.options import values
from acclimate.base.progress import print_message
from acclimate.cards.writers import load_name, write_adapted_card
from acclimate.engine.trainer import LOG_FILE
from acclimate.models.adapters import ADAPTER_FOLDER

OWN_OPTIONS = ("model", "corpus", "method", "out", "task", "overwrite", "progress")
"""Options of ``adapt`` that a stage does not take over."""


def stages_folder(out: Path) -> Path:
    """Return the folder that keeps the models of the stages until the last one has finished."""
    return out.parent / f".{out.name}.stages"


def adapt_in_stages(adapt: Callable[..., AdaptResult], run: Run) -> AdaptResult:
    """Run the stages of a method one after the other, and join their results.

    Each stage is an adaptation in a working folder next to the output directory. After an interruption, the results of
    finished stages are read from there, and the interrupted stage resumes from its checkpoint.

    Args:
        adapt: :func:`acclimate.adapt`.
        run: The run, of which nothing but the options has been read. Its features finish the last model.

    Returns:
        Steps, tokens and seconds of all stages together, and the losses at the end of the last.
    """
    method, texts, out, config, group = run.method, run.texts, run.out, run.config, run.group
    model = run.options.model() if callable(run.options.model) else run.options.model
    options = {name: value for name, value in values(run.options).items() if name not in OWN_OPTIONS}
    # only the last model is measured, but for the losses during the training
    options |= {"progress": run.progress, "similarity": NO_SIMILARITY, "instructions": False}
    options |= {} if run.options.heldout is not None else {"general": None}
    options["replay"] = written_by(options["replay"], str(model))  # not by the model of an earlier stage
    stages = method.stages()
    work = stages_folder(out)
    open_work_folder(work, config, group)
    places: list[Path] = []
    results: list[AdaptResult] = []
    for number, stage in enumerate(stages, 1):
        reads: str = stage.reads or next(iter(texts))
        place = work / f"{number}-{reads}"
        print_message(f"Stage {number} of {len(stages)}: {reads} text.", enabled=options["progress"])
        start = places[-1] if places and not stage.from_base else model
        made = stage.method if isinstance(stage.method, Method) else stage.method(places)
        results.append(adapt(start, texts[reads], made, place, **{**options, **stage.options}))
        places.append(place)
        options = {**options, "new_tokens": None}  # the first stage has added them
    total = run.result = AdaptResult(
        out,
        config["method"],
        sum(result.steps for result in results),
        sum(result.tokens for result in results),
        round(sum(result.seconds for result in results), 1),
        results[-1].losses,
        config,
        warning=" ".join(filter(None, (result.warning for result in results))),
        adapter=results[-1].adapter,
        preview=lambda: results[-1].masked,
    )
    group.wait()
    if group.first:
        with atomic_folder(out) as folder:
            # An adapter fits the model of the stage before, which is not kept.
            shutil.copytree(places[-1], folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(ADAPTER_FOLDER))
            for feature in run.features:
                feature.finish(run, folder)
            (folder / LOG_FILE).write_text("".join(_join_logs(places)), encoding="utf-8")
            cards = [read_manifest(place) for place in places]
            about = {name: str(getattr(method, name)) for name in ("paper", "summary")}
            write_json(folder / MANIFEST_FILE, {**config, "about": about, "stages": cards, "result": total.measured()})
            write_adapted_card(folder, out.name, load_name=load_name(out))
            record_files(folder, MANIFEST_FILE)
        shutil.rmtree(work, ignore_errors=True)
    group.wait()
    return total


def _join_logs(places: Sequence[Path]) -> list[str]:
    """Return the lines of all logs, with steps, tokens and seconds counted through all stages."""
    lines = []
    done = {"step": 0, "tokens": 0, "seconds": 0.0}
    for number, place in enumerate(places, 1):
        for text in read_lines(place / LOG_FILE):
            line = json.loads(text)
            moved = {name: round(line[name] + before, 1) for name, before in done.items() if name in line}
            lines.append(json.dumps({**line, **moved, "stage": number}) + "\n")
        result = (read_manifest(place) or {})["result"]
        done = {"step": done["step"] + result["steps"], **{n: done[n] + result[n] for n in ("tokens", "seconds")}}
    return lines
