"""Tensors of checkpoints: read one at a time, matched by name between models, and written one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download, split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acclimate.base.errors import UserError, check_stop, first_line
from acclimate.base.files import local_folder, read_json_object, safe_join, write_json
from acclimate.base.progress import silence_transformers
from acclimate.models.checkpoints import IGNORED_WEIGHTS, UNREADABLE, describe_extensions, load_config, load_error
from acclimate.models.compiling import layers_of
from acclimate.models.encoding import reads_pairs
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.models.loading import check_architecture

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
TYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}
"""Types by their name in ``safetensors`` files. Types that only quantized models have are left out."""
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Endings of names in files of 2018, and the present ones."""
HUB_FILES = ["model*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
"""Files of a model on the Hub that merging reads."""

STRUCTURE = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "hidden_activation")
"""Settings that give the same weights another meaning: models that differ in one cannot be merged."""
OTHER_SETTINGS = {
    *("_name_or_path", "transformers_version", "dtype", "architectures", "vocab_size", "use_cache"),
    *("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id"),
    *("problem_type", "initializer_range"),
}
"""Settings that do not change what a model computes, or that other checks cover."""


def find_folder(name: str) -> Path:
    """Return the folder of a model; a model on the Hub is downloaded to its cache.

    Raises:
        UserError: If it cannot be downloaded.
    """
    if (folder := local_folder(name)) is not None:
        return folder
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except UNREADABLE as error:
        raise UserError(f"No model could be read from '{name}': {load_error(error, name)}") from error


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: the file, its name there, its type and its shape."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Checkpoint:
    """A model folder whose tensors are read one at a time.

    Attributes:
        label: The model as the user wrote it, for messages.
        folder: The folder.
        config: The configuration.
        stored: The tensors, by the names that the architecture gives them. A tensor that it does not have keeps its
            name in the file.
        tied: Tensors without weights of their own, by name: the name of the tensor that they share.
        rows: Number of rows of the embedding matrix.
    """

    def __init__(self, folder: Path, label: str, like: Checkpoint | None = None) -> None:
        """Read the configuration and the headers of the files.

        Args:
            folder: The folder.
            label: The model as the user wrote it.
            like: A model whose names are used where only the prefix differs, as in an encoder without its head.

        Raises:
            UserError: If the model cannot be read, has no weights in ``safetensors``, is quantized, or has modules
                that its architecture does not have.
        """
        self.folder, self.label = folder, label
        self.config = load_config(folder)
        check_architecture(self.config, label, language=False)
        if parts := describe_extensions(self.config):
            raise UserError(f"'{label}' has {parts}, which cannot be merged; choose a model without them.")
        self.trains_missing_head = kind_of_checkpoint(self.config.architectures, label).trains_missing_head
        skeleton = self._make_skeleton()
        parameters = skeleton.state_dict(keep_vars=True)
        self._prefix = f"{skeleton.base_model_prefix}." if skeleton.base_model_prefix else ""
        self._known = [like._names if like else set(), set(parameters)]
        self._names: set[str] = {self.resolve(name) for name in parameters}
        outside = [name for name in parameters if not name.startswith(self._prefix)]
        self._head = set(map(self.resolve, outside)) if len(outside) < len(parameters) else set()
        self.tied = {self.resolve(name): self.resolve(to) for name, to in skeleton.all_tied_weights_keys.items()}
        self.stored = {self.resolve(one.name): one for one in self._read_headers()}
        self._resolve_tied()
        table = skeleton.get_input_embeddings().weight
        embeddings = self.find(self.resolve(next(name for name, value in parameters.items() if value is table)))
        if embeddings is None:
            raise UserError(f"The weights of '{label}' do not fit its config.json: it has no embeddings.")
        self.rows = embeddings.shape[0]

    def _make_skeleton(self) -> Any:
        """Return the model without memory for weights: it knows their names, and which of them are shared."""
        try:
            with torch.device("meta"), silence_transformers():
                architecture = getattr(transformers, str((self.config.architectures or [""])[0]), None)
                if architecture is None:
                    return transformers.AutoModel.from_config(self.config)
                return architecture(self.config)
        except UNREADABLE as error:
            raise UserError(f"No model could be read from '{self.label}': {first_line(error)}") from error

    def _read_headers(self) -> list[Stored]:
        names = [WEIGHTS_FILE]
        if not (self.folder / WEIGHTS_FILE).is_file():
            shards = (read_json_object(self.folder / INDEX_FILE) or {}).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise UserError(
                    f"'{self.label}' has no weights in safetensors. Load it with transformers and save it with "
                    "save_pretrained, or choose a copy that has them."
                )
            names = sorted({str(name) for name in shards.values()})
        found = []
        for file in (safe_join(self.folder, name) for name in names):
            try:
                with safe_open(file, "pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118
                        part = tensors.get_slice(name)
                        kind, shape = part.get_dtype(), tuple(part.get_shape())
                        dtype = TYPES.get(kind)
                        if dtype is None or (name.endswith((".weight", ".bias")) and not dtype.is_floating_point):
                            raise UserError(
                                f"The weights in '{self.label}' are quantized: {name} has the type {kind}. Use the "
                                "model before quantization."
                            )
                        found.append(Stored(file, name, dtype, shape))
            except (OSError, SafetensorError) as error:
                raise UserError(f"The weights in '{file}' cannot be read: {first_line(error)}") from error
        return found

    def resolve(self, name: str) -> str:
        """Return the name that the architecture gives a tensor of a file, or the name itself."""
        for old, new in OLD_NAMES.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        choices = (name, self._prefix + name, name.removeprefix(self._prefix))
        return next((choice for known in self._known for choice in choices if choice in known), name)

    def _resolve_tied(self) -> None:
        """Keep one copy of tensors that are shared. If a file has two that differ, ``transformers`` uses both."""
        for name, source in [*self.tied.items()]:
            if name in self.stored and source not in self.stored:
                self.stored[source] = self.stored.pop(name)
            elif name in self.stored and not torch.equal(self.read(name), self.read(source)):
                del self.tied[name]
            else:
                self.stored.pop(name, None)

    def find(self, name: str) -> Stored | None:
        """Return a tensor, or the one that it shares; None if there is neither."""
        return self.stored.get(name) or self.stored.get(self.tied.get(name, ""))

    def read(self, name: str) -> Tensor:
        """Read a tensor, or the one that it shares, from its file."""
        one = self.find(name)
        assert one is not None, name
        with safe_open(one.file, "pt") as tensors:
            return tensors.get_tensor(one.name)

    def source_of(self, name: str) -> str:
        """Return the name of a tensor, or of the one that it shares if it has none of its own."""
        return name if name in self.stored else self.tied.get(name, name)

    def forget_head(self) -> None:
        """Leave out the tensors of the head."""
        for name in self._head:
            self.stored.pop(name, None)
            self.tied.pop(name, None)

    def _layers_of(self, skeleton: Any) -> list[Any]:
        """Return the layers of a model that is one stack of them, each with weights of its own."""
        layers = layers_of(skeleton.base_model)
        if len(layers) != self.config.num_hidden_layers:
            raise UserError(f"The layers of '{self.label}' share their weights, so they cannot be divided.")
        return layers

    def depths(self) -> dict[str, float]:
        """Return the depth of each stored tensor in a layer, from 0 for the first layer to 1 for the last.

        The encoder and the decoder of an encoder-decoder have depths of their own.

        Raises:
            UserError: If the layers share their weights.
        """
        skeleton = self._make_skeleton()
        if reads_pairs(skeleton):
            stacks = [layers_of(stack) for stack in (skeleton.get_encoder(), skeleton.get_decoder())]
        else:
            stacks = [self._layers_of(skeleton)]
        names = {id(module): name for name, module in skeleton.named_modules()}
        depths = {
            f"{names[id(layer)]}.": number / max(1, len(layers) - 1)
            for layers in stacks
            for number, layer in enumerate(layers)
        }
        return {  # by the beginnings of names, since files of models with experts can have other ends
            name: depth
            for name in self.stored
            for place, depth in depths.items()
            if name.startswith(place) or f"{self._prefix}{name}".startswith(place)
        }

    def first_layers(self, count: int) -> set[str]:
        """Return the names of the parameters before the layers, which are the embeddings, and of the first layers.

        Raises:
            UserError: If the model has fewer layers, or layers that share their weights.
        """
        skeleton = self._make_skeleton()
        layers = self._layers_of(skeleton)
        if count > len(layers):
            raise UserError(f"'{self.label}' has {len(layers)} layers, so --layers can be at most that, not {count}.")
        inside = {id(value): number for number, layer in enumerate(layers) for value in layer.parameters()}
        names = {id(value): name for name, value in skeleton.named_parameters()}
        found: set[str] = set()
        before = True
        for value in skeleton.base_model.parameters():
            number = inside.get(id(value))
            before = before and number is None
            if before or (number is not None and number < count):
                found.add(self.source_of(self.resolve(names[id(value)])))
        return found

    def is_head(self, name: str) -> bool:
        """Return whether a tensor is part of a head, where the architecture has one."""
        return name in self._head

    def is_unused(self, name: str) -> bool:
        """Return whether the output does not depend on a tensor: poolers, constants, and what no module reads."""
        if any(part in f".{name}" for part in IGNORED_WEIGHTS):
            return True
        encoder = (own for own in self._names - self._head if ".pooler." not in f".{own}")
        return name not in self._names and all(map(self.find, encoder))


def match(first: Checkpoint, other: Checkpoint, joins_tasks: bool = False) -> list[str]:
    """Check that another model can be merged with the first, which determines the tensors of the result.

    Args:
        first: The first model.
        other: Another model.
        joins_tasks: Whether models of different tasks can be merged; the head of the first one is then kept.

    Returns:
        Notes on what is not merged.

    Raises:
        UserError: If the models differ in their architecture, or in a tensor that has to be merged.
    """
    kinds = [model.config.model_type for model in (first, other)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"'{first.label}' is a model of the type {kinds[0]}, '{other.label}' one of the type {kinds[1]}; merge "
            "models of the same architecture."
        )
    notes = _compare_settings(first, other, joins_tasks)
    kept = [name for name in first.stored if _is_kept(first, other, name)]
    dropped = [name for name in other.stored if name not in first.stored and _is_dropped(first, other, name)]
    if kept:
        notes.append(f"Kept as in '{first.label}', since '{other.label}' has no such weights: {_list(kept)}.")
    if dropped:
        notes.append(f"Left out, since only '{other.label}' has them: {_list(dropped)}.")
    if first.rows > other.rows:
        notes.append(
            f"The embeddings of '{first.label}' have {first.rows - other.rows:,} more rows than those of "
            f"'{other.label}'; these are kept."
        )
    elif first.rows < other.rows:
        notes.append(
            f"The embeddings of '{first.label}' have {other.rows - first.rows:,} fewer rows than those of "
            f"'{other.label}'; the others are left out."
        )
    return notes


def _is_kept(first: Checkpoint, other: Checkpoint, name: str) -> bool:
    """Return whether a tensor of the first model is kept since the other has none, or constants that differ."""
    one, found = first.stored[name], other.find(name)
    if found is None:
        if first.is_unused(name) or (first.trains_missing_head and first.is_head(name)):
            return True
        raise UserError(_missing(name, first, other))
    if found.shape != one.shape and (first.rows, *one.shape[1:], other.rows) != (*one.shape, found.shape[0]):
        raise UserError(
            f"{name} has the shape {one.shape} in '{first.label}', but {found.shape} in '{other.label}'; merge models "
            "of the same size."
        )
    return not one.dtype.is_floating_point and not torch.equal(first.read(name), other.read(name))


def _is_dropped(first: Checkpoint, other: Checkpoint, name: str) -> bool:
    """Return whether a tensor that the first model does not store is left out; otherwise it is a copy."""
    if source := first.tied.get(name):
        if torch.equal(other.read(name), other.read(source)):
            return False
        raise UserError(
            f"'{first.label}' shares {name} with {source}, but '{other.label}' has weights of its own there; merge "
            "models that agree in tie_word_embeddings."
        )
    if other.is_unused(name) or (other.is_head(name) and first.trains_missing_head):
        return True
    raise UserError(_missing(name, other, first))


def _compare_settings(first: Checkpoint, other: Checkpoint, joins_tasks: bool) -> list[str]:
    """Return notes on settings in which the configurations differ; leave out a head that has other labels."""
    ours, theirs = first.config.to_dict(), other.config.to_dict()
    for name in STRUCTURE:
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"{name} is {ours.get(name)} in '{first.label}', but {theirs.get(name)} in '{other.label}'; merge "
                "models of the same architecture."
            )
    if ours.get("architectures") == theirs.get("architectures") and ours.get("id2label") != theirs.get("id2label"):
        if not joins_tasks:
            raise UserError(f"'{first.label}' and '{other.label}' have different labels; merge models of one task.")
        other.forget_head()
    names = sorted(
        name
        for name in ours.keys() & theirs.keys()
        if ours[name] != theirs[name] and name not in OTHER_SETTINGS and "dropout" not in name
    )
    return [
        f"{name} is {ours[name]} in '{first.label}', which the result has, but {theirs[name]} in '{other.label}'."
        for name in names
    ]


def _missing(name: str, has: Checkpoint, lacks: Checkpoint) -> str:
    return (
        f"'{has.label}' has the tensor {name}, but '{lacks.label}' does not; merge models that come from the same "
        "base model."
    )


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names):,} tensors, such as {names[0]}"


def write_weights(
    folder: Path, tensors: Mapping[str, Stored], compute: Callable[[str], Tensor], max_shard_bytes: int
) -> None:
    """Write tensors to ``safetensors`` files, each as soon as it is computed, so that memory holds one of them.

    The functions of ``safetensors`` take all tensors of a file at once. Its format is a JSON header with types, shapes
    and offsets, which are known beforehand, and then the bytes of the tensors.

    Args:
        folder: An existing folder.
        tensors: Name, type and shape of the tensors.
        compute: Function that returns the tensor of a name in its type and shape.
        max_shard_bytes: Maximum size of a file, unless a single tensor is larger.
    """
    codes = {dtype: code for code, dtype in TYPES.items()}
    shapes = {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in tensors.items()}
    split = split_torch_state_dict_into_shards(shapes, max_shard_size=max_shard_bytes)
    for file, names in split.filename_to_tensors.items():
        names.sort(key=lambda name: -tensors[name].dtype.itemsize)  # keeps every tensor aligned
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in names:
            start, end = end, end + shapes[name].nbytes
            header[name] = {
                "dtype": codes[tensors[name].dtype],
                "shape": tensors[name].shape,
                "data_offsets": [start, end],
            }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                check_stop()
                value = compute(name)
                assert (value.dtype, value.shape) == (tensors[name].dtype, tensors[name].shape), name
                out.write(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if split.is_sharded:
        write_json(folder / INDEX_FILE, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
