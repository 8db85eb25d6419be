"""A teacher and a student of different architecture, width, vocabulary and kind of tokenizer."""

from __future__ import annotations

import pytest
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer, processors

from acclimate.tasks.finetune import finetune
from tests.tasks.test_classification import QUICK, keyword_task
from tests.tiny import TEXTS

CPU = torch.device("cpu")


def save_student(folder, seed=3):
    """A random RoBERTa for masked language modelling, 24 wide, with a byte-level tokenizer."""
    trained = ByteLevelBPETokenizer(lowercase=True)
    trained.train_from_iterator(TEXTS, 320, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    backend = trained._tokenizer
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", mask_token="<mask>", **names
    )
    torch.manual_seed(seed)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=90,
        type_vocab_size=1,
        pad_token_id=1,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def student(tmp_path_factory):
    """The folder of a masked language model."""
    return save_student(tmp_path_factory.mktemp("models") / "student")


@pytest.fixture(scope="session")
def teacher(tiny_bert, tmp_path_factory):
    """The folder of a BERT that was fine-tuned on the keyword task."""
    out = tmp_path_factory.mktemp("models") / "teacher"
    result = finetune(tiny_bert, keyword_task(), epochs=8, learning_rate=3e-3, out=out, **QUICK)
    assert result.metrics["accuracy"] > 0.9
    return out
