"""The labelled task from documentation: masking of names, topics, splits without overlap."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.labs.demo.docstrings import Document
from acclimate.labs.demo.task import (
    NEUTRAL_WORD,
    OVERLAP_WORDS,
    PACKAGES,
    TOPICS,
    count_labels,
    derive_task,
    find_topic,
    make_task_text,
    mask_names,
)
from tests.cases import each
from tests.labs.demo.packages import library

SIZES = {"train": 3, "dev": 1, "test": 2}


def document(text: str = "Some text of it.", module: str = "scipy.signal.x", name: str = "f") -> Document:
    return Document(module.split(".")[0], module, name, text)


@each(
    ("text", "masked"),
    [
        ("SciPy and NUMPY arrays", "library and library arrays"),
        ("Calls np.linalg.norm(x) twice", "Calls library(x) twice"),
        ("A scikit-learn estimator", "A library estimator"),
        ("Use signal.lfilter for it, e.g. twice.", "Use library for it, e.g. twice."),
        ("See https://docs.scipy.org/doc/ for more", "See library for more"),
        ("a pandas.DataFrame", "a library"),
        ("An input is split.", "An input is split."),
        ("The expander", "The expander"),
    ],
)
def test_mask_names(text, masked):
    assert mask_names(text) == masked


@given(
    st.sampled_from([*PACKAGES, "np", "plt", "scikit-learn"]),
    st.sampled_from([str.upper, str.lower, str.title]),
    st.sampled_from(["", " ", "(", ": ", '"']),
    st.sampled_from(["", " ", ")", ".", ", ", "'s"]),
)
def test_names_are_masked_in_any_case_and_context(name, style, before, after):
    masked = mask_names(f"text{before or ' '}{style(name)}{after} end")
    assert name.lower() not in masked.lower().replace("input", "")
    assert NEUTRAL_WORD in masked


def test_the_most_specific_module_determines_the_topic():
    assert find_topic(document(module="scipy.sparse.csgraph._flow")) == "graphs"
    assert find_topic(document(module="scipy.sparse.linalg._eigen")) == "linear algebra"
    assert find_topic(document(module="scipy.sparse._csr")) is None
    assert find_topic(document(module="scipy.signalling")) is None
    assert find_topic(document(module="scipy.signal")) == "signal processing"


def test_task_texts_are_masked_and_truncated():
    assert make_task_text(document("SciPy filters.\nAll of them, forwards."), words=4) == "library filters. All of"


def test_splits_are_balanced_and_disjoint():
    made = derive_task(library(), **SIZES)
    for part, size in SIZES.items():
        assert count_labels(getattr(made, part)) == dict.fromkeys(sorted(TOPICS), size)
    sources = Counter(item.document.source for item in (*made.train, *made.dev, *made.test))
    assert max(sources.values()) == 1


def test_the_corpus_excludes_dev_and_test_but_not_train():
    made = derive_task(library(), **SIZES)
    corpus = {document.source for document in made.corpus}
    assert not corpus & {item.document.source for item in (*made.dev, *made.test)}
    assert corpus >= {item.document.source for item in made.train}
    assert made.removed == len(library()) - len(made.corpus) == len(TOPICS) * 3


def corpus_includes(extra_of):
    """Add a document derived from a test example to the library; return whether the corpus includes it."""
    plain = derive_task(library(), **SIZES)
    extra = extra_of(plain.test[0].document)
    made = derive_task([*library(), extra], **SIZES)
    assert plain.test[0].document in [item.document for item in made.test]
    return extra in made.corpus


def test_the_corpus_excludes_documents_with_the_same_name_in_the_package():
    assert not corpus_includes(
        lambda item: Document(item.package, f"{item.package}.other", item.name, "Quite another text.")
    )
    assert corpus_includes(lambda item: Document("elsewhere", "elsewhere.other", item.name, "Quite another text."))


def test_the_corpus_excludes_documents_with_the_same_summary():
    assert not corpus_includes(lambda item: Document("x", "x.y", "z", f"{item.summary.upper()}\nOther words follow."))


def test_the_corpus_excludes_documents_with_shared_word_sequences():
    def sharing(words):
        return lambda item: Document("x", "x.y", "z", "New. " + " ".join(item.text.split()[5 : 5 + words]))

    assert not corpus_includes(sharing(OVERLAP_WORDS))
    assert corpus_includes(sharing(OVERLAP_WORDS - 1))


def test_train_does_not_overlap_with_dev_and_test():
    documents = library()
    copies = [Document(d.package, d.module, d.name + "_copy", f"Copy.\n{d.text}") for d in documents]
    made = derive_task([*documents, *copies], **SIZES)
    held = {item.document.name.removesuffix("_copy") for item in (*made.dev, *made.test)}
    assert not held & {item.document.name.removesuffix("_copy") for item in made.train}


def test_the_split_depends_on_the_seed_but_not_on_the_document_order():
    documents = library()
    shuffled = random.Random(5).sample(documents, len(documents))
    assert derive_task(documents, **SIZES) == derive_task(shuffled, **SIZES)
    assert derive_task(documents, **SIZES).test != derive_task(documents, **SIZES, seed=1).test


def test_too_few_documents_of_a_topic_are_an_error():
    with pytest.raises(UserError, match=r"1 texts too few for the topic 'calculus'"):
        derive_task(library(5), **SIZES)
