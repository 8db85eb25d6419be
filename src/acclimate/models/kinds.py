"""Kinds of language models: what differs between masked, causal and seq2seq ones, in one object per kind.

This module imports neither torch nor transformers, so that reports can use its names without loading them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acclimate.base.errors import UserError, unknown_name_error

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

IGNORE_INDEX = -100
"""Label of a position whose token is not predicted."""


@dataclass(frozen=True)
class ModelKind:
    """The properties of a kind of language model.

    Attributes:
        name: Name of the kind.
        auto_class: The auto class of ``transformers`` that loads it.
        class_suffixes: How the names of its classes end.
        pipeline_tag: Pipeline tag on the Hugging Face Hub.
        task_name: The task of the pipeline tag in words.
        term: Name of the loss term in logs and results.
        loss_name: Name of the held-out loss in text.
        loss_unit: Its unit.
        trains_missing_head: Whether a head that a checkpoint lacks is initialized and trained before use. Otherwise
            such a checkpoint is refused.
        targets: Function of token ids and text indices (-1 at padding), both (rows, tokens). It returns the token that
            the logits at each position should predict, or :data:`IGNORE_INDEX` (rows, tokens). None if a masking
            strategy chooses the targets.
        replays_general_text: Whether adaptations in a study replay its general text by default.
        frames_documents: Whether special tokens mark the beginning and the end of documents, so that a model learns
            where they end; otherwise they are around every row. Only such documents can be joined.
        layout: Default layout of the rows.
        max_length: Default maximum tokens per text.
        pairs: Whether a corruption makes a source and a target of each text: an encoder reads the source, and a
            decoder predicts the target.
        next_step: What to do with such a model, for its card, as Markdown; ``{name}`` stands for its name.
    """

    name: str
    auto_class: str
    class_suffixes: tuple[str, ...]
    pipeline_tag: str
    task_name: str
    term: str
    loss_name: str
    loss_unit: str
    trains_missing_head: bool
    targets: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    replays_general_text: bool = False
    frames_documents: bool = False
    layout: Literal["padded", "packed"] = "padded"
    max_length: int = 128
    pairs: bool = False
    next_step: str = ""

    @property
    def uses_masking(self) -> bool:
        """Whether a masking strategy hides tokens of the input."""
        return self.targets is None


MASKED = ModelKind(
    name="masked",
    auto_class="AutoModelForMaskedLM",
    class_suffixes=("ForMaskedLM", "WithLMHeadModel"),
    pipeline_tag="fill-mask",
    task_name="Masked Language Modelling",
    term="mlm",
    loss_name="masked-LM loss",
    loss_unit="nats per masked token",
    trains_missing_head=True,
    next_step="""Fine-tune it on a task with labels:

```console
$ acclimate finetune --model {name} --task TASK --out tuned/
```

or with any program that fine-tunes an encoder of `transformers`:

```python
from transformers import AutoModelForSequenceClassification

classifier = AutoModelForSequenceClassification.from_pretrained('{name}', num_labels=2)
```""",
)


def next_tokens(ids: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Return the next token of the same text at each position, or :data:`IGNORE_INDEX` at the last (rows, tokens)."""
    import numpy as np

    targets = np.full_like(ids, IGNORE_INDEX)
    follows = (text[:, 1:] == text[:, :-1]) & (text[:, 1:] >= 0)
    targets[:, :-1] = np.where(follows, ids[:, 1:], IGNORE_INDEX)
    return targets


CAUSAL = ModelKind(
    name="causal",
    auto_class="AutoModelForCausalLM",
    class_suffixes=("ForCausalLM", "LMHeadModel"),
    pipeline_tag="text-generation",
    task_name="Text Generation",
    term="clm",
    loss_name="causal-LM loss",
    loss_unit="nats per token",
    trains_missing_head=False,
    targets=next_tokens,
    replays_general_text=True,
    frames_documents=True,
    layout="packed",
    max_length=1_024,
    next_step="""Let it write:

```python
from transformers import pipeline

write = pipeline("text-generation", model='{name}')
print(write("The results show that", max_new_tokens=40)[0]["generated_text"])
```

or fine-tune it on a task with labels:

```console
$ acclimate finetune --model {name} --task TASK --out tuned/
```""",
)
SEQ2SEQ = ModelKind(
    name="seq2seq",
    auto_class="AutoModelForSeq2SeqLM",
    class_suffixes=("ForConditionalGeneration",),
    pipeline_tag="text2text-generation",
    task_name="Text2Text Generation",
    term="denoising",
    loss_name="denoising loss",
    loss_unit="nats per target token",
    trains_missing_head=False,
    max_length=512,
    pairs=True,
    next_step="""Fine-tune it on a task whose answers are texts:

```console
$ acclimate finetune --model {name} --task TASK --task-kind generation --out tuned/
```

or with any program that fine-tunes an encoder-decoder of `transformers`:

```python
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained('{name}')
```""",
)
WITHOUT_LM_HEAD = re.compile(r"(Model(?<!LMHeadModel)|Encoder|For\w+(?<!LM)(?<!Generation))$")
"""Endings of the class names of bare encoders and of models of end tasks."""
KINDS: dict[str, ModelKind] = {}
"""The registered kinds, by name."""


def register_kind(kind: ModelKind) -> ModelKind:
    """Register a kind of language model, so that its checkpoints are recognized.

    Raises:
        ValueError: If another kind has that name.
    """
    if KINDS.setdefault(kind.name, kind) != kind:
        raise ValueError(f"there is another kind of language models named '{kind.name}'")
    return kind


register_kind(MASKED)
register_kind(CAUSAL)
register_kind(SEQ2SEQ)


def loss_terms() -> list[str]:
    """Return the names of the language-model terms of all kinds."""
    return [kind.term for kind in KINDS.values()]


def get_kind(name: str) -> ModelKind:
    """Return a registered kind.

    Raises:
        UserError: If there is no kind of that name.
    """
    if name not in KINDS:
        raise unknown_name_error("kind of language model", name, KINDS)
    return KINDS[name]


def find_kind(class_name: str) -> ModelKind | None:
    """Return the kind of a class of models; None if it is not a language model of a registered kind."""
    return next((kind for kind in KINDS.values() if class_name.endswith(kind.class_suffixes)), None)


def class_names(architectures: Any) -> list[str]:
    """Return the names in the ``architectures`` of a configuration, which may hold anything."""
    return [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list | tuple) else []


def kind_of_checkpoint(architectures: Any, path: str | Path) -> ModelKind:
    """Return the kind of a checkpoint, given the ``architectures`` in its configuration, which may hold anything.

    Bare encoders, models of end tasks and checkpoints that name no class are masked language models without a head.

    Raises:
        UserError: If the checkpoint is a language model of another kind; ``path`` is for this message.
    """
    names = class_names(architectures)
    if found := next(filter(None, map(find_kind, names)), None):
        return found
    for name in names:
        if not WITHOUT_LM_HEAD.search(name):
            raise UserError(
                f"No language model could be loaded from '{path}': {name} is neither a language model of a kind that "
                f"acclimate knows ({', '.join(KINDS)}) nor an encoder or a model of an end task. "
                "Choose another model, or correct 'architectures' in its config.json."
            )
    return MASKED


def kind_of(model: PreTrainedModel) -> ModelKind:
    """Return the kind of a language model.

    Raises:
        UserError: If it is not a language model of a registered kind.
    """
    if found := find_kind(name := type(model).__name__):
        return found
    raise UserError(f"{name} is not a language model of a kind that acclimate knows: {', '.join(KINDS)}.")
