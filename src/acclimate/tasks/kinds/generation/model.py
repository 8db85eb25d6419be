"""Generation: a causal model or an encoder-decoder reads a question, perhaps after examples, and writes the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from acclimate.base.device import Precision, autocast
from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import read_json_object, write_json
from acclimate.base.limits import LimitedTemplate
from acclimate.base.registry import load_function
from acclimate.data.chat import TemplateError, encode_answers, find_answers, plain_ids, special_tokens
from acclimate.data.reading import DEFAULT_READING, ReadingOptions
from acclimate.data.rows import Row, column_names, is_missing
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.data.tokenizing import read_as_text
from acclimate.data.transform.generate import CachedFunction, read_number, read_score
from acclimate.data.writers import identify_writer, is_model
from acclimate.evaluation.answers import SCORE, AnswerScoring, extract
from acclimate.evaluation.lm_loss import read_for_scoring
from acclimate.evaluation.scoring import Scoring
from acclimate.models.checkpoints import load_config
from acclimate.models.encoding import encode
from acclimate.models.families import longest_text
from acclimate.models.generating import Decoding, Written, render_prompt, write_texts
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.models.loading import load_language_model
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.tasks.head_model import HeadModel, continuation_losses
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.generation.data import (
    GenerationTask,
    Prompted,
    find_columns,
    find_prompt_groups,
    holds_prompts,
    read_prompts,
    read_unanswered,
)
from acclimate.tasks.sources import read_every_row

SETTINGS_FILE = "generation.json"
"""File of a fine-tuned model with its settings of prompts and answers."""
AFTER_QUESTION = "\nQuestion:"
JUDGE_PROMPT = (
    "Question:\n{question}\n\nReference answers:\n{references}\n\nAnswer to grade:\n{answer}\n\n"
    "How well does this answer agree with the references? Reply with one number from 0 (wrong) to 1 (right)."
)
"""What a model reads that scores answers, unless the user gives another prompt."""


@dataclass
class AnswerModel(HeadModel):
    """A causal language model that answers questions.

    A row of training is a prompt with its answer; only the answer and its end are learned. A step is the mean over
    rows of the mean loss of the tokens of their answers.
    """

    shots: Sequence[Prompted] = ()
    """Examples with their answers in each prompt."""
    decoding: Decoding = field(default_factory=lambda: Decoding(128))
    pattern: str | None = None
    """Regular expression of the answer in an output."""

    token_targets: ClassVar[tuple[str, ...]] = ("continuation",)
    pads_right: ClassVar[bool] = True
    answer_logits: ClassVar[Any] = None  # an answer is a text
    shares_positions: ClassVar[bool] = True
    """Whether a prompt and its answer are read as one text."""

    def __post_init__(self) -> None:
        """Keep a tokenizer that reads special tokens in a question as text, and what it puts before a text."""
        super().__post_init__()
        self.truncated = 0
        self._reader = read_as_text(self.tokenizer)
        ids, ordinary = read_for_scoring(self._reader, "a")
        self._before = ids[: len(ids) - ordinary]
        self._special = special_tokens(self.tokenizer) if self.chats else []

    @property
    def chats(self) -> bool:
        """Whether prompts have the form of the chat template of the tokenizer."""
        return bool(self.tokenizer.chat_template)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of prompts and answers, as plain values."""
        shots = [[one.question, list(one.references), one.context] for one in self.shots]
        return {"shots": shots, "decoding": vars(self.decoding), "answer_pattern": self.pattern}

    def use(self, settings: dict[str, Any]) -> None:
        """Take the settings of a saved model."""
        self.shots = [Prompted(question, tuple(refs), context) for question, refs, context in settings["shots"]]
        given = settings["decoding"]
        self.decoding = Decoding(**{**given, "stop": tuple(given["stop"])})
        self.pattern = settings["answer_pattern"]

    def save(self, folder: Path, name: Path | None = None) -> None:
        """Write model, tokenizer and the settings."""
        super().save(folder, name)
        write_json(folder / SETTINGS_FILE, self.settings)

    def write(self, items: Sequence[Prompted], precision: Precision) -> list[Written]:
        """Return what the model writes for each item."""
        self.prepare()
        limit, decoding = self.max_length, self.decoding
        if longest := longest_text(self.model):
            most = longest // 2 if self.shares_positions else longest
            if decoding.max_new_tokens > most:
                warn_once(f"The model reads at most {longest:,} tokens, so its answers have at most {most:,}.")
                decoding = replace(decoding, max_new_tokens=most)
            limit = min(limit, longest - decoding.max_new_tokens * self.shares_positions)
        rows = [plain_ids(row).tolist() for row in self._encode(items, limit, answered=False)]
        with autocast(precision, self.device):
            return write_texts(self.model, self.tokenizer, rows, decoding)

    def features(self, items: Sequence[Prompted]) -> list[dict[str, Any]]:
        """Return rows of prompts with their first reference, and the next token of each token that is learned."""
        made = []
        for row in self._encode(items, self.max_length, answered=True):
            ids = plain_ids(row).astype(np.int64)
            wanted = np.full_like(ids, IGNORE_INDEX)
            wanted[:-1] = np.where(row[1:] >= 0, row[1:], IGNORE_INDEX)
            made.append({"input_ids": ids, "continuation": wanted})
        return made

    def _encode(self, items: Sequence[Prompted], limit: int, answered: bool) -> list[np.ndarray]:
        """Return the ids of each item, int32 of shape (tokens,), with complements where nothing is learned.

        What is too long loses its first examples, then the start of its context or question; this is reported.
        """
        self.truncated = 0
        if self.chats:
            with LimitedTemplate(self.tokenizer) as template:
                rows = [self._fit(item, limit, partial(self._chat, template, answered)) for item in items]
        else:
            rows = [self._fit(item, limit, partial(self._plain, answered)) for item in items]
        if self.truncated:
            warn_once(
                f"{self.truncated:,} of {len(items):,} prompts are longer than {limit} tokens, so they are read "
                "without their first examples or the start of their text; max_length can raise this, up to what the "
                "model reads."
            )
        return rows

    def _fit(
        self, item: Prompted, limit: int, encode: Callable[[Prompted, Sequence[Prompted]], np.ndarray]
    ) -> np.ndarray:
        shots = [one for one in self.shots if one.item != item.item]
        row = encode(item, shots)
        self.truncated += len(row) > limit
        while (over := len(row) - limit) > 0:
            part = "context" if item.context else "question"
            text = getattr(item, part)
            if shots:
                shots = shots[1:]
            elif len(text) > 1:
                tokens = max(1, len(self._reader(text, add_special_tokens=False, verbose=False)["input_ids"]))
                item = replace(item, **{part: text[max(1, over * len(text) // tokens) :].lstrip()})
            else:
                break
            row = encode(item, shots)
        if len(row) > limit and not (row[1:limit] >= 0).any():
            raise UserError(
                f"A prompt does not fit into {limit} tokens; give a larger max_length, fewer shots or fewer "
                "max_new_tokens."
            )
        return row[:limit]

    def _plain(self, answered: bool, item: Prompted, shots: Sequence[Prompted]) -> np.ndarray:
        """Return the ids of questions and answers as text."""
        prompt = prompt_after(item, shots)
        if not answered:
            return ~np.asarray(read_for_scoring(self._reader, prompt)[0])
        text = f"{prompt} {item.references[0]}"
        row = encode_answers(self._reader, text, [(len(prompt), len(text))])
        end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        return np.concatenate([~np.asarray(self._before, dtype=np.int32), row, np.asarray(end, dtype=np.int32)])

    def _chat(
        self, template: LimitedTemplate, answered: bool, item: Prompted, shots: Sequence[Prompted]
    ) -> np.ndarray:
        """Return the ids of a conversation under the chat template."""
        turns = []
        for one in (*shots, item):
            turns += [
                {"role": "user", "content": self._escape(one.text)},
                {"role": "assistant", "content": self._escape(one.references[0] if one.references else "")},
            ]
        if not answered:
            text = render_prompt(self.tokenizer, template, turns[:-1])
            return ~np.asarray(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        read_only = range(len(turns) - 1)

        def render(turns: Sequence[dict[str, str]], prompt: bool) -> str:
            return template.render(list(turns), add_generation_prompt=prompt)

        try:
            text, answers = find_answers(render, turns, self._special, read_only)[-1]
        except (TemplateError, ValueError) as error:
            raise UserError(
                f"The chat template of '{self.tokenizer.name_or_path}' does not show where answers are ({error}); set "
                "another as tokenizer.chat_template and save the tokenizer."
            ) from error
        return encode_answers(self.tokenizer, text, answers)

    def _escape(self, text: str) -> str:
        """Return a text in which the special tokens of the model are ordinary text, by a blank after their start."""
        for mark in self._special:
            text = text.replace(mark, f"{mark[:1]} {mark[1:]}")
        return text

    def run(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> CausalLMOutput:
        """Return the loss: the mean over rows of the mean loss of the tokens that are learned."""
        # With the attention of the checkpoint, since that of :mod:`acclimate.models.probe` has no cache for writing.
        read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        hidden = model.base_model(**read, use_cache=False).last_hidden_state
        losses, counts = continuation_losses(model, hidden, inputs["continuation"])
        return CausalLMOutput(loss=(losses / counts.clamp(min=1)).mean())


class PairAnswerModel(AnswerModel):
    """An encoder-decoder that answers: the encoder reads the prompt, and the decoder writes the answer.

    In a row of training, the ids of the answer follow those of the prompt as complements ``~id``.
    """

    token_targets: ClassVar[tuple[str, ...]] = ()
    shares_positions: ClassVar[bool] = False

    def features(self, items: Sequence[Prompted]) -> list[dict[str, Any]]:
        """Return rows of prompts and their first reference."""
        sources = [plain_ids(row).astype(np.int64) for row in self._encode(items, self.max_length, answered=False)]
        given = [item.references[0] for item in items]
        answers = self._reader(text_target=given, truncation=True, max_length=self.max_length)["input_ids"]
        return [
            {"input_ids": np.concatenate([source, ~np.asarray(answer, dtype=np.int64)])}
            for source, answer in zip(sources, answers, strict=True)
        ]

    def _plain(self, answered: bool, item: Prompted, shots: Sequence[Prompted]) -> np.ndarray:
        """Return the ids of a prompt, between the special tokens of the tokenizer."""
        return ~np.asarray(self._reader(prompt_after(item, shots), verbose=False)["input_ids"])

    def run(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> CausalLMOutput:
        """Return the loss: the mean over rows of the mean loss of the tokens of the answer."""
        ids, real = inputs["input_ids"], inputs["attention_mask"] > 0
        hidden = encode(model, ids, real.long() - 1)
        losses, counts = continuation_losses(model, hidden, torch.where(real & (ids < 0), ~ids, IGNORE_INDEX))
        return CausalLMOutput(loss=(losses / counts.clamp(min=1)).mean())


def prompt_after(item: Prompted, shots: Sequence[Prompted]) -> str:
    """Return what a model without a chat template reads of an item, after examples with their answers."""
    shown = [f"{plain_prompt(one)} {one.references[0]}" for one in shots]
    return "\n\n".join([*shown, plain_prompt(item)])


def plain_prompt(item: Prompted) -> str:
    """Return what a model without a chat template reads before an answer, which follows after a blank."""
    return f"{item.context}\n\n" * bool(item.context) + f"Question: {item.question}\nAnswer:"


def load_answer_model(path: str | Path, max_length: int) -> AnswerModel:
    """Load a causal language model or an encoder-decoder that answers questions, in fp32.

    Raises:
        UserError: If there is none; encoders cannot write.
    """
    kind = kind_of_checkpoint(load_config(path).architectures, path)
    if kind.uses_masking and not kind.pairs:
        raise UserError(
            f"'{path}' is a {kind.name} language model, an encoder, which cannot write answers; use a decoder (a "
            "causal language model) or an encoder-decoder, or read the task as another kind with --task-kind."
        )
    loaded = load_language_model(path)
    if loaded.tokenizer.pad_token_id is None:
        loaded.tokenizer.pad_token = loaded.tokenizer.eos_token or loaded.tokenizer.convert_ids_to_tokens(0)
    length = min(max_length, longest_text(loaded.model) or max_length)
    made = (PairAnswerModel if kind.pairs else AnswerModel)(loaded.model, loaded.tokenizer, length)
    if settings := read_json_object(Path(path) / SETTINGS_FILE):
        made.use(settings)
    return made


@TASK_KINDS.register(
    "generation",
    summary="questions with reference answers, to which a decoder or an encoder-decoder writes the answer",
)
class Generation(TaskKind):
    """Tables of a question or prompt and one or several reference answers."""

    zero_shot: ClassVar[bool] = True
    low_rank: ClassVar[bool] = True

    matches_table = staticmethod(holds_prompts)
    read_tables = staticmethod(read_prompts)

    def configured(self, task: GenerationTask, given: Any) -> GenerationTask:
        """Return the task with the function that scores answers."""
        scorer = given.get("scorer")
        return replace(task, scorer=identify_writer(scorer, "scorer")) if scorer else task

    def is_model_of(self, path: str | Path, task: GenerationTask) -> bool:
        """Return whether a model is a decoder or an encoder-decoder, which can answer without a head."""
        kind = kind_of_checkpoint(load_config(path).architectures, path)
        return kind.pairs or not kind.uses_masking

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a model was fine-tuned, or evaluated, on such a task."""
        return kind == AnswerScoring.name or (Path(path) / SETTINGS_FILE).is_file()

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> AnswerPredictor:
        """Load a model that answers."""
        return AnswerPredictor(load_answer_model(path, max_length))

    def answer(self, example: Prompted, task: GenerationTask) -> str:
        """Return the first reference."""
        return example.references[0]

    def searched(self, example: Prompted) -> Sequence[str]:
        """Return the context, and the question with each of its answers."""
        return example.context, *(f"{example.question}\n{one}" for one in example.references)

    def learner(
        self, model: str | Path, task: GenerationTask, options: ResolvedOptions, device: torch.device
    ) -> AnswerLearner:
        """Load a decoder or an encoder-decoder."""
        return AnswerLearner(load_answer_model(model, options.max_length), task)


class AnswerPredictor(Predictor):
    """A model that answers questions."""

    main: ClassVar[str] = "answer"
    scored_by: ClassVar[type[Scoring]] = AnswerScoring

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Prompted | None]:
        """Return the question of each row."""
        return read_unanswered(rows, options)[0]

    def answer(self, examples: Sequence[Prompted], precision: Precision) -> list[Answer]:
        """Return the answer to each question, and the whole output if a pattern finds the answer in it."""
        found = []
        for written in self.head.write(examples, precision):
            answer = extract(self.head.pattern, written.text)
            output = {"output": written.text} if self.head.pattern else {}
            found.append(Answer({"answer": answer, **output}, [answer]))
        return found

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[list[str] | None] | None:
        """Return the references of each row."""
        found, columns = read_unanswered(rows, options)
        if columns.references is None:
            return None
        pattern = getattr(self.head, "pattern", None)
        return [gold_answers(one, pattern) if one and one.references else None for one in found]

    def groups(self, rows: Sequence[Row], options: ReadingOptions) -> tuple[Sequence[str | None], str]:
        """Return the context of each row, if there is no other group."""
        columns = find_columns(rows, options, True)
        assert columns is not None  # as the rows were read
        grouping = find_prompt_groups("data", {"": rows}, options, columns)
        return [grouping.of(row) for _, row in rows], grouping.name


def gold_answers(item: Prompted, pattern: str | None) -> list[str]:
    """Return the references of an item: of those in which the pattern finds an answer, the answer."""
    return [(pattern and extract(pattern, one)) or one for one in item.references]


class AnswerLearner(Learner):
    """A model that learns to answer the questions of a task."""

    head: AnswerModel
    task: GenerationTask

    def __init__(self, head: AnswerModel, task: GenerationTask) -> None:
        super().__init__(head, task)
        self._scorer: CachedFunction | None = None
        self._added: Any = None
        self._agreement: dict[str, Any] = {}
        if not head.decoding.stop:
            head.decoding = replace(head.decoding, stop=self._usual_stop())

    def _usual_stop(self) -> tuple[str, ...]:
        """Return where an answer ends next to the end token: nowhere after a chat template, else by train answers."""
        if self.head.chats:
            return ()
        one_line = not any("\n" in text for item in self.task.train for text in item.references)
        return ("\n" if one_line else AFTER_QUESTION,)

    def configure(self, options: Any) -> None:
        """Take the options of prompts, answers and the scorer."""
        head = self.head
        if options.shots and options.shots[0]:
            head.shots = self.task.few_shot(options.shots[0], options.seed)
        stop = self._usual_stop() if options.stop is None else tuple(options.stop)
        head.decoding = Decoding(options.max_new_tokens, stop, options.temperature, options.seed)
        head.pattern = options.answer_pattern
        if options.scorer is not None:
            self._scorer = cached_scorer(options.scorer)
        if options.scorer_labels is not None:
            if self._scorer is None:
                raise UserError("'scorer_labels' needs a scorer to compare with; give it, or remove 'scorer_labels'.")
            self._agreement = compare_with_people(self._scorer, options.scorer_labels)

    @property
    def templates(self) -> Sequence[str]:
        """The form of the chat template, or of a question; only the number of examples can be chosen."""
        return ("",)

    def use_prompt(self, template: str, solved: Sequence[Prompted]) -> None:
        """Answer after as many examples from now on, drawn with the seed of the run."""
        if template:
            raise UserError("Prompts of generation have the form of the chat template; remove the template.")
        self.head.shots = self.task.few_shot(len(solved), self.head.decoding.seed) if solved else ()

    def item_scores(self, result: EvaluationResult) -> Sequence[float]:
        """Return the first metric of each answer."""
        return [next(iter(kept["scores"].values())) for kept in result.probabilities]

    def start(self) -> None:
        """Add the adapter, if there is one."""
        if self.adapter is not None:
            self.head.prepare()
            self._added = self.adapter.insert(self.head.model)

    def finish(self) -> None:
        """Merge the adapter into the weights."""
        if self._added is not None:
            self.head.model = self._added.merged().to(self.head.device)

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Answer the questions of a split and score the answers; ``unfinished`` is the share of answers that were cut.

        Instead of probabilities an item has its output and its scores.
        """
        items: list[Prompted] = getattr(self.task, split)
        written = self.head.write(items, precision)
        gold = [gold_answers(item, self.head.pattern) for item in items]
        predicted: list[list[Any]] = [[extract(self.head.pattern, one.text)] for one in written]
        if self._scorer is not None:
            each = zip(items, predicted, gold, strict=True)
            texts = (join_answer(item.text, shown[0], references) for item, shown, references in each)
            for shown, (score,) in zip(predicted, self._scorer.map(texts, len(items)), strict=True):
                shown.append(float(score))
        scoring = self.task.scoring(split)
        scores = {name: scoring.item_scores(gold, predicted, name) for name in scoring.metrics}  # type: ignore[attr-defined]
        metrics: dict[str, Any] = {name: scoring.score(gold, predicted, name) for name in scoring.metrics}
        metrics["unfinished"] = sum(not one.finished for one in written) / max(1, len(written))
        if self._agreement and split == "test":
            metrics["scorer_agreement"] = self._agreement
        kept = [
            {"output": one.text, "scores": {name: values[place] for name, values in scores.items()}}
            for place, one in enumerate(written)
        ]
        return EvaluationResult(metrics, gold, predicted, kept)


def _read_grade(returned: Any) -> list[float]:
    """Return the score that a scorer gives.

    Raises:
        ValueError: If it is no number from 0 to 1.
    """
    if returned is None:
        raise ValueError("the answer has no number")
    (score,) = read_score(returned)
    if not 0 <= score <= 1:
        raise ValueError(f"a score is from 0 to 1, not {score:g}")
    return [score]


def _call_scorer(scorer: Callable[..., Any], text: str) -> Any:
    """Call a function of the user with a question, an answer and references, from JSON."""
    return scorer(*json.loads(text))


def _split_answer(text: str) -> dict[str, str]:
    """Return what the names in the prompt of a judge stand for."""
    question, answer, references = json.loads(text)
    return {"question": question, "answer": answer, "references": "\n".join(references)}


def cached_scorer(given: Any) -> CachedFunction:
    """Return what scores answers, a function of the user or a model, which is called once for the same answer."""
    if is_model(given):
        return CachedFunction(
            given, None, _read_grade, "scorer", prompt=JUDGE_PROMPT, parse=read_number, split=_split_answer
        )
    made = CachedFunction(partial(_call_scorer, load_function(given, "scorer")), None, _read_grade, "scorer")
    made.name = str(getattr(given, "__name__", given)).rpartition(":")[2]
    return made


def join_answer(question: str, answer: str, references: Sequence[str]) -> str:
    """Return what a scorer reads."""
    return json.dumps([question, answer, list(references)], ensure_ascii=False)


def compare_with_people(scorer: CachedFunction, source: str | Path) -> dict[str, Any]:
    """Return how the scores of a function agree with those of people: ``rows``, ``correlation`` and ``difference``.

    The correlation is Pearson's, None if one side is constant; the difference is the mean of the absolute ones.

    Raises:
        UserError: If the table lacks a column, or a score is no number from 0 to 1.
    """
    rows = read_every_row(source, "scorer_labels", DEFAULT_READING)
    names = column_names(rows)
    for name in ("question", "answer", SCORE):
        if name not in names:
            raise UserError(f"'{source}' has no column '{name}'; it needs question, answer and score.")
    people, texts = list[float](), list[str]()
    for where, row in rows:
        given: Any = row.get("references")
        listed = [] if is_missing(given) else [given] if isinstance(given, str) else list(given)
        try:
            given_score = float(row[SCORE])
        except (TypeError, ValueError):
            given_score = -1.0
        if not 0 <= given_score <= 1:
            raise UserError(f"{where}: '{SCORE}' is {row[SCORE]!r:.40}; it must be a number from 0 to 1.")
        people.append(given_score)
        texts.append(join_answer(str(row["question"]), str(row["answer"]), listed))
    theirs, ours = np.asarray(people), np.asarray([score for (score,) in scorer.map(texts, len(texts))])
    varies = theirs.std() > 0 and ours.std() > 0
    return {
        "rows": len(people),
        "correlation": float(np.corrcoef(theirs, ours)[0, 1]) if varies else None,
        "difference": float(np.abs(theirs - ours).mean()),
    }
