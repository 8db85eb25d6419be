"""The model card: Hub metadata, Markdown sections, and results as ``model-index``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from acclimate.base.files import read_json, read_json_object, write_text
from acclimate.base.version import __version__
from acclimate.models.kinds import KINDS, find_kind

CARD_FILE = "README.md"
USAGE = "## How to use it"
SENTENCE_STEP = """Encode sentences:

```python
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer('{name}')
print(encoder.similarity(encoder.encode(["A sentence."]), encoder.encode(["Another sentence."])))
```"""
"""Next step with a sentence encoder, whatever the kind of its language model."""
LABELS_FILE = "labels.json"
"""File of a classifier of sentence vectors: the classes, in the order of the logits."""
AUXILIARY_FILE = "auxiliary.safetensors"
"""File of a classifier with auxiliary labels: the layer that predicts them."""
CLASSIFIER_STEP = """Classify texts:

```python
import json
from pathlib import Path
from sentence_transformers import SentenceTransformer

logits = SentenceTransformer('{name}').encode(["A text to classify."])
print(json.loads(Path('{name}', "labels.json").read_text())[logits[0].argmax()])
```"""
"""Next step with such a classifier, whose last module returns the logits."""
MARKDOWN_ESCAPES = str.maketrans({mark: f"\\{mark}" for mark in "\\|*_`<>[]#"})


@dataclass(frozen=True)
class Origin:
    """Properties that a model takes over from its base model.

    Attributes:
        base_model: Hub name of the base model.
        license: Identifier of the license.
        license_name: Name of the license, if the identifier is ``other``.
        license_link: URL of that license.
        language: Codes of the languages.
    """

    base_model: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    language: str | list[str] | None = None

    def metadata(self) -> dict[str, Any]:
        """Return what is known, by key of the card."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass
class Card:
    """A model card.

    Attributes:
        name: Name of the model.
        pipeline: Pipeline tag of the Hub, such as ``"text-classification"``.
        summary: A few sentences at the top.
        sections: Pairs of title and Markdown, in order.
        origin: The base model, and the license and languages that it passes on.
        tags: Search tags.
        datasets: Names of public datasets that the model was trained on.
        next_step: Next step with the model, as Markdown; ``{name}`` stands for the name to load it by.
        load_name: Name to load the model by, usually the name of its folder; by default the name of the model.
        length: Maximum tokens per text of its training, for a model of an end task.
        results: Results, as arguments of ``huggingface_hub.EvalResult``.
    """

    name: str
    pipeline: str
    summary: str
    sections: list[tuple[str, str]] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)
    tags: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    next_step: str = ""
    load_name: str = ""
    length: int = 128
    results: list[dict[str, Any]] = field(default_factory=list)

    def text(self, folder: Path) -> str:
        """Return the card as Markdown with YAML front matter.

        Args:
            folder: Folder of the model.
        """
        from huggingface_hub import EvalResult, ModelCardData

        encodes = encodes_sentences(folder)
        data = ModelCardData(
            **self.origin.metadata(),
            datasets=list(dict.fromkeys(self.datasets)) or None,
            library_name="sentence-transformers" if encodes else "transformers",
            pipeline_tag="sentence-similarity" if encodes and not _classifies(folder) else self.pipeline,
            tags=["acclimate", "domain-adaptation", *self.tags],
            model_name=self.name if self.results else None,
            eval_results=[EvalResult(**result) for result in self.results] or None,
        )
        head = f"---\n{data.to_yaml()}\n---\n"
        parts = [f"# {escape_markdown(self.name)}", self.summary, USAGE, self._usage(folder)]
        for title, body in self.sections:
            parts += [f"## {title}", body]
        return head + "\n" + "\n\n".join(parts) + f"\n\nWritten by acclimate {__version__}.\n"

    def write(self, folder: Path) -> Path:
        """Write the card as ``README.md``; return its path."""
        return write_text(folder / CARD_FILE, self.text(folder))

    def _usage(self, folder: Path) -> str:
        """Return how to load the model and what to do with it.

        It needs only transformers, unless the model has modules of this package.
        """
        from acclimate.models.checkpoints import describe_extensions
        from acclimate.models.saving import instructions

        config, source = read_json(folder / "config.json"), self.load_name or self.name
        if parts := describe_extensions(SimpleNamespace(**config)):
            kind = (config.get("architectures") or ["model"])[0]
            text = instructions(kind, parts, source, self.length)
            return text.replace("# A model", "**A model", 1).replace("acclimate\n", "acclimate.**\n", 1).strip()
        if encodes_sentences(folder):
            step = CLASSIFIER_STEP if _classifies(folder) else SENTENCE_STEP
            given = read_json_object(folder / "config_sentence_transformers.json") or {}
            step = step.replace("SentenceTransformer", given.get("model_type", "SentenceTransformer"))
            return step.replace("{name}", source)
        name = _auto_class(config.get("architectures") or [], self.pipeline)
        load = (
            f"```python\nfrom transformers import AutoTokenizer, {name}\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({source!r})\n"
            f"model = {name}.from_pretrained({source!r})\n```"
        )
        step = self.next_step.replace("{name}", source)
        return "\n\n".join(part for part in (load, step) if part)


def encodes_sentences(folder: Path) -> bool:
    """Return whether a model folder contains a sentence encoder."""
    return (folder / "modules.json").is_file()


def _classifies(folder: Path) -> bool:
    """Return whether the last module of a sentence encoder is a classifier."""
    return encodes_sentences(folder) and (folder / LABELS_FILE).is_file()


def _auto_class(architectures: Sequence[str], pipeline: str) -> str:
    """Return the name of the auto class that loads a model: ``AutoModelForX`` for an architecture ``...ForX``."""
    if kind := next(filter(None, map(find_kind, architectures)), None):
        return kind.auto_class
    head = next((name.partition("For")[2] for name in architectures if "For" in name), "")
    kinds = {kind.pipeline_tag: kind.auto_class for kind in KINDS.values()}
    return f"AutoModelFor{head}" if head else kinds.get(pipeline, "AutoModel")


def escape_markdown(text: Any) -> str:
    """Escape a value so that Markdown does not interpret it as markup."""
    return " ".join(str(text).split()).translate(MARKDOWN_ESCAPES)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table; None becomes an empty cell."""
    lines = [list(columns), ["---"] * len(columns)]
    lines += [["" if cell is None else escape_markdown(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def settings_table(values: Mapping[str, Any]) -> str:
    """Return a Markdown table of settings, without those that are None or empty."""
    given = {name: value for name, value in values.items() if value is not None and value not in ({}, [], ())}
    rows = [(name, ", ".join(map(str, v)) if isinstance(v, list | tuple) else v) for name, v in given.items()]
    return markdown_table(("setting", "value"), rows)


def format_bytes(count: int | None) -> str | None:
    """Format a number of bytes with a unit."""
    if count is None:
        return None
    if count < 1000:
        return f"{count} bytes"
    for unit in ("kB", "MB", "GB"):
        count_in = count / 1000 ** (("kB", "MB", "GB").index(unit) + 1)
        if count_in < 1000 or unit == "GB":
            break
    return f"{count_in:.1f} {unit}"


def find_origin(model: str | None) -> Origin:
    """Return what the card of a base model says; it is read from its folder or from the cache, without network.

    A folder that is itself an adapted model passes on its own base model.

    Args:
        model: Hub name or folder; None for a model that was trained from scratch.
    """
    if model is None:
        return Origin()
    name = hub_name(model)
    card = read_metadata(_cached(name) if name else Path(model) / CARD_FILE)
    found = {key: card[key] for key in ("license", "license_name", "license_link", "language") if card.get(key)}
    return Origin(base_model=name or _snapshot_name(Path(model)) or _named_base(Path(model), card), **found)


def _named_base(folder: Path, card: Mapping[str, Any]) -> str | None:
    """Return the base model that a card or a configuration names."""
    base = card.get("base_model")
    base = base[0] if isinstance(base, list) and base else base
    base = base or (read_json_object(folder / "config.json") or {}).get("_name_or_path")
    return hub_name(base) if isinstance(base, str) and base else None


def _cached(name: str) -> Path:
    """Return the card of a model in the cache of the Hub; the path of no file if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, CARD_FILE)
    return Path(found) if isinstance(found, str) else Path("/nonexistent", CARD_FILE)


def _snapshot_name(folder: Path) -> str | None:
    """Return the Hub name of a folder in the cache of the Hub, ``models--USER--NAME/snapshots/HASH``."""
    parts = folder.resolve().parts
    if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/")
    return None


def read_metadata(file: Path) -> dict[str, Any]:
    """Return the metadata of a card; nothing if there is none that can be read."""
    import yaml
    from huggingface_hub import metadata_load

    try:
        found = metadata_load(file) if file.is_file() else None
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def hub_name(model: str) -> str | None:
    """Return the Hub name of a model, or None for a local folder."""
    parts = model.split("/")
    if Path(model).exists() or len(parts) > 2 or not all(parts) or model.startswith((".", "~")):
        return None
    return model


def display_name(model: str) -> str:
    """Return the Hub name of a model, or the last part of a local path."""
    return hub_name(model) or Path(model).name


def adapter_section(adapter: Mapping[str, Any], staged: bool) -> list[tuple[str, str]]:
    """Say what trained, and how far the merged model is from it."""
    if low_rank := "r" in adapter["settings"]:
        size = f"rank {adapter['settings']['r']}, alpha {adapter['settings']['alpha']:g}"
    else:
        size = adapter["place"]
    place = " The adapter itself is in the folder `adapter`, in the format of peft." if low_rank and not staged else ""
    text = (
        f"An adapter (`{adapter['kind']}`, {size}, {adapter['parameters']:,} parameters) was trained instead of the "
        f"weights, and merged into them in fp32.{place} On training texts, the logits of this model differ by "
        f"{_logit_difference(adapter['difference'])} from the logits of the base model with its "
        f"adapter, which itself changes them by {_logit_difference(adapter['change'])}."
    )
    if "quantization" in adapter:
        text += (
            " The adapter was trained on weights in four bits and merged into the original ones, so the logits differ "
            f"from those during training by {_logit_difference(adapter['quantization'])}."
        )
    return [("Adapter", text)]


def _logit_difference(logits: Mapping[str, float]) -> str:
    return f"{logits['relative']:.1g} of their norm ({logits['absolute']:.1g} at most)"


def similarity_section(changes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Say how far the embeddings of a sentence encoder show similarity."""
    names = {"mrr": "mean reciprocal rank", "spearman": "Spearman correlation", "ndcg@10": "nDCG@10 of retrieval"}
    rows = [
        (
            *(change["name"], f"{change['pairs']:,}", names[change["metric"]]),
            *(f"{change[side]:.3f}" for side in ("before", "after")),
            f"{change['difference']:+.3f}",
            f"{change['low']:+.3f} to {change['high']:+.3f}",
        )
        for change in changes
    ]
    intro = (
        "Sentence embeddings before and after, with the pooling of the base model; higher is better. With scores: "
        "correlation of similarity and score. Without: the rank of the partner of each sentence among all others; the "
        "partner of a neighbour pair is the next sentence of the document. Intervals of 95 % over pairs or queries."
    )
    columns = ("pairs of", "pairs", "metric", "before", "after", "difference", "95 % interval")
    return [("Sentence similarity", f"{intro}\n\n{markdown_table(columns, rows)}")]


def describe_references(references: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return text and table of what a model is compared with, such as BM25, in percent; empty if there is nothing."""
    if not references:
        return []
    names = [name for name in next(iter(references.values())) if name != "difference"]
    rows = []
    for other, found in references.items():
        shown = [f"{100 * found['difference'][part]:.1f}" for part in ("difference", "low", "high")]
        rows.append((other, *(f"{100 * found[name]:.1f}" for name in names), *shown))
    intro = f"For comparison, and the difference of this model in {names[0]} with its interval over test items."
    return [intro, markdown_table(("model", *names, "difference", "from", "to"), rows)]
