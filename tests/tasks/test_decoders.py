"""Decoders with the head of a classifier: the last token of each text is read, whatever the padding."""

from __future__ import annotations

import pytest
import torch
import transformers

from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.kinds.classification.data import Example
from tests.cases import each
from tests.tiny import TEXTS, save_tiny


@each("kind", ["llama", "gpt2", "qwen3", "gemma2"])
def test_a_batch_equals_single_texts_and_the_saved_folder(kind, tmp_path):
    folder = save_tiny(kind, tmp_path / kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    classifier = load_classifier(folder, ["a", "b", "c"], 60, torch.device("cpu"))
    with torch.no_grad():
        classifier.model.score.weight.mul_(10)  # larger differences between texts
    examples = [Example(text=text, text_pair=None, label=0) for text in TEXTS]
    found = classifier.probabilities(examples, "fp32")
    assert found.std(0).min() > 1e-3
    for example, row in zip(examples, found, strict=True):
        torch.testing.assert_close(classifier.probabilities([example], "fp32")[0], row, atol=1e-5, rtol=1e-4)
        states = classifier.model.base_model(**classifier.tokenizer(example.text, return_tensors="pt"))[0]
        torch.testing.assert_close(classifier.model.score(states[0, -1]).softmax(-1), row, atol=1e-5, rtol=1e-4)
    classifier.save(tmp_path / "saved")
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "saved"), top_k=None, device="cpu")
    for shown, row in zip(pipeline(TEXTS, batch_size=len(TEXTS)), found, strict=True):
        scores = {entry["label"]: entry["score"] for entry in shown}
        assert [scores[label] for label in "abc"] == pytest.approx(row.tolist(), abs=1e-4)
