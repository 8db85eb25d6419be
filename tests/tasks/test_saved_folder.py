"""What is trained is what a saved folder computes in plain ``transformers``, for any text and any tokenizer."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.tokenizing import encode, read_as_text, tokenize
from acclimate.evaluation.lm_loss import _choose_masked_positions, language_model_loss
from acclimate.models.loading import load_language_model
from acclimate.models.saving import save_model
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.kinds.classification.data import Example, Task
from acclimate.tasks.kinds.qa.data import Answer, Question
from acclimate.tasks.kinds.qa.model import load_qa_model
from acclimate.tasks.kinds.qa.windows import WindowConfig
from tests.cases import each
from tests.tiny import ENCODERS, SPECIAL, VOCABULARY, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")
QUICK = {"deadline": None, "database": None, "phases": [Phase.generate]}  # shrinking would take minutes
ROLES = (*SPECIAL, "<s>", "</s>", "<pad>", "<unk>", "<mask>")
ADDED = ("drug-x", "Foo Bar", "<gene>", "[E1]", "<ent>", "[DRUG]", "GB")
PIECES = st.sampled_from(
    [*ROLES, *ADDED, *"the good food \n \u3000 é 猫 😀 ﬁ . Ä n't \u200b \u0301 \x00 ".split(" "), "  "]
)
TEXT = st.lists(PIECES | st.text(max_size=3), max_size=9).flatmap(lambda parts: st.sampled_from(["", " "]).map(
    lambda space: space.join(parts)
)).filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))  # fmt: skip


def byte_tokenizer():
    """Return a byte-level BPE without merges, like that of RoBERTa."""
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    vocabulary = {token: n for n, token in enumerate([*names, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    roles = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(roles, names, strict=True)))


def make_tokenizer(kind, variant):
    """Return a tokenizer with added tokens of every kind."""
    tokenizer = byte_tokenizer() if kind == "bytes" else tiny_tokenizer()
    if variant == "left":
        tokenizer.padding_side = "left"
        tokenizer.init_kwargs["padding_side"] = "left"
    if variant == "bare":
        tokenizer.backend_tokenizer.post_processor = None
    tokenizer.add_tokens(["drug-x", AddedToken("Foo Bar", normalized=False), AddedToken("GB", single_word=True)])
    tokenizer.add_tokens([AddedToken("<gene>", lstrip=True, rstrip=True), AddedToken("[E1]", special=True)])
    tokenizer.add_special_tokens({"extra_special_tokens": ["<ent>", "[DRUG]"]})
    return tokenizer


VARIANTS = [
    *((kind, "words", "") for kind in sorted(ENCODERS)),
    *(("bert", "bytes", "left"), ("bert", "words", "bare"), ("roberta", "bytes", ""), ("roberta", "words", "padding")),
]


@functools.cache
def base(kind, letters, variant):
    """Return the folder of a language model; in the variant "padding" its configuration has another padding id."""
    folder = Path(tempfile.mkdtemp())
    tokenizer = make_tokenizer(letters, variant)
    tokenizer.save_pretrained(folder)
    padding = {"pad_token_id": VOCABULARY["the"] if variant == "padding" else tokenizer.pad_token_id}
    tiny_model(kind, vocab_size=len(tokenizer) + 3, **padding).save_pretrained(folder)
    return folder


@functools.cache
def saved(kind, letters, variant, auto):
    """Return a model with a new head, and the model and tokenizer that transformers loads from where it was saved."""
    torch.manual_seed(0)
    if auto is transformers.AutoModelForQuestionAnswering:
        head = load_qa_model(base(kind, letters, variant), WindowConfig(60), CPU)
    else:
        head = load_classifier(base(kind, letters, variant), ["a", "b", "c"], 40, CPU, multi_label=variant == "left")
    with torch.no_grad():
        for parameter in head.model.parameters():  # larger differences between texts
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    folder = Path(tempfile.mkdtemp())
    head.save(folder)
    return head, auto.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.slow
@each(("kind", "letters", "variant"), VARIANTS)
def test_probabilities_are_those_of_transformers(kind, letters, variant):
    head, model, tokenizer = saved(kind, letters, variant, transformers.AutoModelForSequenceClassification)

    @settings(max_examples=5, **QUICK)
    @given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6), st.booleans())
    def check(texts, pair):
        first, second = map(list, zip(*texts, strict=True))
        examples = [Example(one, two if pair else None, 0) for one, two in texts]
        inputs = tokenizer(
            first, second if pair else None, truncation=True, max_length=40, padding=True, return_tensors="pt"
        )
        lengths = inputs["attention_mask"].sum(1).tolist()
        if 0 in lengths:
            with pytest.raises(UserError, match="finds no token"):
                head.features(examples)
            return
        rows = [ids[:size] for ids, size in zip(inputs["input_ids"].tolist(), lengths, strict=True)]
        assert [row["input_ids"] for row in head.features(examples)] == rows
        with torch.no_grad():
            logits = model(**inputs).logits
        expected = logits.sigmoid() if head.multi_label else logits.softmax(-1)
        torch.testing.assert_close(head.probabilities(examples, "fp32"), expected, atol=1e-5, rtol=1e-4)

    check()


@pytest.mark.slow
@each(("kind", "letters", "variant"), VARIANTS)
def test_the_logits_of_answers_are_those_of_transformers(kind, letters, variant):
    head, model, tokenizer = saved(kind, letters, variant, transformers.AutoModelForQuestionAnswering)

    @settings(max_examples=4, **QUICK)
    @given(st.lists(st.tuples(TEXT.filter(str.strip), TEXT.filter(str.strip)), min_size=1, max_size=4))
    def check(texts):
        short = [pair for pair in texts if all(len(tokenizer(text)["input_ids"]) < 25 for text in pair)]
        asked = [Question(str(n), one, two, (Answer(two.strip(), 0),)) for n, (one, two) in enumerate(short)]
        windows = head._windows(asked)
        assert len(windows) == len(short)
        for number, (row, found) in enumerate(zip(windows, head.predict(windows, "fp32"), strict=True)):
            inputs = tokenizer(*short[number], return_tensors="pt")
            assert list(row["input_ids"]) == inputs["input_ids"][0].tolist()
            if not len(row["input_ids"]):
                continue
            with torch.no_grad():
                output = model(**inputs)
            expected = torch.stack([output.start_logits[0], output.end_logits[0]])
            torch.testing.assert_close(found[:, : expected.shape[1]], expected, atol=1e-4, rtol=1e-4)

    check()


@pytest.mark.slow
@each(("kind", "letters", "variant"), VARIANTS)
def test_held_out_losses_are_those_of_transformers(kind, letters, variant):
    loaded = load_language_model(base(kind, letters, variant))
    folder = Path(tempfile.mkdtemp())
    save_model(loaded.model, folder)
    loaded.tokenizer.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert tokenizer("the food <mask> [MASK]")["input_ids"].count(tokenizer.mask_token_id) == 1  # for a pipeline

    @settings(max_examples=4, **QUICK)
    @given(st.lists(TEXT.filter(lambda text: not any(role in text for role in ROLES)), min_size=1, max_size=5))
    def check(texts):
        rows = tokenizer(texts, truncation=True, max_length=30, padding=True, return_tensors="pt")
        masked, labels = rows["input_ids"].clone(), torch.full_like(rows["input_ids"], -100)
        for row, size in enumerate(rows["attention_mask"].sum(1).tolist()):
            ids = rows["input_ids"][row, :size].numpy()
            places = _choose_masked_positions(ids, tokenizer.all_special_ids, [], 0.15, 13)
            if places is not None:
                labels[row, places] = rows["input_ids"][row, places]
                masked[row, places] = tokenizer.mask_token_id
        if not (labels >= 0).any():
            with pytest.raises(UserError, match="no token to predict"):
                language_model_loss(loaded.model, texts, tokenizer=loaded.tokenizer, max_length=30)
            return
        with torch.no_grad():
            expected = model(**{**rows, "input_ids": masked}, labels=labels).loss.item()
        found = language_model_loss(loaded.model, texts, tokenizer=loaded.tokenizer, max_length=30)
        assert found["nats"] == pytest.approx(expected, abs=1e-4)

    check()


@each(("letters", "variant"), [("words", ""), ("words", "bare"), ("bytes", "")])
def test_rows_of_a_corpus_are_those_of_the_tokenizer(letters, variant):
    """Tokens with a role are read as text, all other added tokens as tokens."""
    tokenizer = make_tokenizer(letters, variant)
    before = tokenizer.backend_tokenizer.to_str()

    @settings(max_examples=30, **QUICK)
    @given(TEXT)
    def check(text):
        (ids,) = encode(tokenizer, [text])
        if not any(role in text for role in ROLES):
            assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
            (row,) = tokenize(Corpus.of([f"{text} the", "x"]), tokenizer, 200)[:1]
            assert row.tolist() == tokenizer(f"{text} the")["input_ids"]
        assert not set(ids) & set(tokenizer.convert_tokens_to_ids([*tokenizer.special_tokens_map.values()])) - {
            tokenizer.unk_token_id
        }

    check()
    assert encode(tokenizer, ["the <ent> [DRUG] drug-x <gene> [E1] Foo Bar"])[0][-1] == len(tokenizer) - 6
    assert tokenizer.backend_tokenizer.to_str() == before
    again = read_as_text(read_as_text(tokenizer))
    assert encode(again, ["[SEP] <ent>"]) == encode(tokenizer, ["[SEP] <ent>"])


def test_predictions_of_a_run_are_those_of_transformers(tmp_path):
    """With padding ids that differ, and a language model that is adapted from the result."""
    rows = [
        {"text": f"{word} [SEP] <ent> the {'food ' * n}", "label": word} for n in range(6) for word in ("good", "bad")
    ]
    task = Task.of("t", rows, rows)
    start = base("roberta", "words", "padding")
    found = finetune(start, task, epochs=1, learning_rate=1e-3, out=tmp_path, progress=False, precision="fp32")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.pad_token_id == json.loads((start / "config.json").read_text())["pad_token_id"] != 0
    with torch.no_grad():
        logits = model(**tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")).logits
    np.testing.assert_allclose(logits.softmax(-1).numpy(), found.probabilities, atol=1e-5)
    assert load_language_model(tmp_path).tokenizer("[MASK]")["input_ids"].count(VOCABULARY["[MASK]"]) == 1


def test_rows_do_not_depend_on_their_batch():
    head, *_ = saved("bert", "bytes", "left", transformers.AutoModelForSequenceClassification)
    examples = [Example(text, None, 0) for text in ("a", "a good food", "b " * 15)]
    batch = head.collate(head.features(examples))
    assert (batch["input_ids"][:, 0] == head.tokenizer.cls_token_id).all()
    alone = torch.cat([head.probabilities([example], "fp32") for example in examples])
    torch.testing.assert_close(head.probabilities(examples, "fp32"), alone, atol=1e-6, rtol=1e-5)


def test_a_slow_tokenizer_with_added_tokens_reads_what_it_reads_elsewhere(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *"abcdefgh[]"]))
    options = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "character"}
    tokenizer = transformers.BertJapaneseTokenizer(str(tmp_path / "vocab.txt"), **options)
    plain = copy.deepcopy(tokenizer)
    assert 3 not in encode(tokenizer, ["a [SEP] b"])[0]
    plain.add_tokens(["abc"])
    assert encode(plain, ["abc [SEP]"])[0] == plain("abc [SEP]", add_special_tokens=False)["input_ids"]
