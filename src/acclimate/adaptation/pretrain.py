"""Pre-training from scratch: the configuration, tokenizer and initial weights of a language model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import default_rows
from acclimate.adaptation.kept_steps import check_keep_steps
from acclimate.adaptation.method import Method
from acclimate.adaptation.options import PRETRAIN_LENGTH, PretrainOptions, TrainingOptions
from acclimate.adaptation.result import AdaptResult, describe_kept_steps, read_manifest, roundtrip_json
from acclimate.adaptation.tokenizer import TOKENIZER_KINDS, sample_documents, train_tokenizer
from acclimate.base.device import preserve_rng_state
from acclimate.base.errors import UserError, did_you_mean, first_line, unknown_name_error
from acclimate.base.files import MANIFEST_FILE, atomic_folder, follow_link, local_folder, write_json
from acclimate.base.locks import output_lock
from acclimate.base.options import recorded, values, verb
from acclimate.base.progress import print_message
from acclimate.base.verbs import Next
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.tokenizing import fingerprint_tokenizer
from acclimate.engine.distributed import join_process_group
from acclimate.models.checkpoints import check_limits
from acclimate.models.families import FAMILIES, UNKNOWN, family_of, longest_text
from acclimate.models.kinds import CAUSAL, MASKED, ModelKind
from acclimate.models.loading import load_tokenizer

ENCODERS = tuple(sorted(name for name, family in FAMILIES.items() if family.tokenizer))
DECODERS = ("gpt2", "granite", "llama", "mistral", "olmo2", "phi3", "qwen3", "smollm3")
ARCHITECTURES: dict[str, ModelKind] = {**dict.fromkeys(ENCODERS, MASKED), **dict.fromkeys(DECODERS, CAUSAL)}
"""The kind of each architecture, by ``model_type``."""
DEFAULT_ARCHITECTURE = {MASKED.name: "bert", CAUSAL.name: "llama"}
PER_LAYER = ("layer_types", "no_rope_layers")
"""Settings with one entry per layer; None lets ``transformers`` derive them from the number of layers."""
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
"""Layers and width of Turc et al., 2019 ("Well-Read Students Learn Better"); a head for every 64 units of width."""


INVALID = (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, AssertionError, StrictDataclassError)
"""What ``transformers`` raises for a configuration that does not describe a model."""


def make_config(architecture: str | Path, size: str | None = None, changes: dict[str, Any] | None = None) -> Any:
    """Return the configuration of a model.

    Args:
        architecture: One of :data:`ARCHITECTURES`, or a folder, a JSON file or a model on the Hugging Face Hub (with
            ``/`` in its name) whose configuration is used.
        size: One of :data:`SIZES`: layers, width and heads; the feed-forward layers keep their ratio to the width.
            None keeps those of the configuration. For an architecture by name, these are the defaults of
            ``transformers``, or ``"base"`` for decoders, whose defaults have billions of parameters.
        changes: Values of single settings, such as ``{"hidden_size": 256}``; strings are parsed as JSON if possible.

    Returns:
        A configuration whose vocabulary is not set yet (see :func:`fit_config_to_tokenizer`).

    Raises:
        UserError: If the architecture or a setting is unknown, or the values do not fit together.
    """
    config = _load_base_config(str(architecture))
    named = {
        **_size_settings(config, "base" if size is None and architecture in DECODERS else size),
        **_parse_changes(config, changes or {}),
    }
    named = {**_derived_settings(config, named), **named}
    try:
        config = type(config).from_dict({**config.to_dict(), **named})
        check_limits(config, "these settings")
        width, heads = config.hidden_size, config.num_attention_heads
        if width % heads:
            raise UserError(
                f"hidden_size {width} is not divisible by {heads} heads: set num_attention_heads to a divisor."
            )
        if heads % (groups := getattr(config, "num_key_value_heads", None) or heads):
            raise UserError(f"{groups} key heads cannot serve {heads} heads: set num_key_value_heads to a divisor.")
        with torch.device("meta"):
            _auto_class(config).from_config(config)
    except INVALID as error:
        reason = f"no such value {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError(f"A model with these settings cannot be built: {reason}") from error
    return config


def _auto_class(config: Any) -> Any:
    return getattr(transformers, ARCHITECTURES[config.model_type].auto_class)


def _load_base_config(architecture: str) -> Any:
    if architecture in ARCHITECTURES:
        family = FAMILIES.get(architecture, UNKNOWN)
        positions = {"max_position_embeddings": 514} if family.positions_after_padding else {}
        return AutoConfig.for_model(architecture, **positions)
    folder = local_folder(architecture)
    known = folder.exists() if folder else "/" in architecture  # a name with a slash may be on the Hub
    if not known:
        raise UserError(
            f"Unknown architecture '{architecture}'.{did_you_mean(architecture, ARCHITECTURES)} Give one of "
            f"{', '.join(ARCHITECTURES)}, or a folder or JSON file with a configuration."
        )
    try:
        config = AutoConfig.from_pretrained(architecture, trust_remote_code=False)
    except (OSError, *INVALID) as error:
        raise UserError(f"No configuration could be read from '{architecture}': {first_line(error)}") from error
    if config.model_type not in ARCHITECTURES:
        raise unknown_name_error(f"architecture (in '{architecture}')", config.model_type, ARCHITECTURES)
    return config


def _size_settings(config: Any, size: str | None) -> dict[str, Any]:
    """Return the settings of a named size, under the architecture's own names."""
    if size is None:
        return {}
    if size not in SIZES:
        raise unknown_name_error("size", size, SIZES)
    layers, width = SIZES[size]
    inner = "hidden_dim" if config.model_type == "distilbert" else "intermediate_size"
    values = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 64,
    }
    if hasattr(config, inner):  # else it follows from the width, as in GPT-2
        values[inner] = getattr(config, inner) * width // config.hidden_size
    listed = {name: None for name in PER_LAYER if hasattr(config, name)}
    return {**{config.attribute_map.get(name, name): value for name, value in values.items()}, **listed}


def _derived_settings(config: Any, changed: dict[str, Any]) -> dict[str, Any]:
    """Return what follows from changed widths and heads, and what a configuration keeps if it is not set again."""
    width, heads = (
        changed.get(config.attribute_map.get(name, name)) for name in ("hidden_size", "num_attention_heads")
    )
    known = config.to_dict()
    derived = {}
    if isinstance(heads, int) and known.get("num_key_value_heads") is not None:
        derived["num_key_value_heads"] = heads
    if (width or heads) and known.get("head_dim") is not None:
        with suppress(TypeError, ZeroDivisionError):  # reported when the model is built
            derived["head_dim"] = (width or config.hidden_size) // (heads or config.num_attention_heads)
    return derived


def _parse_changes(config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    # Settings that every configuration has do not describe the network, and token ids come from the tokenizer.
    own = {name for name in config.to_dict() if not name.endswith("_token_id")} - {*PreTrainedConfig().to_dict()}
    known = {*own, *config.attribute_map} - {"vocab_size", "model_type"}
    values = {}
    for name, value in changes.items():
        if name == "vocab_size":
            raise UserError(
                "The vocabulary size comes from the tokenizer: use the option vocab_size, not the setting."
            )
        if name not in known:
            raise unknown_name_error(f"setting of {config.model_type}", name, known)
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            parsed = value
        values[config.attribute_map.get(name, name)] = parsed
        if name == "num_hidden_layers":
            values = {**{listed: None for listed in PER_LAYER if hasattr(config, listed)}, **values}
    return values


def describe_config(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that describe the network, without those that the tokenizer sets."""
    left_out = ("vocab_size", "transformers_version")
    values = config.to_diff_dict().items()
    return {name: value for name, value in values if name not in left_out and not name.endswith("_token_id")}


def fit_config_to_tokenizer(config: Any, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Return the configuration with the size of a tokenizer's vocabulary and the ids of its special tokens.

    Raises:
        UserError: If the model numbers positions from the padding id, and that id leaves no position.
    """
    values = {**config.to_dict(), "vocab_size": len(tokenizer)}
    substitutes = {"bos": "cls", "eos": "sep"}
    # Generation stops at the end token of the configuration, which has none in some architectures.
    generates = ARCHITECTURES[config.model_type].frames_documents
    for role in ("pad", "bos", "eos", "cls", "sep"):
        name = f"{role}_token_id"
        if values.get(name) is not None or (generates and name in values):
            found = getattr(tokenizer, name, None)
            values[name] = (
                found if found is not None else getattr(tokenizer, f"{substitutes.get(role, role)}_token_id", None)
            )
    pad, positions = values.get("pad_token_id"), values.get("max_position_embeddings")
    if family_of(config).positions_after_padding and pad is not None and pad + 1 >= positions:
        raise UserError(
            f"The tokenizer's padding token has the id {pad:,}, and {config.model_type} numbers its {positions:,} "
            "positions from there: use a tokenizer whose padding token has a low id, or bert as the architecture."
        )
    return type(config).from_dict(values)


def init_model(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Return a language model with random weights, the same for the same configuration and seed."""
    with preserve_rng_state():
        torch.manual_seed(seed)
        return _auto_class(config).from_config(config)


@dataclass
class FromScratch(Method):
    """Language modelling from random weights.

    It is a method so that its settings are recorded with the model. It is not registered, because it does not adapt a
    model.

    Attributes:
        configuration: Settings of the model that do not come from the tokenizer.
        options: Options of the tokenizer; ``tokenizer`` is a kind to train, or a folder or model.
    """

    name: ClassVar[str] = "pretrain"
    starts_from: ClassVar[str | None] = "fresh weights"  # not the temporary folder that holds them
    summary: ClassVar[str] = "language modelling from fresh weights"
    configuration: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Return the configuration and the options, by name."""
        return {"configuration": self.configuration, **self.options}

    def file_contents(self) -> dict[str, str]:
        """Return a hash of a tokenizer that is given, since its files can change while its name stays the same."""
        name = self.options["tokenizer"]
        return {} if name in TOKENIZER_KINDS else {"tokenizer": fingerprint_tokenizer(load_tokenizer(name))}


@verb(PretrainOptions)
def pretrain(options: PretrainOptions) -> AdaptResult:
    """Train a masked or causal language model from scratch on a general corpus.

    The training is run by :func:`acclimate.adapt`: the folder ``out`` is created in one step after the training has
    finished, an interrupted run resumes when it is started again, and a finished run returns its result at once. The
    models of ``keep_steps`` are ordinary model folders inside ``out``, such as ``out/step-000100``; during training
    they are in ``.OUT.work/kept``. The learning-rate schedule of such a model is that of the whole budget, stopped
    early, as in Gu et al. (EMNLP 2020, "Train No Evil"), who stopped after 100k, 200k and 300k of 1M steps.

    The defaults are those of that paper, which follow BERT: batches of 256 texts of 256 tokens, learning rate 1e-4,
    weight decay 0.01, warm-up over the first hundredth of the steps. They are meant for 1M steps of a model with 110M
    parameters; a small model on a small budget needs a higher learning rate (see ``docs/pretrain.md``).

    Returns:
        The output directory, the steps, tokens and seconds of training, and the losses.

    Raises:
        UserError: If an option or the input is invalid, or the loss becomes NaN or infinite. An existing result is
            left unchanged.
    """
    out, tokenizer, seed, progress = follow_link(options.out), options.tokenizer, options.seed, options.progress
    architecture = options.architecture or DEFAULT_ARCHITECTURE[options.objective or MASKED.name]
    config = make_config(architecture, options.size, options.changes)
    kind = ARCHITECTURES[config.model_type]
    if options.objective not in (None, kind.name):
        others = [name for name, other in ARCHITECTURES.items() if other.name == options.objective]
        raise UserError(
            f"{config.model_type} is the architecture of a {kind.name} language model; choose one of "
            f"{', '.join(others)}, or objective={kind.name}."
        )
    if tokenizer is None:
        tokenizer = family_of(config).tokenizer or "byte-bpe"
    if kind.frames_documents and tokenizer == "wordpiece":
        raise UserError("WordPiece does not keep the spaces of a text, so a causal model needs tokenizer=byte-bpe.")
    if str(tokenizer) not in TOKENIZER_KINDS and (options.vocab_size, options.lowercase) != (None, None):
        raise UserError(f"The tokenizer '{tokenizer}' already exists: remove 'vocab_size' and 'lowercase'.")
    text = as_corpus(options.corpus, options)
    length = PRETRAIN_LENGTH if kind.uses_masking else kind.max_length
    rows = default_rows(options, kind, getattr(config, "max_position_embeddings", None), length)
    shared = values(options, TrainingOptions) | {"learning_rate": options.learning_rate} | rows
    in_configuration = ("corpus", "architecture", "objective", "size", "changes")
    own = recorded(options, (*shared, *in_configuration), tokenizer=str(tokenizer))
    method = FromScratch(describe_config(config), own)
    check_keep_steps(options.keep_steps, method, options.steps)
    start = out.parent / f".{out.name}.start"
    group = join_process_group(options.fsdp)

    def make_initial_model() -> Path:
        with group.main_process_first():
            if group.first:
                with output_lock(start):
                    _write_initial_model(start, config, method, text, seed, progress)
        return start

    result = adapt(make_initial_model, text, method, out, **shared)
    if group.first:
        shutil.rmtree(start, ignore_errors=True)
    return result


def show_pretraining(result: AdaptResult, options: PretrainOptions) -> Iterator[Any]:
    """Yield what ``acclimate pretrain`` prints."""
    yield from result.describe()
    yield from describe_kept_steps(result, options.keep_steps)
    yield Next(["adapt", "--model", result.out, "--corpus", "TEXT", "--out", "adapted"])


def _write_initial_model(
    start: Path, config: Any, method: FromScratch, text: Corpus, seed: int, progress: bool
) -> None:
    """Write the model folder of step 0, unless an interrupted run has already written it."""
    identity = roundtrip_json(
        {**method.settings(), "files": method.file_contents(), "seed": seed, "corpus": text.fingerprint}
    )
    if read_manifest(start) == identity:
        return
    tokenizer = _load_or_train_tokenizer(method.options, text, ARCHITECTURES[config.model_type], progress)
    model = init_model(fit_config_to_tokenizer(config, tokenizer), seed)
    limit = longest_text(model)
    tokenizer.model_max_length = min(tokenizer.model_max_length, limit or tokenizer.model_max_length)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print_message(
        f"{type(model).__name__} from scratch: {config.num_hidden_layers} layers, width {config.hidden_size}, "
        f"{len(tokenizer):,} tokens, {millions:.1f} M parameters, seed {seed}.",
        enabled=progress,
    )
    with atomic_folder(start) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / MANIFEST_FILE, identity)


def _load_or_train_tokenizer(
    options: dict[str, Any], text: Corpus, model_kind: ModelKind, progress: bool
) -> PreTrainedTokenizerBase:
    kind = next((kind for kind in TOKENIZER_KINDS if kind == options["tokenizer"]), None)
    if kind is None:
        tokenizer = load_tokenizer(options["tokenizer"])
        if model_kind.uses_masking and (tokenizer.mask_token_id is None or tokenizer.pad_token_id is None):
            raise UserError(f"The tokenizer '{options['tokenizer']}' has no mask or no padding token; use another.")
        if model_kind.frames_documents and tokenizer.eos_token_id is None:
            raise UserError(f"The tokenizer '{options['tokenizer']}' has no end token; set its eos_token.")
        return tokenizer
    documents, total = sample_documents(text, options["tokenizer_characters"], progress)
    read = sum(map(len, documents))
    print_message(
        f"Training a tokenizer ({kind}) on {len(documents):,} documents: {read:,} of {total:,} characters.",
        enabled=progress,
    )
    given = {name: options[name] for name in ("vocab_size", "lowercase")}
    return train_tokenizer(documents, kind, **given, masked=model_kind.uses_masking, progress=progress)
