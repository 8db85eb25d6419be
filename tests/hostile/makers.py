"""Small hostile files: each function returns a function that writes them into a folder."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from safetensors.numpy import load_file, save_file

from tests.hostile.runner import Maker
from tests.tiny import TEXTS, decoder_tokenizer, save_tiny

ROWS = [{"text": text, "label": "good" if number % 2 else "bad"} for number, text in enumerate(TEXTS)]
SCORES = [{"text": "good", "label": 4.5}, {"text": "bad", "label": 1.25}]
STUDY: dict[str, Any] = {
    "models": ["bert"],
    "methods": ["none", "mlm"],
    "seeds": 1,
    "domains": [{"name": "d", "corpus": "text.txt", "heldout": "text.txt", "tasks": ["task"]}],
    "adapt": {"steps": 1, "batch_size": 4, "max_length": 16, "precision": "fp32"},
    "finetune": {"epochs": 1, "max_length": 16, "precision": "fp32"},
    "evaluate": {"documents": 4, "max_length": 16, "masked_texts": 0},
}


def ordinary(folder: Path, model: Path) -> None:
    """Write the inputs that every case has: ``bert``, ``text.txt``, ``task`` and ``study.yaml``."""
    shutil.copytree(model, folder / "bert")
    (folder / "text.txt").write_text("".join(f"{text} {number}\n" for text in TEXTS for number in range(3)))
    (folder / "home").mkdir()
    task(ROWS)(folder)
    study()(folder)


CHAT_TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{{ eos_token if turn.role == 'assistant' }}"
    "{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
)


def decoder(template: str | None = CHAT_TEMPLATE, **changes: Any) -> Maker:
    """Write ``llama``, a decoder, with a chat template and some entries of its configuration changed."""

    def make(folder: Path) -> None:
        save_tiny("llama", folder / "llama")
        tokenizer = decoder_tokenizer()
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder / "llama")
        path = folder / "llama" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return make


def put(name: str, content: Any) -> Maker:
    """Write a file; ``content`` is bytes, text or values for JSON."""

    def make(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return make


def several(*makers: Maker) -> Maker:
    """Call several makers."""
    return lambda folder: [make(folder) for make in makers]


def lines(rows: Sequence[Any]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def task(train: Any, test: Any = None, ending: str = ".jsonl") -> Maker:
    """Write the splits of ``task``, each from rows, or from the content of the file."""

    def make(folder: Path) -> None:
        shutil.rmtree(folder / "task", ignore_errors=True)
        for split, content in (("train", train), ("test", train if test is None else test)):
            text = content if isinstance(content, bytes | str) else lines(content)
            put(f"task/{split}{ending}", text)(folder)

    return make


def study(**changes: Any) -> Maker:
    """Write ``study.yaml`` with some keys replaced. JSON is valid YAML."""
    return put("study.yaml", {**STUDY, **changes})


def study_text(text: str, *without: str) -> Maker:
    """Write ``study.yaml`` with raw YAML instead of some keys."""
    kept = "".join(f"{key}: {json.dumps(value)}\n" for key, value in STUDY.items() if key not in without)
    return put("study.yaml", kept + text + "\n")


def study_domain(**changes: Any) -> Maker:
    """Write ``study.yaml`` with some keys of its domain replaced."""
    return study(domains=[{**STUDY["domains"][0], **changes}])


def config(**changes: Any) -> Maker:
    """Change entries of the configuration of ``bert``."""

    def make(folder: Path) -> None:
        path = folder / "bert" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return make


def peft_folder(folder: Path) -> None:
    """Write an adapter without its base model, as ``peft`` saves it."""
    put("bert-adapter/adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "bert"})(folder)


def broken_decoder(folder: Path) -> None:
    """Write a decoder of which all weights are not numbers."""
    decoder()(folder)
    path = folder / "llama" / "model.safetensors"
    save_file({name: value * np.nan for name, value in load_file(path).items()}, path, metadata={"format": "pt"})


def weights(change: Callable[[str, np.ndarray], tuple[str, np.ndarray] | None]) -> Maker:
    """Change name and value of the weights of ``bert``; a weight for which ``change`` returns None is removed."""

    def make(folder: Path) -> None:
        path = folder / "bert" / "model.safetensors"
        changed = [change(name, value) for name, value in load_file(path).items()]
        save_file(dict(entry for entry in changed if entry), path, metadata={"format": "pt"})

    return make


def cut(name: str, share: float = 0.5) -> Maker:
    """Cut a file short."""

    def make(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return make


def remove(name: str) -> Maker:
    """Remove a file."""
    return lambda folder: (folder / name).unlink()


def fifo(name: str) -> Maker:
    """Make a named pipe that nobody writes to, instead of a file if there is one."""

    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def link(name: str, target: str) -> Maker:
    """Make a symbolic link."""

    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(target)

    return make


def folder_of(name: str, mode: int = 0o755) -> Maker:
    """Make a folder with some permissions."""

    def make(folder: Path) -> None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(mode)

    return make


def mode(name: str, permissions: int) -> Maker:
    """Change the permissions of an existing file or folder."""
    return lambda folder: (folder / name).chmod(permissions)


def bytes_name(text: str = "".join(f"{text}\n" for text in TEXTS)) -> Maker:
    """Make a folder ``odd`` with a text file whose name is not UTF-8."""

    def make(folder: Path) -> None:
        (folder / "odd").mkdir()
        with open(os.fsencode(folder / "odd") + b"/caf\xe9.txt", "w") as file:
            file.write(text)

    return make


def other_endings(folder: Path) -> None:
    """Make a folder with a text file, and with files of other endings."""
    data = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    put("mixed/plain.txt", "\n".join(TEXTS))(folder)
    put("mixed/notes.docx", b"PK\3\4")(folder)
    put("mixed/old.txt.bz2", bz2.compress(data))(folder)
    put("mixed/part.csv.xz", b"\xfd7zXZ\0")(folder)


class Run:
    """An object whose pickle runs a command."""

    def __reduce__(self):
        """Create a file when the pickle is loaded."""
        return os.system, ("touch ran",)


def malicious_pickle(folder: Path) -> None:
    """Replace the weights of ``bert`` by a pickle that runs a command."""
    remove("bert/model.safetensors")(folder)
    put("bert/pytorch_model.bin", pickle.dumps(Run(), protocol=2))(folder)


def own_code(folder: Path) -> None:
    """Add code to ``bert`` that runs when the model is loaded with trust."""
    put("bert/modeling.py", "open('ran', 'w')\n")(folder)
    config(model_type="hostile", auto_map={"AutoConfig": "modeling.C", "AutoModelForMaskedLM": "modeling.M"})(folder)


def parquet_labels(folder: Path) -> None:
    """Write a task whose train split is a CSV file with ``True`` and whose test split is Parquet with booleans."""
    shutil.rmtree(folder / "task")
    put("task/train.csv", "text,label\ngood,True\nbad,False\n")(folder)
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a", "b"], "label": [True, False]}), folder / "task/test.parquet"
    )


def mixed_numbers(folder: Path) -> None:
    """Write a task whose labels are 1.0 and 0.0 in CSV, and 1 and 0 in JSON lines."""
    task([{"text": "a", "label": 1}, {"text": "b", "label": 0}])(folder)
    remove("task/train.jsonl")(folder)
    put("task/train.csv", "text,label\ngood,1.0\nbad,0.0\n")(folder)


def label_no(folder: Path) -> None:
    """Write a study with the label ``no``, which YAML 1.1 reads as false."""
    task([{"text": "a", "label": "no"}, {"text": "b", "label": "yes"}])(folder)
    study_text("domains: [{name: d, corpus: text.txt, tasks: [{path: task, negative: no}]}]", "domains")(folder)


def saved_data_set(folder: Path) -> None:
    """Write a task as ``DatasetDict.save_to_disk`` of ``datasets`` does, as far as it matters."""
    shutil.rmtree(folder / "task")
    put("task/dataset_dict.json", {"splits": ["train", "test"]})(folder)
    table, name = pyarrow.table({"text": ["a", "b"], "label": [0, 1]}), "data-00000-of-00001.arrow"
    for split in ("train", "test"):
        put(f"task/{split}/state.json", {"_data_files": [{"filename": name}]})(folder)
        with pyarrow.ipc.new_stream(folder / "task" / split / name, table.schema) as file:
            file.write_table(table)


def sentence_transformer(folder: Path) -> None:
    """Move ``bert`` into the sub-folder in which old releases of sentence-transformers saved it."""
    (folder / "bert").rename(folder / "0_Transformer")
    (folder / "bert").mkdir()
    (folder / "0_Transformer").rename(folder / "bert" / "0_Transformer")
    put("bert/modules.json", [{"idx": 0, "path": "0_Transformer"}])(folder)


BOMB = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}' if level else 'x'] * 9)}]\n" for level in range(12))
"""YAML of 700 bytes that stands for 9 to the 12th entries."""
GZIP_CUT = gzip.compress(os.urandom(40_000).hex().encode())[:-40]
