"""Encoder-decoders that answer: rows, losses and texts are those of the model's own forward pass."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from acclimate.data.task_kinds import load_task
from acclimate.models.generating import Decoding, write_texts
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.generation.data import Prompted
from acclimate.tasks.kinds.generation.model import PairAnswerModel, load_answer_model, plain_prompt
from acclimate.tasks.prediction import load_predictor
from acclimate.tasks.probing import mean_states

WORDS = "food good waiter kind cold soup slow".split()
ITEMS = [
    Prompted("the food", ("good",)),
    Prompted("cold soup and a slow waiter", ("a rude waiter", "slow"), "on the menu"),
    Prompted("a?", ("is it",)),
]


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_loss_and_answers_are_those_of_the_model_itself(encoder_decoders, kind):
    head = load_answer_model(encoder_decoders[kind], 80)
    assert isinstance(head, PairAnswerModel)
    bare = AutoModelForSeq2SeqLM.from_pretrained(encoder_decoders[kind]).eval()
    losses, texts = [], []
    for item in ITEMS:
        source = torch.tensor([head.tokenizer(plain_prompt(item))["input_ids"]])
        target = torch.tensor([head.tokenizer(item.references[0])["input_ids"]])
        losses.append(nn.functional.cross_entropy(bare(input_ids=source, labels=target).logits[0], target[0]).item())
        made = [int(bare.config.decoder_start_token_id)]
        while len(made) < 7 and made[-1:] != [2] * (len(made) > 1):
            made.append(int(bare(input_ids=source, decoder_input_ids=torch.tensor([made])).logits[0, -1].argmax()))
        texts.append(head.tokenizer.decode(made[1:], skip_special_tokens=True))
    rows = head.features(ITEMS)
    found = head.run(head.model.eval(), head.collate(rows)).loss
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    head.decoding = Decoding(6)
    assert [one.text for one in head.write(ITEMS, "fp32")] == texts
    alone = [head.write([item], "fp32")[0].text for item in ITEMS]
    assert alone == texts


def test_stop_strings_cut_the_answer(encoder_decoders):
    head = load_answer_model(encoder_decoders["t5"], 80)
    ids = head.tokenizer("the food")["input_ids"]
    whole = write_texts(head.model, head.tokenizer, [ids], Decoding(8))[0].text
    stop = whole[len(whole) // 2 :][:1]
    cut = write_texts(head.model, head.tokenizer, [ids], Decoding(8, (stop,)))[0]
    assert cut.text == whole.split(stop)[0] and cut.finished


def row_of(split, number):
    chance = random.Random(f"{split}{number}")
    words = chance.choices(WORDS, k=chance.randint(1, 3))
    return {"question": " ".join(words), "answers": [words[-1], f"the {number}th"]}


def test_an_encoder_decoder_learns_to_answer_and_predicts_what_it_answered(encoder_decoders, tmp_path):
    sizes = {"train": 32, "dev": 6, "test": 8}
    task = load_task({split: [row_of(split, n) for n in range(count)] for split, count in sizes.items()}, name="copy")
    options = {"precision": "fp32", "progress": False, "max_length": 64, "max_new_tokens": 4, "learning_rate": 1e-2}
    made = finetune(encoder_decoders["t5"], task, epochs=12, batch_size=8, out=tmp_path / "tuned", **options)
    untrained = finetune(encoder_decoders["t5"], task, epochs=0, **options)
    assert made.metrics["chrf"] > untrained.metrics["chrf"] + 0.1
    predictor = load_predictor(tmp_path / "tuned", 64)
    answers = predictor.answer(list(task.test), "fp32")
    assert [answer.cells["answer"] for answer in answers] == [one[0] for one in made.predicted]


def test_a_probe_reads_the_states_of_the_encoder(encoder_decoders):
    texts = ["the food was good", "cold soup"]
    for path in encoder_decoders.values():
        head = load_answer_model(path, 80)
        found = mean_states(path, texts, 32, False)
        for text, state in zip(texts, found, strict=True):
            ids = torch.tensor([head.tokenizer(text)["input_ids"]])
            own = head.model.eval().get_encoder()(input_ids=ids).last_hidden_state[0].mean(0)
            assert torch.allclose(torch.from_numpy(state), own, atol=1e-5)
