"""Extractive question answering: the answer to a question is a span of a passage."""

from acclimate.tasks.qa.data import Answer, QATask, Question, load_qa
from acclimate.tasks.qa.model import QuestionAnswering

__all__ = ["Answer", "QATask", "Question", "QuestionAnswering", "load_qa"]
