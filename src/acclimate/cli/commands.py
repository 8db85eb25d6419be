"""Classes of commands, and what is said of unknown flags."""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand, TyperGroup

from acclimate.base.errors import UserError
from acclimate.base.options import propose_part
from acclimate.base.registry import find_registry
from acclimate.base.verbs import find_declared

HUGGING_FACE = {
    "assistant_only_loss": ("", "conversations of --replay chat:FILE are always trained on the answers"),
    "attn_implementation": ("", "the attention is chosen for the model and the device"),
    "bf16": ("--precision",),
    "block_size": ("--max-length",),
    "cache_dir": ("", "the environment variables HF_HOME and ACCLIMATE_CACHE say where caches are"),
    "dataloader_num_workers": ("", "text is tokenized before the training"),
    "dataset_config_name": ("--corpus", "a dataset of the Hub is hf:NAME:CONFIG:SPLIT"),
    "dataset_name": ("--corpus", "a dataset of the Hub is hf:NAME:CONFIG:SPLIT"),
    "dataset_text_field": ("--text-column",),
    "do_eval": ("", "--heldout measures the loss on held-out text"),
    "do_predict": ("", "the test split is always evaluated"),
    "do_train": ("", "training is what the command does"),
    "dtype": ("--precision",),
    "eval_steps": ("--heldout-every",),
    "eval_strategy": ("--heldout-every",),
    "evaluation_strategy": ("--heldout-every",),
    "fp16": ("--precision",),
    "gradient_accumulation_steps": ("", "--batch-size is what a step reads in total, in as many parts as needed"),
    "hub_model_id": ("--push-to-hub", "as USER/NAME"),
    "label_column_name": ("--label-column",),
    "line_by_line": ("--layout", "padded is one text per row"),
    "load_best_model_at_end": ("--select", "dev keeps the best epoch on the dev split"),
    "load_in_4bit": ("--adapter", "as --adapter 'lora quantize=4bit'"),
    "logging_steps": ("", "log.jsonl next to the model has a line for every fiftieth of the training"),
    "lora_alpha": ("--adapter", "as --adapter 'lora alpha=32'"),
    "lora_dropout": ("--adapter", "as --adapter 'lora dropout=0.05'"),
    "lora_r": ("--adapter", "as --adapter 'lora r=8'"),
    "lora_target_modules": ("--adapter", "as --adapter 'lora targets=q_proj,v_proj'"),
    "lr": ("--learning-rate",),
    "lr_scheduler_type": ("--schedule", "linear, cosine, constant or wsd"),
    "max_grad_norm": ("--max-gradient-norm",),
    "max_seq_length": ("--max-length",),
    "max_steps": ("--steps",),
    "max_train_samples": ("", "--steps, --tokens or --max-minutes limit the training"),
    "max_train_steps": ("--steps",),
    "metric_for_best_model": ("--metric",),
    "mlm_probability": ("--mask-rate",),
    "model_name": ("--model",),
    "model_name_or_path": ("--model",),
    "num_epochs": ("--epochs",),
    "num_train_epochs": ("--epochs",),
    "num_warmup_steps": ("--warmup", "a share of the training, not steps"),
    "optim": ("--optimizer",),
    "output_dir": ("--out",),
    "overwrite_output_dir": ("--overwrite",),
    "packing": ("--layout", "packed is several texts per row"),
    "per_device_eval_batch_size": ("", "measurements choose their batches themselves"),
    "per_device_train_batch_size": ("--batch-size", "the texts of an optimizer step, over all devices"),
    "preprocessing_num_workers": ("", "text is tokenized once and cached"),
    "resume_from_checkpoint": ("", "the same command resumes from its last checkpoint"),
    "save_steps": ("--save-every",),
    "save_strategy": ("--save-every",),
    "save_total_limit": ("", "only the last checkpoint is kept; --keep-steps keeps models of other steps"),
    "streaming": ("", "text is always streamed"),
    "task_name": ("--task", "a labelled folder or file"),
    "test_file": ("--task", "a labelled folder or file"),
    "text": ("--corpus",),
    "text_column_name": ("--text-column",),
    "tokenizer_name": ("", "the model's tokenizer is used"),
    "torch_dtype": ("--precision",),
    "train_file": ("--corpus",),
    "trust_remote_code": ("", "the environment variable ACCLIMATE_TRUST_REMOTE_CODE=1 lets code of models run"),
    "use_peft": ("--adapter", "as --adapter lora"),
    "validation_file": ("--heldout",),
    "warmup_ratio": ("--warmup",),
    "warmup_steps": ("--warmup", "a share of the training, not steps"),
}
"""Flags of the scripts of ``transformers`` and ``trl``: the flag here (empty if none is needed), and a note."""


PARTS = {"merge": ("--method", "acclimate.merges")}
"""The option whose value holds the parameters of an entry, by command, and the group of the registry."""


class Command(TyperCommand):
    """A command that proposes the right flag for an unknown one, such as one of ``run_mlm.py`` or ``run_clm.py``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UserError: If a flag is unknown, or a value has none.
        """
        given = [*args]
        ctx.allow_extra_args = True  # so that they are reported here, with an example
        try:
            extra = super().parse_args(ctx, args)
        except Exception as error:
            # The class is click's; newer versions of typer bring their own copy of it.
            if type(error).__name__ != "NoSuchOption" or not (name := getattr(error, "option_name", None)):
                if "--json" in given and hasattr(error, "format_message"):
                    raise UserError(error.format_message()) from error
                raise
            known = [
                flag for parameter in self.get_params(ctx) for flag in (*parameter.opts, *parameter.secondary_opts)
            ]
            flags = [flag for flag in known if flag.startswith("--")]
            hint = propose_parameter(str(ctx.command.name), given, name) or propose(name, flags)
            raise UserError(f"'{ctx.command_path}' has no option {name}.{hint}") from error
        if extra and not ctx.resilient_parsing:
            more = "s" if len(extra) > 1 else ""
            example = (self.epilog or "").partition("\n")[0]
            raise UserError(
                f"'{ctx.command_path}' does not know what {', '.join(map(repr, extra))} is: give the name{more} of "
                f"the option{more}, and repeat it for each value. {example}"
            )
        return extra


def propose_parameter(command: str, given: list[str], name: str) -> str:
    """Return a sentence, after a space, on how to give an unknown flag that is a parameter; empty if it is none.

    Args:
        command: Name of the command.
        given: The words after it.
        name: The unknown flag.
    """
    option, group = PARTS.get(command, ("", ""))
    if not option:
        return ""
    words = [part for word in given for part in (word.split("=", 1) if word.startswith("--") else [word])]
    values = dict(zip(words, [*words[1:], ""], strict=True))
    plain, registry = name.lstrip("-").replace("-", "_").lower(), find_registry(group)
    found = {}
    for entry in registry.names():
        known = {field.name for field in dataclasses.fields(registry.lookup(entry))}
        if keys := known & {plain, f"{plain}s"}:
            found[entry] = min(keys)
    chosen = values.get(option, "")
    if key := found.get(chosen.partition(" ")[0]):
        return f" Give it with the method: {option} '{chosen} {key}={values[name]}'."
    example = next((f"{entry} {key}=VALUE" for entry, key in found.items()), "")
    return f" It is a parameter of {', '.join(found)}: {option} '{example}'." if found else ""


def propose(name: str, flags: list[str]) -> str:
    """Return sentences, after a space, on the flag that an unknown one probably means.

    Args:
        name: The unknown flag, such as ``--num_train_epochs``.
        flags: The flags of the command.
    """
    if hint := propose_part(name, flags):
        return hint
    plain = name.lstrip("-").replace("-", "_").lower()
    flag, *notes = HUGGING_FACE.get(plain, (None,))
    note = notes[0] if notes else ""
    if flag == "":
        return f" Leave it out: {note}."
    if flag == "--corpus" and flag not in flags:
        flag, note = "--task", "a labelled folder or file"
    if flag is None or flag not in flags:
        hyphens = "--" + plain.replace("_", "-")
        close = get_close_matches(hyphens, flags, n=1, cutoff=0.6)
        flag, note = (hyphens if hyphens in flags else close[0] if close else ""), ""
    if not flag:
        return " --help lists all options."
    return f" Did you mean {flag}{f' ({note})' if note else ''}?"


class Group(TyperGroup):
    """Commands with a common word; what is wrong with it is an error with a JSON document if that is wanted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UserError: If JSON is wanted of no command.
        """
        if "--json" in args and all(word.startswith("-") for word in args):
            raise UserError(f"'{ctx.command_path}' needs a command: {', '.join(self.commands)}.")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command.

        Raises:
            UserError: If JSON is wanted of a command that does not exist.
        """
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if "--json" in args and hasattr(error, "format_message"):
                raise UserError(error.format_message()) from error
            raise


class Commands(Group):
    """The commands in the order of their use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [declared.name for declared in find_declared() if declared.name in self.commands]
