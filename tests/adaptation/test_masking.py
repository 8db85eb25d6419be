"""Masking in an adaptation: by name, as an object, or from the method; what is recorded; what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import Method
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.parts.masking import IGNORE_INDEX, RandomMasking, get
from tests.cases import each
from tests.test_cli import call
from tests.tiny import TEXTS

SHORT = {"steps": 2, "batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


def run(model, out, method="mlm", **options):
    return adapt(model, Corpus.of(TEXTS * 3), method, out, **{**SHORT, **options})


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    one, other = weights(one), weights(other)
    return all(torch.equal(one[name], other[name]) for name in one)


@dataclass
class FirstToken(Method):
    """Masks the first token of each text, after its preparation."""

    def prepare(self, run):
        self.asked = []
        self.before = run.masking

    def masking(self, rate):
        self.rate = rate

        def first(ids, text, allowed, vocabulary, rng):
            self.asked.append((ids, text))
            start = np.zeros_like(allowed)
            for number in range(text.max() + 1):
                start.ravel()[np.flatnonzero(allowed & (text == number))[0]] = True
            return np.where(start, vocabulary.mask_id, ids), np.where(start, ids, IGNORE_INDEX)

        return first


FirstToken.name = "first-token"


def test_a_name_an_object_and_the_default(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "plain")
    run(tiny_bert, tmp_path / "named", masking="random")
    run(tiny_bert, tmp_path / "word", masking="whole-word replacement=token rate=0.3")
    run(tiny_bert, tmp_path / "object", masking=get("whole-word", 0.3, replacement="token"), mask_rate=0.3)
    assert same(tmp_path / "plain", tmp_path / "named")
    assert same(tmp_path / "word", tmp_path / "object")
    assert not same(tmp_path / "plain", tmp_path / "word")
    cards = [json.loads((tmp_path / name / "acclimate.json").read_text())["masking"] for name in ("plain", "word")]
    random = {"name": "random", "rate": 0.15, "mask": 0.8, "random": 0.1}
    assert cards == [random, {**random, "name": "whole-word", "rate": 0.3, "replacement": "token"}]


def test_another_masking_is_another_adaptation(tiny_bert, tmp_path):
    first = run(tiny_bert, tmp_path / "out", masking="span")
    assert run(tiny_bert, tmp_path / "out", masking="span").losses == first.losses
    with pytest.raises(UserError, match="holds another adaptation"):
        run(tiny_bert, tmp_path / "out")


def test_a_method_has_its_own_masking(tiny_bert, tmp_path):
    method = FirstToken()
    run(tiny_bert, tmp_path / "own", method, mask_rate=0.4)
    assert method.rate == 0.4
    assert method.before == RandomMasking(0.4), "during preparation, the run has the masking that was named"
    texts = sum(text.max() + 1 for _, text in method.asked)
    assert texts == 6 + 12, "it reads the texts of the check, and all texts of both steps"
    assert all((ids[text >= 0].reshape(-1)[0]) == 2 for ids, text in method.asked), (
        "texts include their special tokens"
    )


@each(
    ("options", "message"),
    [
        ({"masking": "whole-words"}, "Did you mean 'whole-word'"),
        ({"masking": "span q=1"}, "Unknown parameter of masking 'span'"),
        ({"masking": "span rate=0.3", "mask_rate": 0.2}, "has the rate 0.3"),
        ({"masking": "lexicon-first"}, "needs 'lexicon'"),
        ({"method": FirstToken(), "masking": "span"}, "has its own masking strategy"),
    ],
)
def test_invalid_input_is_explained(tiny_bert, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(tiny_bert, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_on_the_command_line_and_in_a_file(tiny_bert, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("\n".join(f"{text} {number}" for text in TEXTS for number in range(3)))
    (tmp_path / "words.txt").write_text("soup\n")
    common = ["--model", tiny_bert, "--corpus", tmp_path / "text.txt", "--steps", 1, "--batch-size", 4]
    common += ["--max-length", 24, "--precision", "fp32", "--quiet"]
    own = ["--masking", f"lexicon-first lexicon={tmp_path / 'words.txt'}"]
    assert call(monkeypatch, capsys, "adapt", *common, *own, "--out", tmp_path / "a")[0] == 0
    config = tmp_path / "run.yaml"
    config.write_text(f"masking: {{lexicon-first: {{lexicon: '{tmp_path / 'words.txt'}'}}}}\n")
    arguments = ["--config", config, "--out", tmp_path / "b"]
    assert call(monkeypatch, capsys, "adapt", *common, *arguments)[0] == 0
    assert same(tmp_path / "a", tmp_path / "b")
    code, _, err = call(monkeypatch, capsys, "adapt", *common, "--masking", "span share", "--out", tmp_path / "c")
    assert code == 2 and "A masking is NAME, 'NAME parameter=value ...'" in err
