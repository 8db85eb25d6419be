"""Classes of commands: their order in ``acclimate --help``, and what is said of unknown flags."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand, TyperGroup

from acclimate.errors import UserError

JOURNEY = {
    "Find out": ("demo", "advise", "compare", "init"),
    "Train": ("adapt", "finetune", "merge", "distill", "annotate", "pretrain"),
    "Look and share": ("inspect", "methods", "push", "doctor"),
}
"""The commands by panel of ``acclimate --help``, in the order in which they are used."""

PAGES = {
    "demo": "README.md",
    "advise": "docs/evidence.md",
    "compare": "docs/study.md",
    "init": "docs/study.md",
    "adapt": "docs/data.md",
    "finetune": "docs/data.md",
    "merge": "docs/decoders.md",
    "distill": "docs/distill.md",
    "annotate": "docs/selective.md",
    "pretrain": "docs/pretrain.md",
    "inspect": "docs/analyses.md",
    "methods": "README.md",
    "push": "docs/report.md",
    "doctor": "README.md",
    "model": "docs/decoders.md",
    "importance": "docs/analyses.md",
    "masks": "docs/masking.md",
    "embeddings": "docs/analyses.md",
    "leakage": "docs/evidence.md",
    "cost": "docs/selective.md",
    "instructions": "docs/decoders.md",
    "benchmarks": "docs/decoders.md",
}
"""The page that describes each command, shown at the end of its ``--help``."""

HUGGING_FACE = {
    "block_size": ("--max-length",),
    "bf16": ("--precision",),
    "dataset_name": ("--corpus", "a dataset of the Hub is hf:NAME:CONFIG:SPLIT"),
    "dataset_config_name": ("--corpus", "a dataset of the Hub is hf:NAME:CONFIG:SPLIT"),
    "do_eval": ("", "--heldout measures the loss on held-out text"),
    "do_train": ("", "training is what the command does"),
    "eval_steps": ("--heldout-every",),
    "fp16": ("--precision",),
    "gradient_accumulation_steps": ("", "--batch-size is what a step reads in total, in as many parts as needed"),
    "line_by_line": ("--layout", "padded is one text per row"),
    "lora_r": ("--adapter", "as --adapter lora, with --adapter-set for its settings"),
    "lr_scheduler_type": ("", "the learning rate rises over --warmup and then falls linearly"),
    "max_grad_norm": ("--max-gradient-norm",),
    "max_seq_length": ("--max-length",),
    "max_steps": ("--steps",),
    "max_train_steps": ("--steps",),
    "mlm_probability": ("--mask-rate",),
    "model_name_or_path": ("--model",),
    "num_train_epochs": ("--epochs",),
    "num_warmup_steps": ("--warmup", "a share of the training, not steps"),
    "optim": ("--optimizer",),
    "output_dir": ("--out",),
    "overwrite_output_dir": ("--overwrite",),
    "per_device_eval_batch_size": ("", "measurements choose their batches themselves"),
    "per_device_train_batch_size": ("--batch-size", "the texts of an optimizer step, over all devices"),
    "resume_from_checkpoint": ("", "the same command resumes from its last checkpoint"),
    "save_steps": ("--save-every",),
    "streaming": ("", "text is always streamed"),
    "task_name": ("--task", "the folder of a labelled task"),
    "test_file": ("--task", "the folder of a labelled task"),
    "text_column_name": ("--text-column",),
    "train_file": ("--corpus",),
    "validation_file": ("--heldout",),
    "warmup_ratio": ("--warmup",),
    "warmup_steps": ("--warmup", "a share of the training, not steps"),
}
"""Flags of the training scripts of ``transformers``: the flag here (empty if none is needed), and a note."""


def make_epilog(example: str, page: str = "") -> str:
    """Return the end of ``--help``: an example, and the page that says more; each a paragraph."""
    return f"Example: {example}" + (f"\n\nMore: {page}" if page else "")


class Command(TyperCommand):
    """A command that proposes the right flag for an unknown one, such as one of ``run_mlm.py`` or ``run_clm.py``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UserError: If a flag is unknown.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # The class is click's; newer versions of typer bring their own copy of it.
            if type(error).__name__ != "NoSuchOption" or not (name := getattr(error, "option_name", None)):
                raise
            known = [
                flag for parameter in self.get_params(ctx) for flag in (*parameter.opts, *parameter.secondary_opts)
            ]
            flags = [flag for flag in known if flag.startswith("--")]
            raise UserError(f"'{ctx.command_path}' has no option {name}.{propose(name, flags)}") from error


def propose(name: str, flags: list[str]) -> str:
    """Return sentences, after a space, on the flag that an unknown one probably means.

    Args:
        name: The unknown flag, such as ``--num_train_epochs``.
        flags: The flags of the command.
    """
    plain = name.lstrip("-").replace("-", "_").lower()
    flag, *notes = HUGGING_FACE.get(plain, (None,))
    note = notes[0] if notes else ""
    if flag == "":
        return f" Leave it out: {note}."
    if flag == "--corpus" and flag not in flags:
        flag, note = "--task", "the folder of a labelled task"
    if flag is None or flag not in flags:
        hyphens = "--" + plain.replace("_", "-")
        close = get_close_matches(hyphens, flags, n=1, cutoff=0.6)
        flag, note = (hyphens if hyphens in flags else close[0] if close else ""), ""
    if not flag:
        return " --help lists all options."
    return f" Did you mean {flag}{f' ({note})' if note else ''}?"


class Commands(TyperGroup):
    """The commands in the order and the panels of :data:`JOURNEY`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of their use."""
        ordered = [name for names in JOURNEY.values() for name in names]
        for panel, names in JOURNEY.items():
            for name in names:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
        return [*ordered, *(name for name in self.commands if name not in ordered)]
