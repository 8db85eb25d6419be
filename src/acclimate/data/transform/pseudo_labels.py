"""Documents with the labels that a fine-tuned model gives them (Meng et al., Findings of ACL 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.files import atomic_file, cache_folder
from acclimate.base.progress import Progress, silence_transformers
from acclimate.base.ranking import best_first, content_ranks
from acclimate.base.records import fingerprint, texts_fingerprint
from acclimate.data.operations import EXAMPLES, TRANSFORMS, Context, Transform
from acclimate.data.pool import Document, Documents
from acclimate.data.tokenizing import read_as_text
from acclimate.models.checkpoints import UNREADABLE, from_pretrained, load_config, load_error, model_fingerprint
from acclimate.models.families import longest_text
from acclimate.models.loading import check_encoder_weights, fit_tokenizer, load_tokenizer

BLOCK, BATCH = 256, 16
"""Documents that are tokenized at once, and documents of similar length that the model reads at once."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MULTI_LABEL, OUTSIDE = "multi_label_classification", "O"


def load_fine_tuned(path: str, auto: Any, max_length: int) -> tuple[Any, Any, int]:
    """Load a fine-tuned model on the default device.

    Args:
        path: A model folder, or a name on the Hub.
        auto: The auto class of the model.
        max_length: Maximum tokens per text.

    Returns:
        The model, its tokenizer, which reads special tokens in a text as text, and the tokens that it reads per text.

    Raises:
        UserError: If it cannot be loaded, or weights are missing.
    """
    tokenizer = load_tokenizer(path)
    try:
        with silence_transformers():
            model, info = from_pretrained(auto, path, load_config(path), dtype=torch.float32)
    except UNREADABLE as error:
        raise UserError(f"'{path}' cannot be loaded as a fine-tuned model: {load_error(error, path)}") from error
    if fresh := check_encoder_weights(model, info, path):
        raise UserError(f"The fine-tuned model '{path}' lacks weights, such as {min(fresh)}; fine-tune it again.")
    fit_tokenizer(tokenizer, model, path)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "right"
    model.config.pad_token_id = tokenizer.pad_token_id  # decoders find the last token of a text by it
    length = min(max_length, longest_text(model) or max_length, tokenizer.model_max_length)
    return to_device(model).eval(), read_as_text(tokenizer), length


def has_head(path: str, head: str) -> bool:
    """Return whether a checkpoint has a head of a kind, such as ``ForSequenceClassification``."""
    return any(name.endswith(head) for name in load_config(path).architectures or [])


class Labeler:
    """A fine-tuned classifier of texts.

    Attributes:
        labels: Names of its classes.
        is_multi_label: Whether a text can have any number of them.
        max_length: Maximum tokens that it reads per text; the rest of a longer text is ignored.
    """

    def __init__(self, path: str, max_length: int) -> None:
        """Load a classifier.

        Raises:
            UserError: If it cannot be loaded, or is no classifier with at least two classes.
        """
        config = load_config(path)
        if not has_head(path, "ForSequenceClassification"):
            raise UserError(f"'{path}' is no classifier of texts; fine-tune it first, with acclimate finetune --out.")
        self.is_multi_label = config.problem_type == MULTI_LABEL
        if config.problem_type == "regression" or len(config.id2label) < 2:
            raise UserError(f"'{path}' predicts numbers, not labels.")
        self.labels = [str(config.id2label[place]) for place in range(len(config.id2label))]
        loaded = load_fine_tuned(path, AutoModelForSequenceClassification, max_length)
        self._model, self._tokenizer, self.max_length = loaded

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of every class, and whether texts were truncated: (texts, classes) and (texts,)."""
        whole = self._tokenizer(list(texts), verbose=False)["input_ids"]
        lengths = np.array([len(ids) for ids in whole])
        found = np.zeros((len(texts), len(self.labels)), np.float32)
        order = np.argsort(lengths, kind="stable")
        for places in (order[first : first + BATCH] for first in range(0, len(order), BATCH)):
            batch = [texts[place] for place in places]
            inputs = self._tokenizer(
                batch, truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
            )
            logits = self._model(**inputs.to(self._model.device)).logits.float()
            found[places] = (logits.sigmoid() if self.is_multi_label else logits.softmax(-1)).cpu().numpy()
        if not np.isfinite(found).all():
            raise UserError("The classifier returns NaN or infinity.")
        return found, lengths > self.max_length


class EntityLabeler:
    """A fine-tuned model that marks entities, and reads long texts in overlapping windows."""

    def __init__(self, path: str, max_length: int) -> None:
        """Load a model.

        Raises:
            UserError: If it cannot be loaded.
        """
        from transformers import pipeline

        model, tokenizer, length = load_fine_tuned(path, AutoModelForTokenClassification, max_length)
        tokenizer.model_max_length = length
        self._pipeline: Any = pipeline(
            "token-classification",
            model=model,
            tokenizer=tokenizer,
            aggregation_strategy="first",
            stride=length // 4,
            ignore_labels=[],
            device=model.device,
        )

    def entities(self, texts: Sequence[str]) -> list[tuple[list[dict[str, Any]], float]]:
        """Return the entities of each text, and the lowest probability of a part of it, entity or not."""
        found = []
        for parts in self._pipeline(list(texts), batch_size=BATCH):
            spans = [
                {"start": int(part["start"]), "end": int(part["end"]), "label": str(part["entity_group"])}
                for part in parts
                if part["entity_group"] != OUTSIDE
            ]
            found.append((spans, min((float(part["score"]) for part in parts), default=0.0)))
        return found


@TRANSFORMS.register(
    "pseudo_labels",
    paper="transfer labeling, Meng et al., Findings of ACL 2023",
    summary="documents with the labels that a fine-tuned model is sure of",
)
@dataclass(frozen=True)
class PseudoLabels(Transform):
    """Adds the label that a model predicts to each document, and drops documents of low confidence.

    The result is a table of ``text`` and ``label`` that ``finetune`` reads as a task; a model of entities writes
    ``spans`` with ``start``, ``end`` and ``label`` instead. A model that was fine-tuned on
    general data labels the text of the domain; another is fine-tuned on these labels and then on the few true ones
    (``finetune --first``). The predictions are cached, so that other thresholds cost no further pass.

    Attributes:
        model: The classifier or model of entities: the output of ``acclimate finetune``, or a name on the Hugging Face
            Hub.
        confidence: Minimum probability of the label. In a multi-label task, every label must be at least this
            probable or improbable; with entities, every part of the text, entity or not.
        most: Maximum documents per label (in a multi-label task, per set of labels), the most confident ones;
            None for no limit. It keeps a frequent label from crowding out the others.
        max_length: Maximum tokens that the model reads per document.
    """

    main: ClassVar[str] = "model"
    models: ClassVar[tuple[str, ...]] = ("model",)
    model: str = ""
    confidence: float = 0.9
    most: int | None = None
    max_length: int = 256

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("Transform 'pseudo_labels' needs model, a fine-tuned classifier.")
        if not 0 <= self.confidence < 1:
            raise UserError(
                f"Transform 'pseudo_labels': confidence is at least 0 and below 1, not {self.confidence:g}."
            )
        if self.max_length < 4 or (self.most is not None and self.most < 1):
            raise UserError("Transform 'pseudo_labels': max_length is at least 4, and most at least 1.")

    def apply(self, documents: Documents, context: Context) -> Iterator[Document]:
        """Label the documents."""
        if has_head(self.model, "ForTokenClassification"):
            yield from self._mark_entities(documents, context)
            return
        labeler = Labeler(self.model, self.max_length)
        probabilities, truncated = self._predict(labeler, documents, context.progress)
        if labeler.is_multi_label:
            chosen = probabilities > 0.5
            confidence = np.maximum(probabilities, 1 - probabilities).min(axis=1)
        else:
            chosen = np.eye(len(labeler.labels), dtype=bool)[probabilities.argmax(axis=1)]
            confidence = probabilities.max(axis=1)
        kept = self._keep(chosen, confidence, content_ranks(documents))
        counts = zip(labeler.labels, chosen.sum(axis=0).tolist(), chosen[kept].sum(axis=0).tolist(), strict=True)
        context.notes.update(
            confidence=_quantiles(confidence),
            labels={name: {"predicted": predicted, "kept": left} for name, predicted, left in counts},
            truncated=int(truncated.sum()),
            dropped=[documents[place] for place in np.setdiff1d(np.arange(len(documents)), kept)[:EXAMPLES].tolist()],
        )
        for place in kept.tolist():
            names = [name for name, has in zip(labeler.labels, chosen[place], strict=True) if has]
            label = names if labeler.is_multi_label else names[0]
            yield Document(documents[place], {"label": label, "confidence": round(float(confidence[place]), 4)})

    def _mark_entities(self, documents: Documents, context: Context) -> Iterator[Document]:
        """Yield the documents with their entities."""
        if self.most is not None:
            raise UserError("Transform 'pseudo_labels': most limits documents per label, and not those with entities.")
        labeler = EntityLabeler(self.model, self.max_length)
        predicted, kept, confidences, dropped = Counter[str](), Counter[str](), list[float](), list[str]()
        with Progress("Labeling documents", len(documents), unit="documents", enabled=context.progress) as bar:
            for first in range(0, len(documents), BLOCK):
                texts = documents[first : first + BLOCK]
                for text, (spans, confidence) in zip(texts, labeler.entities(texts), strict=True):
                    names = [span["label"] for span in spans]
                    confidences.append(confidence)
                    predicted.update(names)
                    if confidence >= self.confidence:
                        kept.update(names)
                        yield Document(text, {"spans": spans, "confidence": round(confidence, 4)})
                    elif len(dropped) < EXAMPLES:
                        dropped.append(text)
                bar.update(len(confidences))
        context.notes.update(
            confidence=_quantiles(np.array(confidences)),
            labels={name: {"predicted": count, "kept": kept[name]} for name, count in predicted.most_common()},
            dropped=dropped,
        )

    def _keep(self, chosen: np.ndarray, confidence: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return the positions of the documents to keep (n,), in their order.

        Args:
            chosen: Whether each document has each label (documents, classes).
            confidence: Confidence of each document (documents,).
            ranks: Rank of each document among equally confident ones (documents,).
        """
        order = best_first(confidence, ranks)
        order = order[confidence[order] >= self.confidence]
        if self.most is not None:
            counts, kept = dict[bytes, int](), list[int]()
            for place in order.tolist():
                label = chosen[place].tobytes()
                counts[label] = counts.get(label, 0) + 1
                if counts[label] <= self.most:
                    kept.append(place)
            order = np.array(kept, dtype=np.int64)
        return np.sort(order)

    def _predict(self, labeler: Labeler, documents: Documents, progress: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities, and whether documents were truncated, from the cache if they are there."""
        key = fingerprint([model_fingerprint(self.model), labeler.max_length, texts_fingerprint(documents)])
        file = cache_folder() / "scores" / f"labels-{key}.npz"
        if file.is_file():
            with np.load(file) as found:
                return found["probabilities"], found["truncated"]
        blocks = list[tuple[np.ndarray, np.ndarray]]()
        with Progress("Labeling documents", len(documents), unit="documents", enabled=progress) as bar:
            for first in range(0, len(documents), BLOCK):
                blocks.append(labeler.probabilities(documents[first : first + BLOCK]))
                bar.update(min(first + BLOCK, len(documents)))
        probabilities, truncated = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        with atomic_file(file) as stream:
            np.savez(stream, probabilities=probabilities, truncated=truncated)
        return probabilities, truncated


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {f"{q:g}": round(float(np.quantile(values, q)), 4) for q in QUANTILES}
