"""Multiple choice: encoders score each choice with a head, decoders by its likelihood after the question."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from acclimate.base.device import Precision, autocast, copy_to, host_copy, with_host_copy
from acclimate.base.errors import UserError, warn_once
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import Row
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.data.tokenizing import read_as_text
from acclimate.evaluation.calibration import calibration_metrics
from acclimate.evaluation.choice import ChoiceScoring, compare_choices
from acclimate.evaluation.likelihood import continuation_row
from acclimate.evaluation.lm_loss import TargetRow, read_for_scoring
from acclimate.evaluation.prefixes import shared_losses
from acclimate.evaluation.prompts import check_fields, fill
from acclimate.evaluation.scoring import Scoring
from acclimate.models.batching import training_tokens
from acclimate.models.checkpoints import load_config
from acclimate.models.encoding import encode
from acclimate.models.families import longest_text
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.tasks.head_model import HeadModel, check_finite, continuation_losses
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.choice.data import (
    ChoiceTask,
    Item,
    find_choice_groups,
    find_columns,
    holds_choices,
    read_answers,
    read_choices,
    read_unanswered,
)
from acclimate.tasks.loading import load_with_head
from acclimate.tasks.record import read_training

ABSENT = -1e4
"""Score of the choices that an item does not have; finite, so that its product with a probability of zero is zero."""
HEADS = ("ForMultipleChoice", "ForSequenceClassification")


@dataclass
class ChoiceModel(HeadModel):
    """A model that gives each choice of an item a score; the softmax over the scores are probabilities.

    A row is an item: the tokens of all its choices one after the other, each with the question, and their ``sizes``.
    """

    width: int = 2
    """Largest number of choices of an item."""

    pads_right: ClassVar[bool] = True
    trained: ClassVar[bool] = False
    """Whether the model can choose before it is trained on the task."""

    @abstractmethod
    def inputs(self, item: Item) -> list[dict[str, Any]]:
        """Return the model inputs of each choice (tokens,), and values of the whole choice such as its scale."""

    @abstractmethod
    def scores(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
        """Return the score of each choice: (choices,), from inputs (choices, tokens)."""

    def other_answers(self, item: Item, scores: np.ndarray) -> dict[str, int]:
        """Return what other ways to use the same scores would choose, by name."""
        return {}

    def features(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Return the model inputs of each item with the position of its correct choice.

        Questions that are too long lose the start of their context, which is reported.
        """
        self.truncated = 0
        rows = []
        for item in items:
            parts = self.inputs(item)
            row: dict[str, Any] = {"labels": item.answer, "sizes": [len(part["input_ids"]) for part in parts]}
            for name, value in parts[0].items():
                joined = [part[name] for part in parts]
                row[name] = np.concatenate(joined) if np.ndim(value) else joined
            rows.append(row)
        if self.truncated:
            warn_once(
                f"{self.truncated:,} of {len(items):,} questions are longer than {self.max_length} tokens with a "
                "choice, so they are read without the start of their text; max_length can raise this."
            )
        return rows

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to the most choices of an item in the task, and each choice to the longest.

        Returns:
            Tensors on the CPU by name: (items, choices, tokens); values of a choice (items, choices); values of an
            item (items,). The attention mask of choices that an item does not have is zero.
        """
        parts: list[dict[str, Any]] = []
        places: list[int] = []
        names = [name for name, value in rows[0].items() if isinstance(value, np.ndarray)]
        for number, row in enumerate(rows):
            for choice, stop in enumerate(np.cumsum(row["sizes"]).tolist()):
                tokens = slice(stop - row["sizes"][choice], stop)
                parts.append({name: row[name][tokens] for name in names})
                parts[-1]["attention_mask"] = [1] * row["sizes"][choice]
                places.append(number * self.width + choice)
        flat = super().collate(parts)
        for name, value in rows[0].items():
            if isinstance(value, list) and name != "sizes":
                flat[name] = torch.tensor([entry for row in rows for entry in row[name]])
        inputs = {}
        for name, value in flat.items():
            whole = value.new_zeros(len(rows) * self.width, *value.shape[1:])
            whole[places] = value
            inputs[name] = whole.unflatten(0, (len(rows), self.width))
        others = [name for name, value in rows[0].items() if not isinstance(value, np.ndarray | list)]
        return inputs | {name: torch.tensor([row[name] for row in rows]) for name in others}

    def run(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> SequenceClassifierOutput:
        """Return the scores (items, choices) as logits, and their cross-entropy if the correct choices are known."""
        mask = inputs["attention_mask"]
        host = host_copy(mask).flatten(0, 1)
        present = host[:, 0].nonzero()[:, 0]
        places = copy_to(present, mask.device)
        flat = {name: value.flatten(0, 1).index_select(0, places) for name, value in inputs.items() if value.dim() > 1}
        flat["attention_mask"] = with_host_copy(flat["attention_mask"], host[present])
        scores = self.scores(model, flat).float()
        table = scores.new_full((len(host),), ABSENT).index_copy(0, places, scores).view(mask.shape[:2])
        loss = nn.functional.cross_entropy(table, inputs["labels"]) if "labels" in inputs else None
        return SequenceClassifierOutput(loss=loss, logits=table)

    def micro_batches(self, rows: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
        """Cut the rows of a step, since an item has as many texts as choices."""
        budget = training_tokens(self.model, length=max(max(row["sizes"]) for row in rows))
        batches = [[rows[0]]]
        for row in rows[1:]:
            longest = max(max(other["sizes"]) for other in (*batches[-1], row))
            if longest * sum(len(other["sizes"]) for other in (*batches[-1], row)) > budget:
                batches.append([])
            batches[-1].append(row)
        return list(batches)

    def choose(self, items: Sequence[Item], precision: Precision) -> list[np.ndarray]:
        """Return the scores of the choices of each item.

        Raises:
            UserError: If the model returns NaN or infinity.
        """
        self.prepare()
        found = self.predict(self.features(items), precision)
        check_finite(found)
        return [table[: len(item.choices)].double().numpy() for table, item in zip(found, items, strict=True)]


class ChoiceEncoder(ChoiceModel):
    """An encoder with a head of one output, which reads context and question as one text and a choice as another."""

    def __post_init__(self) -> None:
        """Truncate at the start, where the context is."""
        super().__post_init__()
        self._padder.truncation_side = "left"

    def inputs(self, item: Item) -> list[dict[str, Any]]:
        """Return the tokens of the question with each choice."""
        read = self._padder(
            [item.text] * len(item.choices),
            list(item.choices),
            truncation="longest_first",
            max_length=self.max_length,
            return_token_type_ids=self.reads_segments,
        )
        if read.encodings is not None:
            self.truncated += any(encoding.overflowing for encoding in read.encodings)
        names = ["input_ids"] + ["token_type_ids"] * self.reads_segments
        return [{name: np.asarray(read[name][place]) for name in names} for place in range(len(item.choices))]

    def scores(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
        """Return the output of the head for each choice."""
        if type(model).__name__.endswith(HEADS[0]):
            inputs = {name: value[:, None] for name, value in inputs.items()}  # items of one choice
        logits: Tensor = model(**inputs).logits
        return logits[:, 0]


class ChoiceDecoder(ChoiceModel):
    """A causal language model; the score is the log-likelihood of a choice after the question, by its length.

    The score is the log-likelihood per character (``acc_norm`` of ``lm-eval``) times the mean number of characters of
    the choices of the item, so that scores of choices of equal length are log-likelihoods.
    """

    template: str | None = None
    """The prompt; None for the first usual one of each item."""
    solved: Sequence[Item] = ()
    """Solved examples that each prompt begins with."""

    trained: ClassVar[bool] = True
    token_targets: ClassVar[tuple[str, ...]] = ("continuation",)

    def inputs(self, item: Item) -> list[dict[str, Any]]:
        """Return the tokens of the prompt with each choice, and which of them are predicted.

        Raises:
            UserError: If a choice has no tokens.
        """
        shown = [
            f"{prompt_of(one, self.template)} {answers_of(one, self.template)[one.answer]}\n\n" for one in self.solved
        ]
        prompt = "".join([*shown, prompt_of(item, self.template)])
        before, _ = read_for_scoring(self.tokenizer, prompt)
        limit = self.max_length
        if shown:
            limit += len(read_for_scoring(self.tokenizer, "".join(shown))[0])
            limit = min(limit, longest_text(self.model) or limit)
        choices = answers_of(item, self.template)
        lengths = np.asarray([len(choice) for choice in choices], dtype=np.float32)
        rows, cut = [], False
        for choice, scale in zip(choices, (lengths.mean() / lengths).tolist(), strict=True):
            row, is_cut = continuation_row(self.tokenizer, before, f"{prompt} {choice}", limit)
            if not (row.labels != IGNORE_INDEX).any():
                raise UserError(f"The tokenizer finds no token in the choice {choice!r:.40}; fix or remove the row.")
            rows.append({"input_ids": row.ids, "continuation": row.labels, "scale": scale})
            cut |= is_cut
        self.truncated += cut
        return rows

    def scores(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
        """Return the log-likelihood of each choice times its scale."""
        host, wanted = host_copy(inputs["attention_mask"]), inputs["continuation"]
        text = torch.where(host > 0, torch.arange(len(host))[:, None], -1)
        hidden = encode(model, inputs["input_ids"], copy_to(text, wanted.device))
        total, _ = continuation_losses(model, hidden, wanted)
        return -total * inputs["scale"]

    def choose(self, items: Sequence[Item], precision: Precision) -> list[np.ndarray]:
        """Return the scores of the choices of each item; what choices have in common is read once."""
        self.prepare()
        features = self.features(items)
        rows: list[TargetRow] = []
        for row in features:
            stops = np.cumsum(row["sizes"])[:-1]
            parts = zip(np.split(row["input_ids"], stops), np.split(row["continuation"], stops), strict=True)
            rows += [TargetRow(*part) for part in parts]
        with autocast(precision, self.device):
            losses = iter(shared_losses(self.model, self.tokenizer, rows))
        found = [-np.array([next(losses)[0] for _ in row["scale"]]) * row["scale"] for row in features]
        check_finite(map(torch.from_numpy, found))
        return found

    def prepare(self) -> None:
        """Move the model to the default device, with the attention for it."""
        super().prepare()
        attach(self.model)

    def other_answers(self, item: Item, scores: np.ndarray) -> dict[str, int]:
        """Return the choices by the likelihood of the whole choice, and per token."""
        lengths = np.asarray([len(choice) for choice in answers_of(item, self.template)])
        whole = scores * lengths / lengths.mean()
        tokens = [int((part["continuation"] != IGNORE_INDEX).sum()) for part in self.inputs(item)]
        return {
            "likelihood of the whole choice": int(whole.argmax()),
            "likelihood per token": int((whole / tokens).argmax()),
        }


TEMPLATES = (
    "{context}\n\nQuestion: {question}\nAnswer:",  # as most benchmarks ask
    "{context}\n\n{question}",  # running text, which a base model has seen most of
    "{context}\n\nQuestion: {question}\nOptions:\n{options}\nAnswer:",  # the choices are read before they are scored
    "{context}\n\nQuestion: {question}\n{choices}\nAnswer:",  # letters, as MMLU asks
)
"""Usual prompts of questions. ``{options}``: the choices; ``{choices}``: with letters, one of which is the answer."""
CONTINUATIONS = (
    "{context} {question}",
    "Complete the text.\n\n{context} {question}",
    "How does the text continue?\n{context} {question}\nOptions:\n{options}\nAnswer: {question}",
    "How does the text continue?\n{context} {question}\n{choices}\nAnswer:",
)
"""The same for choices that continue a text."""


def prompt_of(item: Item, template: str | None = None) -> str:
    """Return what a decoder reads before a choice; the choice follows after a blank."""
    usual = (CONTINUATIONS if item.continues else TEMPLATES)[0]
    values = {"context": item.context, "question": item.question}
    values |= {"options": "\n".join(f"- {choice}" for choice in item.choices)}
    values |= {"choices": "\n".join(f"{chr(65 + place)}. {choice}" for place, choice in enumerate(item.choices))}
    return fill(template or usual, values)


def answers_of(item: Item, template: str | None) -> Sequence[str]:
    """Return what follows the prompt for each choice: its letter where the prompt lists them, else its text."""
    return [chr(65 + place) for place in range(len(item.choices))] if "{choices}" in (template or "") else item.choices


def load_choice_encoder(path: str | Path, max_length: int, width: int, device: torch.device) -> ChoiceEncoder:
    """Load any checkpoint as an encoder with a head of one output.

    The head is that of ``AutoModelForMultipleChoice``, for architectures that lack one that of a classifier.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        max_length: Maximum tokens of a question with a choice.
        width: Largest number of choices of an item.
        device: Where the model will run.

    Raises:
        UserError: If there is no model, or its encoder weights are incomplete.
    """
    known = type(load_config(path)) in MODEL_FOR_MULTIPLE_CHOICE_MAPPING
    auto = AutoModelForMultipleChoice if known else AutoModelForSequenceClassification
    loaded = load_with_head(auto, path, {"num_labels": 1}, max_length, device, "multiple-choice model")
    return ChoiceEncoder(*loaded, width)


def load_choice_decoder(path: str | Path, max_length: int, width: int) -> ChoiceDecoder:
    """Load a causal language model that chooses by likelihood, in fp32.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        max_length: Maximum tokens of a question with a choice; reduced to what the model can read.
        width: Largest number of choices of an item.

    Raises:
        UserError: If there is no causal language model.
    """
    loaded = load_language_model(path)
    tokenizer = loaded.tokenizer
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    length = min(max_length, longest_text(loaded.model) or max_length)
    if length < max_length:
        warn_once(f"'{path}' reads at most {length} tokens, so questions are truncated to that.")
    return ChoiceDecoder(loaded.model, read_as_text(tokenizer), length, width)


def has_choice_head(config: PreTrainedConfig) -> bool:
    """Return whether a checkpoint is an encoder with a trained head of one output per choice."""
    names = config.architectures or ()
    return any(name.endswith(HEADS[0]) or (name.endswith(HEADS[1]) and config.num_labels == 1) for name in names)


@TASK_KINDS.register("choice", summary="questions with choices, of which one is correct")
class MultipleChoice(TaskKind):
    """Tables of a question, its choices and the correct one."""

    zero_shot: ClassVar[bool] = True
    distillation: ClassVar[tuple[str, ...]] = ("kl",)

    matches_table = staticmethod(holds_choices)
    read_tables = staticmethod(read_choices)

    def is_model_of(self, path: str | Path, task: ChoiceTask) -> bool:
        """Return whether a checkpoint has a trained head for choices, or is a decoder that was fine-tuned on such."""
        return has_choice_head(load_config(path)) or read_training(path).result.kind == "choice"

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint has a trained head for choices, or is a decoder that was fine-tuned on such."""
        return kind == "choice" or any(name.endswith(HEADS[0]) for name in config.architectures or ())

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> ChoicePredictor:
        """Load a model that chooses."""
        config = load_config(path)
        if not kind_of_checkpoint(config.architectures, path).uses_masking:
            return ChoicePredictor(load_choice_decoder(path, max_length, 2))
        return ChoicePredictor(load_choice_encoder(path, max_length, 2, device))

    def answer(self, example: Item, task: ChoiceTask) -> str:
        """Return the correct choice."""
        return example.choices[example.answer]

    def learner(
        self, model: str | Path, task: ChoiceTask, options: ResolvedOptions, device: torch.device
    ) -> ChoiceLearner:
        """Load a decoder as it is, and any other checkpoint with a head.

        Raises:
            UserError: If the model cannot be loaded, or has a new head that is not to be trained.
        """
        config = load_config(model)
        width = max(len(item.choices) for item in (*task.train, *task.dev, *task.test))
        if not kind_of_checkpoint(config.architectures, model).uses_masking:
            learner = ChoiceLearner(load_choice_decoder(model, options.max_length, width), task)
            learner.chooses = read_training(model).result.kind != "choice"
            return learner
        if not options.epochs and not has_choice_head(config):
            raise UserError(
                f"'{model}' has no trained head for multiple choice, so 'epochs' must be at least 1; only decoders "
                "choose without training."
            )
        return ChoiceLearner(load_choice_encoder(model, options.max_length, width, device), task)


class ChoicePredictor(Predictor):
    """A model that chooses."""

    main: ClassVar[str] = "choice"
    scored_by: ClassVar[type[Scoring]] = ChoiceScoring

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Item | None]:
        """Return the question of each row with its choices."""
        return read_unanswered(rows, options)

    def answer(self, examples: Sequence[Item], precision: Precision) -> list[Answer]:
        """Return the text of the best choice of each item, with its probability."""
        self.head.width = max(len(item.choices) for item in examples)
        found = []
        for item, scores in zip(examples, self.head.choose(examples, precision), strict=True):
            best, shares = int(scores.argmax()), np.exp(scores - scores.max())
            cells = {"choice": item.choices[best], "probability": float(shares[best] / shares.sum())}
            found.append(Answer(cells, best))
        return found

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[int | None] | None:
        """Return the position of the correct choice of each row."""
        return read_answers(rows, options)

    def groups(self, rows: Sequence[Row], options: ReadingOptions) -> tuple[Sequence[str | None], str]:
        """Return the context of each row, if there is no other group."""
        columns = find_columns(rows, options, True)
        assert columns is not None  # as the rows were read
        grouping = find_choice_groups("data", {"": rows}, options, columns)
        return [grouping.of(row) for _, row in rows], grouping.name


class ChoiceLearner(Learner):
    """A model that learns to choose."""

    head: ChoiceModel
    task: ChoiceTask
    chooses: bool = False
    """Whether the model was not fine-tuned on choices, so that it has no prompt yet."""

    def __init__(self, head: ChoiceModel, task: ChoiceTask) -> None:
        super().__init__(head, task)
        self._initial: list[int] | None = None

    def start(self) -> None:
        """Let a model that can choose before training answer the test split."""
        if self.head.trained:
            self._initial = [int(scores.argmax()) for scores in self.head.choose(self.task.test, "fp32")]

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Choose for each item of a split the choice with the highest score; return accuracy and calibration.

        Of the test split, ``references`` has the accuracy of chance, of the most frequent position in train, of other
        ways to normalize likelihoods, and of the model before training, each with the difference.
        """
        items: list[Item] = getattr(self.task, split)
        scores = self.head.choose(items, precision)
        gold, predicted = [item.answer for item in items], [int(found.argmax()) for found in scores]
        exponents = [np.exp(found - found.max()) for found in scores]
        probabilities = [(found / found.sum()).tolist() for found in exponents]
        scoring = self.task.scoring(split)
        accuracy = scoring.score(gold, predicted, "accuracy")
        metrics: dict[str, Any] = {"accuracy": accuracy, **calibration_metrics(probabilities, gold)}
        if split == "test":
            metrics["references"] = compare_choices(gold, predicted, self._references(items, scores), scoring.groups)
        return EvaluationResult(metrics, gold, predicted, probabilities)

    def _references(self, items: Sequence[Item], scores: Sequence[np.ndarray]) -> dict[str, list[float]]:
        """Return how likely other ways to answer are right, for each item, by name."""
        positions, counts = np.unique([item.answer for item in self.task.train], return_counts=True)
        common = int(positions[counts.argmax()])
        found = {
            "chance": [1 / len(item.choices) for item in items],
            "most frequent position": [float(item.answer == common) for item in items],
        }
        for item, own in zip(items, scores, strict=True):
            for name, place in self.head.other_answers(item, own).items():
                found.setdefault(name, []).append(float(place == item.answer))
        if self._initial is not None:
            pairs = zip(items, self._initial, strict=True)
            found["before training"] = [float(place == item.answer) for item, place in pairs]
        return found

    @property
    def templates(self) -> Sequence[str]:
        """The usual prompts of a decoder; the one that it was fine-tuned with, if it was."""
        usual = CONTINUATIONS if self.task.train[0].continues else TEMPLATES
        return usual[: len(usual) if self.chooses else 1] if self.head.trained else ()

    def use_prompt(self, template: str, solved: Sequence[Item]) -> None:
        """Read items with a prompt from now on."""
        if not isinstance(self.head, ChoiceDecoder):
            return super().use_prompt(template, solved)
        check_fields(template, ("question",), ("context", "options", "choices"))
        self.head.template, self.head.solved = template, solved
        return None

    def readable(self, value: Any) -> Any:
        """Return the letter of a position."""
        return chr(ord("A") + value) if value < 26 else value
