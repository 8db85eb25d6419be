"""Reading-comprehension text: documents followed by questions that they answer.

The questions are mined with patterns, as in AdaptLLM (Cheng et al., ICLR 2024), or made by a function, as with the
large language model of TransformLLM (2024).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Any, ClassVar, Literal, NamedTuple

from acclimate.api import (
    EXAMPLES,
    CachedFunction,
    Document,
    Documents,
    FunctionKey,
    OperationContext,
    Transform,
    UserError,
    Writing,
    parse_pairs,
    register_transform,
    shorten,
    split_sentences,
)

CONNECTIVES = {
    "consequence": "therefore|thus|hence|consequently|accordingly|as a result|as a consequence|for this reason",
    "contrast": "however|by contrast|in contrast|on the other hand|conversely|nevertheless|on the contrary",
    "addition": "moreover|furthermore|in addition|additionally|besides|also",
    "restatement": "in other words|that is|that is to say|put differently|in short",
    "example": "for example|for instance|as an example",
}
"""Words at the start of a sentence, before a comma, by its relation to the sentence before."""
_BETWEEN = {
    name: re.compile(rf"(?:{words}),\s+(.+)", re.IGNORECASE | re.DOTALL) for name, words in CONNECTIVES.items()
}
_WITHIN = {
    "cause": re.compile(
        r"(.+?)(?<!\s),?\s++(?:because of|because|due to the fact that|owing to)\s++(.+?)(?<![.!?])[.!?]*+", re.DOTALL
    ),
    "definition": re.compile(
        r"(?:an?\s+|the\s+)?(\S.{,58}\S)\s+(?:is|are)\s+defined\s+as\s+(.+?)(?<![.!?])[.!?]*+|"
        r"the\s+(?:term|word|expression)\s+(\S.{,58}?\S)\s+(?:refers\s+to|means|denotes)\s+(.+?)(?<![.!?])[.!?]*+",
        re.IGNORECASE | re.DOTALL,
    ),
}
TITLE = "title"
PROMPT = (
    "{text}\n\nWrite questions that this text answers, each with an answer copied word for word from the text. "
    "Reply with lines that begin with 'Question:' and 'Answer:'."
)
"""What a model reads that writes questions, unless the user gives another prompt."""
QUESTIONS = {
    "consequence": ('What follows from "{}"?', 'Given that "{}", what can be concluded?'),
    "contrast": ('What is in contrast to "{}"?', 'Which statement limits "{}"?'),
    "addition": ('What else is said, in addition to "{}"?', 'Which statement goes with "{}"?'),
    "restatement": ('How can "{}" be said in other words?', 'Which statement means the same as "{}"?'),
    "example": ('What is an example of "{}"?', 'Which example shows that "{}"?'),
    "cause": ('What is the cause of "{}"?', 'Why is it that "{}"?'),
    "definition": ("What does {} mean?", "How is {} defined?"),
    TITLE: ("What is a title of this text?", "What is this text about, in a few words?"),
}
"""Forms of the question of each relation; the braces take the first part of the pair, and the second is the answer."""
TITLE_WORDS = 15
"""Maximum words of a first line that is a title."""


class Pair(NamedTuple):
    """Two parts of a document and their relation, the key of :data:`QUESTIONS`."""

    relation: str
    first: str
    second: str


def mine_pairs(text: str, least: int = 0) -> list[Pair]:
    """Return the pairs of a text that patterns find, all parts as they are in the text.

    Args:
        text: The text.
        least: Minimum characters of both parts, of a definition only of the second, and none of a title.
    """
    found = list[Pair]()
    title, _, body = text.strip().partition("\n")
    title = title.strip()
    if body.strip() and 0 < len(title.split()) <= TITLE_WORDS and title[-1] not in ".!?:;,…。！？":
        found.append(Pair(TITLE, "", title))
    before = ""
    for sentence in split_sentences(text):
        for relation, pattern in _BETWEEN.items():
            if before and (match := pattern.fullmatch(sentence)):
                found.append(Pair(relation, before, match[1]))
        for relation, pattern in _WITHIN.items():
            if match := pattern.fullmatch(sentence):
                first, second = (part for part in match.groups() if part is not None)
                found.append(Pair(relation, first, second))
        before = sentence
    return [
        pair
        for pair in found
        if pair.relation == TITLE
        or (len(pair.second) >= least and (pair.relation == "definition" or len(pair.first) >= least))
    ]


def read_answers(returned: Any) -> list[list[str]]:
    """Return the questions and answers of what a function returned, or none for None.

    Raises:
        TypeError: If it is something else.
    """
    found = list[list[str]]()
    expected = "it must return pairs of a question and an answer, or None"
    if returned is not None and not isinstance(returned, Iterable):
        raise TypeError(f"{expected}, not {shorten(returned)}")
    for one in returned or ():
        pair = [one.get("question"), one.get("answer")] if isinstance(one, Mapping) else one
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(f"{expected}, not {shorten(one)}")
        if not all(isinstance(part, str) and part.strip() for part in pair):
            raise TypeError(f"{expected}, not {shorten(one)}")
        found.append([part.strip() for part in pair])
    return found


def read_pairs(answer: str) -> list[tuple[str, str]]:
    """Return the questions and answers that a model wrote."""
    return parse_pairs(answer, ("question", "q"), ("answer", "a"))


@register_transform(
    "comprehension",
    paper="AdaptLLM, Cheng et al., ICLR 2024; TransformLLM, 2024",
    summary="documents followed by questions that they answer, mined by patterns or made by a function",
)
@dataclass(frozen=True)
class Comprehension(Transform):
    """Writes each document followed by questions and answers, so that a model learns to use what it reads.

    The patterns are for English text. Every answer is a part of the document. They need no model: a sentence that
    starts with a connective such as "Therefore," answers a question on the sentence before, and so on, see
    :data:`QUESTIONS`. A title, which is a question as well, is left out of the document.

    Attributes:
        form: ``text`` for documents with questions; ``pairs`` for one document per pair, the first part as ``text``
            and the second as ``text_pair``, with their relation as ``label``: a task for ``acclimate finetune``.
        most: Maximum questions of each relation per document.
        least: Minimum characters of the sentences of a pair, as in the released code.
        plain: What happens to documents without a question: ``keep`` or ``drop``. ``pairs`` drop them.
        generator: A function from a document to pairs of a question and an answer, instead of the patterns, or a
            language model, as ``by`` of ``generate``, with options in quotation marks. Answers that are not in the
            document are left out, and counted.
        key: What identifies the function, as ``key`` of ``generate``.
        seed: Random seed of the forms of the questions.
    """

    main: ClassVar[str] = "form"
    functions: ClassVar[tuple[str, ...]] = ("generator",)
    form: Literal["text", "pairs"] = "text"
    most: int = 2
    least: int = 50
    plain: Literal["keep", "drop"] = "keep"
    generator: Writing | None = None
    key: FunctionKey | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        if self.most < 1 or self.least < 0:
            raise UserError("Transform 'comprehension': most must be at least 1, and least at least 0.")

    def apply(self, documents: Documents, context: OperationContext) -> Iterator[Document]:
        """Find the questions of each document, and write them after it."""
        generate: CachedFunction | None = None
        generated: Iterator[list[Any]] = repeat([])
        if self.generator is not None:
            generate = CachedFunction(self.generator, self.key, read_answers, prompt=PROMPT, parse=read_pairs)
            generated = generate.map(documents, len(documents))
        counts, asked, foreign, plain = Counter[str](), 0, 0, list[str]()
        for (text, fields), made in zip(documents.with_fields(), generated, strict=generate is not None):
            if generate is None:
                pairs = self._limit(mine_pairs(text, self.least))
                questions = [(self._ask(pair, text), pair.second) for pair in pairs]
            else:
                questions = [(question, answer) for question, answer in made if answer in text]
                pairs = [Pair("generated", question, answer) for question, answer in questions]
                foreign += len(made) - len(questions)
            counts.update(pair.relation for pair in pairs)
            asked += bool(pairs)
            if self.form == "pairs":
                pairs = [pair for pair in pairs if pair.relation != TITLE]
                for relation, first, second in pairs:
                    label = {} if generate else {"label": relation}
                    yield Document(first, {"text_pair": second, **label})
            elif pairs or self.plain == "keep":
                has_title = pairs and pairs[0].relation == TITLE
                passage = text.strip().partition("\n")[2].strip() if has_title else text
                lines = [f"Question: {question}\nAnswer: {answer}" for question, answer in questions]
                yield Document("\n\n".join([passage, *lines]), fields)
            if not pairs and (self.plain == "drop" or self.form == "pairs") and len(plain) < EXAMPLES:
                plain.append(text)
        context.notes.update(documents_with_questions=asked, questions=dict(counts.most_common()), dropped=plain)
        if generate is not None:
            context.notes.update(generate.account(), answers_not_in_the_document=foreign)

    def _limit(self, pairs: list[Pair]) -> list[Pair]:
        """Return the first pairs of each relation."""
        seen, kept = Counter[str](), list[Pair]()
        for pair in pairs:
            seen[pair.relation] += 1
            if seen[pair.relation] <= self.most:
                kept.append(pair)
        return kept

    def _ask(self, pair: Pair, text: str) -> str:
        """Return a question on a pair, in a form that depends on the seed and the texts."""
        forms = QUESTIONS[pair.relation]
        digest = blake2b(f"{pair}{text}".encode("utf-8", "surrogatepass"), digest_size=8, key=str(self.seed).encode())
        form = forms[int.from_bytes(digest.digest(), "big") % len(forms)]
        return form.replace("{}", pair.first)
