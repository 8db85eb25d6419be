from __future__ import annotations

import pytest
from hypothesis import settings
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# Without deadlines, since a busy machine must not fail a test.
settings.register_profile("corpus", deadline=None, max_examples=40)
settings.load_profile("corpus")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer with one token per printable ASCII character; everything else is [UNK]."""
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *letters, *(f"##{letter}" for letter in letters)])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, SPECIAL, strict=True)))
