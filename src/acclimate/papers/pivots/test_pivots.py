"""Masking of pivots: their scores against scikit-learn, the probabilities, and training."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.papers.pivots.method import PivotMasking, score_words, word_sets
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.words import SubwordTable
from acclimate.tasks.kinds.classification.data import Task
from tests.papers.test_contract import SHORT
from tests.papers.test_labelled import FOODS, TARGET
from tests.tiny import tiny_tokenizer


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd")), st.integers(0, 2)), min_size=1, max_size=12))
def test_scores_are_those_of_a_count_of_each_word(rows):
    texts, labels = [text | {"all"} for text, _ in rows], np.array([label for _, label in rows])
    words = sorted(set().union(*texts))
    found, counts = score_words(words, texts, labels, 3, "mutual-information")
    for word, score, by_class in zip(words, found, counts, strict=True):
        present = [word in text for text in texts]
        assert score == pytest.approx(mutual_info_score(labels, present), abs=1e-9)
        assert by_class.tolist() == [sum(np.array(present) & (labels == c)) for c in range(3)]
    for word, score in zip(words, score_words(words, texts, labels % 2, 2, "polarity")[0], strict=True):
        mine = [2 * (label % 2) - 1 for text, label in zip(texts, labels.tolist(), strict=True) if word in text]
        assert score == pytest.approx(abs(sum(mine)) / len(mine))


def test_pivots_and_other_words_are_masked_with_their_probabilities():
    tokenizer = tiny_tokenizer()
    ids = np.array([tokenizer("the goodish food was good and the bad soup")["input_ids"]] * 2000)
    text = np.repeat(np.arange(len(ids))[:, None], ids.shape[1], 1)
    allowed = ~np.isin(ids, tokenizer.all_special_ids)
    masking = PivotMasking(0.6, pivots=frozenset({"good", "soup", "goodish"}), others=0.1, mask=1, random=0)
    corrupted, labels = masking(ids, text, allowed, make_vocabulary(tokenizer), np.random.default_rng(0))
    assert ((corrupted == tokenizer.mask_token_id) == (labels >= 0)).all()
    shares = (labels >= 0).mean(0)
    tokens = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    (forms,) = word_sets(ids[:1], tokenizer, SubwordTable.of(tokenizer))
    assert {"good", "soup", "goodish", "bad"} <= forms
    after = tokens.index("food")
    for place, token in enumerate(tokens):
        pivot = token in ("good", "soup") or 1 < place < after
        expected = 0 if token in ("[CLS]", "[SEP]") else 0.6 if pivot else 0.1
        assert shares[place] == pytest.approx(expected, abs=0.05), token
    whole = labels[:, 2:after] >= 0
    assert (whole.all(1) == whole.any(1)).all()


def test_words_of_both_domains_that_tell_the_label_are_found(tiny_bert, tmp_path, capsys):
    options = {**SHORT, "steps": 2, "progress": True, "task": FOODS}
    chosen = {"count": 2, "least": 3, "stop_words": "none"}
    result = adapt(tiny_bert, Corpus.of(TARGET), {"pivots": chosen}, tmp_path / "out", **options)
    assert result.steps == 2
    record = read_json(tmp_path / "out" / "pivots.json")
    assert set(record["pivots"]) == {"good", "bad"} and record["candidates"] > 2
    assert record["pivots"]["good"] == {"score": pytest.approx(np.log(2)), "label": "good", **record_counts()}
    assert "Pivots: 2 of" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UserError, match="No word occurs in 50 texts of the task 'foods' and of the corpus"):
        adapt(tiny_bert, Corpus.of(TARGET), {"pivots": {"least": 50}}, tmp_path / "x", **options)
    rare = Corpus.of(["good food", "bad soup"])  # frequent in the source only
    with pytest.raises(UserError, match="No word occurs in 3 texts"):
        adapt(tiny_bert, rare, {"pivots": chosen}, tmp_path / "x", **options)
    several = Task.of("several", [{"text": "good food", "label": ["a", "b"]}] * 3, [{"text": "bad", "label": ["a"]}])
    with pytest.raises(UserError, match="one label per text"):
        adapt(tiny_bert, Corpus.of(TARGET), "pivots", tmp_path / "x", **{**options, "task": several})


def record_counts():
    return {
        "source_texts": sum("good" in example.text for example in FOODS.train),
        "target_texts": sum("good" in text for text in TARGET),
    }


def test_settings():
    for chosen, message in (
        ({"count": 0}, "count must be more than zero"),
        ({"pivot_rate": 1}, "pivot_rate must be a probability"),
        ({"other_rate": 0}, "other_rate must be a probability"),
        ({"score": "guess"}, "'score'"),
    ):
        with pytest.raises(UserError, match=message):
            get("pivots", **chosen)
