"""Questions on documents with their answers, and instructions with replies, which a language model writes."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Literal

from acclimate.base.errors import UserError
from acclimate.data.answer_parsing import parse_pairs
from acclimate.data.operations import TRANSFORMS
from acclimate.data.pool import Document
from acclimate.data.transform.recipe import Asked, Piece, Pieces, Recipe, Session

NUMBER = ("number", "text")


def locate(answer: str, text: str) -> tuple[int, str] | None:
    """Return where an answer is in a text, and what the text has there; None if it is not in the text.

    Differences of case and of whitespace do not count.
    """
    if (start := text.find(answer)) >= 0:
        return start, answer
    found = re.search(r"\s+".join(map(re.escape, answer.split())), text, re.IGNORECASE) if answer.split() else None
    return found and (found.start(), found[0])


@dataclass(frozen=True)
class PairRecipe(Recipe):
    """A recipe for pairs of texts.

    Attributes:
        number: Maximum pairs of a piece of a document.
    """

    parts: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = ((), ())
    """Names of the two parts in answers."""
    number: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.number < 1:
            raise UserError(f"Transform '{self.name}': number is at least 1, not {self.number}.")

    def pairs(self, session: Session, prompt: str, pieces: Pieces) -> Iterator[tuple[Asked, list[tuple[str, str]]]]:
        """Yield the pairs of each piece; answers without one are counted."""
        asked = (Asked(piece, prompt, {"number": str(self.number)}) for piece in pieces)
        for one, answer, is_cut in session.answers(asked):
            pairs = parse_pairs(answer, *self.parts)
            if found := session.whole(pairs, answer, is_cut, itemgetter(1)):
                yield one, found[: self.number]
            elif not pairs:
                session.drop("unreadable", answer)


@TRANSFORMS.register("questions", summary="questions on each document with their answers, by a language model")
@dataclass(frozen=True)
class Questions(PairRecipe):
    """Writes questions that each document answers.

    Attributes:
        form: ``text`` for documents followed by their questions and answers; ``rows`` for a row per question, as a
            task for ``acclimate finetune``: of question answering, or of generation if answers are not extractive.
        extractive: Whether an answer must be a part of the document, without regard to case and whitespace; others are
            dropped and counted as ``not_in_text``.
    """

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {"questions": NUMBER, "explanations": NUMBER}
    parts: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("question", "q"), ("answer", "a"))
    form: Literal["text", "rows"] = "text"
    extractive: bool = True

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield the documents with their questions, or a row for each question."""
        for one, pairs in self.pairs(session, "questions" if self.extractive else "explanations", pieces):
            found = [pair for question, answer in pairs if (pair := self._check(session, one.piece, question, answer))]
            if self.form == "text":
                lines = (f"Question: {question}\nAnswer: {answer}" for question, answer, _ in found)
                if found:
                    yield session.document("\n\n".join([one.piece.text, *lines]), one)
                continue
            for question, answer, start in found:
                row: dict[str, Any] = {"question": question, "answer": answer}
                if self.extractive:
                    place = {"text": [answer], "answer_start": [start]}
                    row = {"context": one.piece.text, "question": question, "answers": place}
                yield session.document(f"{question}\n{answer}", one, **row)

    def _check(self, session: Session, piece: Piece, question: str, answer: str) -> tuple[str, str, int] | None:
        place = locate(answer, piece.text) if self.extractive else (0, answer)
        if place is None:
            session.drop("not_in_text", f"{question}\n{answer}")
            return None
        return (question, place[1], place[0]) if session.is_new(question, place[1]) else None


@TRANSFORMS.register("instructions", summary="conversations about each document for a chat model, by a language model")
@dataclass(frozen=True)
class Instructions(PairRecipe):
    """Writes requests to an assistant that knows the document, with its replies, as rows of ``messages``."""

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {"instructions": NUMBER}
    parts: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (
        ("instruction", "request", "prompt", "user", "question"),
        ("response", "reply", "answer", "assistant", "output"),
    )

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield the conversations."""
        for one, pairs in self.pairs(session, "instructions", pieces):
            for request, reply in pairs:
                if session.is_new(request, reply):
                    turns = [{"role": "user", "content": request}, {"role": "assistant", "content": reply}]
                    yield session.document(f"{request}\n\n{reply}", one, messages=turns)
