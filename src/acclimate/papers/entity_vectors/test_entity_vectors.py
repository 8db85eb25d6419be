"""Entity vectors in the input: where mentions are, what is added, and that fine-tuning and prediction have them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.new_tokens import load_vectors
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.reading import DEFAULT_READING
from acclimate.data.tokenizing import encode
from acclimate.models.extensions import add_entities
from acclimate.models.loading import load_language_model
from acclimate.papers.entity_vectors.method import list_forms
from acclimate.tasks.finetune import finetune
from acclimate.tasks.prediction import load_predictor
from tests.cases import each
from tests.papers.test_contract import CITED, DOCUMENTS, SHORT, TASK, VECTORS
from tests.tiny import pair_tokenizer, save_tiny

NAMES = ["food", "cold soup", "soup", "wine", "the menu", "pasta", "x"]


def run(model, out, vectors=VECTORS, **settings):
    given = {key: str(value) for key, value in {"vectors": vectors, **settings}.items()}
    return adapt(model, Corpus.of(DOCUMENTS), {"entity-vectors": given}, out, **{**SHORT, "steps": 2})


def write(path, rows):
    path.write_text("".join(f"{name} {' '.join(map(str, vector))}\n" for name, vector in rows))
    return path


def slow_find(words, names):
    """The name that each word mentions, or None: from left to right, the longest that is there."""
    found, place = [], 0
    while place < len(words):
        fits = [name for name in names if words[place : place + len(name.split())] == name.split()]
        size = max((len(name.split()) for name in fits), default=1)
        found += [max(fits, key=lambda name: len(name.split()))] * size if fits else [None]
        place += size
    return found


@each("bpe", [False, True])
def test_mentions_are_whole_words_the_longest_from_left_to_right(bpe, tmp_path):
    """Words are followed to their tokens: WordPiece splits unknown words, byte-level BPE marks spaces."""
    own = pair_tokenizer("bart")
    save_tiny("roberta", tmp_path / "model", **({"vocab_size": len(own)} if bpe else {}))
    if bpe:
        own.save_pretrained(tmp_path / "model")
    vectors = write(
        tmp_path / "names.vec", [(name.replace(" ", "_"), [number, 1.0]) for number, name in enumerate(NAMES)]
    )
    run(tmp_path / "model", tmp_path / "out", vectors)
    loaded = load_language_model(tmp_path / "out")
    module, tokenizer, chance = loaded.model.get_input_embeddings().entities, loaded.tokenizer, random.Random(0)
    listed = "the a foods xs cold soup soup wine menu food x hot".split()
    for _ in range(40):
        words = [chance.choice(listed) for _ in range(8)]
        # In phrases, capitals of one word are no spelling that is listed.
        forms = [
            chance.choice([word, word.upper(), word.capitalize()]) if word in ("food", "wine") else word
            for word in words
        ]
        wanted, ids = [], []
        for number, (form, name) in enumerate(zip(forms, slow_find(words, NAMES), strict=True)):
            own = encode(tokenizer, [form if not number else f" {form}"])[0]
            ids += own
            wanted += [-1 if name is None else NAMES.index(name)] * len(own)
        assert ids == encode(tokenizer, [" ".join(forms)])[0]
        found = module.find(torch.tensor([ids, ids[::-1]]))
        numbers = [-1 if owner < 0 else int(module.vectors[owner, 0]) for owner in found[0].tolist()]
        assert numbers == wanted and module.find(torch.tensor(ids)).tolist() == found[0].tolist()


def test_the_mapped_vector_is_added_to_each_token_of_a_mention_and_to_no_other(tiny_bert):
    model = load_language_model(tiny_bert).model
    table = model.get_input_embeddings()
    ids = torch.tensor([[2, 30, 31, 40, 3], [2, 31, 50, 3, 0]])
    plain = table(ids)
    made = add_entities(model, entities=2, dimension=3, spellings=2, longest=2, vocabulary=len(table.weight))
    made.spellings.copy_(torch.tensor([[30, 31], [50, -1]]))
    made.owner.copy_(torch.tensor([1, 0]))
    made.bounds.fill_(True)
    made.vectors.copy_(torch.randn(2, 3))
    wanted = plain.clone()
    for row, place, owner in ((0, 1, 1), (0, 2, 1), (1, 2, 0)):
        wanted[row, place] += made.map.weight @ made.vectors[owner] + made.map.bias
    torch.testing.assert_close(table(ids), wanted)
    with pytest.raises(UserError, match="already has entity vectors"):
        add_entities(model, entities=1, dimension=3, spellings=1, longest=1, vocabulary=9)


def test_the_map_begins_with_a_regression_on_names_and_only_the_map_is_trained(tiny_bert, tmp_path):
    """Vectors from which the embeddings of the names follow linearly are mapped to these."""
    start = load_language_model(tiny_bert)
    table = start.model.get_input_embeddings().weight.detach()
    names = [*"food soup wine menu pasta pizza waiter table price service good bad cold kind".split(), "rude waiter"]
    means = torch.stack([table[encode(start.tokenizer, [name])[0]].mean(0) for name in names])
    turn = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))[0]
    rows = [(f"Q{number}", vector) for number, vector in enumerate((means @ turn).tolist())]
    (tmp_path / "names.csv").write_text("entity,name\n" + "".join(f"Q{n},{name}\n" for n, name in enumerate(names)))
    given = {"vectors": write(tmp_path / "q.vec", rows), "names": tmp_path / "names.csv"}
    adapt(tiny_bert, Corpus.of(DOCUMENTS), {"entity-vectors": {k: str(v) for k, v in given.items()}}, tmp_path / "out",
          **{**SHORT, "steps": 1, "learning_rate": 1e-9})  # fmt: skip
    module = load_language_model(tmp_path / "out").model.get_input_embeddings().entities
    mapped = module.map(module.vectors)
    centered = means - means.mean(0)
    assert (mapped - means).norm() < 0.1 * centered.norm()

    run(tiny_bert, tmp_path / "trained", **given)
    trained = load_language_model(tmp_path / "trained").model
    before = dict(start.model.named_parameters())
    changed = {name for name, value in trained.named_parameters()
               if name not in before or not torch.equal(value, before[name])}  # fmt: skip
    assert changed == {f"bert.embeddings.word_embeddings.entities.map.{part}" for part in ("weight", "bias")}
    assert not torch.equal(trained.get_input_embeddings().entities.map.weight, module.map.weight)


def test_fine_tuning_and_prediction_have_the_vectors(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "adapted")
    finetune(tmp_path / "adapted", TASK, out=tmp_path / "tuned", epochs=1, precision="fp32", progress=False)
    first = load_language_model(tmp_path / "adapted").model.get_input_embeddings().entities
    predictor = load_predictor(tmp_path / "tuned", None)
    entities = predictor.head.model.get_input_embeddings().entities
    assert torch.equal(entities.vectors, first.vectors) and not torch.equal(entities.map.weight, first.map.weight)
    examples = predictor.read([("", {"text": "cold soup"}), ("", {"text": "rude"})], DEFAULT_READING)
    whole = predictor.head.probabilities(examples, "fp32")
    entities.map.weight.data.zero_()
    entities.map.bias.data.zero_()
    without = predictor.head.probabilities(examples, "fp32")
    assert not torch.allclose(whole[0], without[0], atol=1e-6) and torch.allclose(whole[1], without[1], atol=1e-6)


def test_a_causal_model_is_refused_since_names_tell_it_the_text_to_come(decoders, tmp_path):
    with pytest.raises(UserError, match=r"tell a causal model its text.*for masked language models"):
        run(decoders["smollm3"], tmp_path / "out")


def test_what_does_not_fit_a_model_with_entity_vectors_is_refused(tiny_bert, tmp_path):
    """Its table knows the number of its rows, and folders of other results cannot hold its vectors."""
    run(tiny_bert, tmp_path / "one")
    for options, wrong in (
        ({"method": "lm", "new_tokens": 5}, "has entity vectors of its own, whose embedding layer cannot grow"),
        ({"method": {"prompt": {"length": 2}}}, "embedding layer cannot grow"),
        ({"method": "hyper-prompt"}, "embedding layer cannot grow"),
        ({"method": "lm", "adapter": "lora r=2"}, "prompts or entity vectors of its own"),
        ({"method": {"experts": {"table": str(CITED)}}}, "prompts or entity vectors of its own"),
    ):
        with pytest.raises(UserError, match=wrong):
            adapt(tmp_path / "one", Corpus.of(DOCUMENTS), out=tmp_path / "two", **{**SHORT, **options})


def test_names_and_files_that_cannot_be_used(tiny_bert, tmp_path):
    assert list_forms("beta_Blocker")[::2] == [
        *(" beta Blocker", " beta blocker", " BETA BLOCKER", " Beta blocker", " Beta Blocker"),
    ]
    assert len(load_vectors(VECTORS)) == 13 and np.isfinite(load_vectors(VECTORS)["cold_soup"]).all()
    (tmp_path / "names.csv").write_text("entity,name\nQ1,food\n")
    (tmp_path / "words.vec").write_text("food\nsoup\n")
    for settings, wrong in (
        ({"vectors": None}, "needs vectors; give a text file"),
        ({"vectors": "no.vec"}, r"'no\.vec' cannot be read"),
        ({"vectors": str(tmp_path / "words.vec")}, r"words\.vec' cannot be read: line 1 has no numbers"),
        ({"names": str(tmp_path / "names.csv")}, "No name of an entity"),
        ({"names": "no.csv"}, r"no file 'no\.csv' with the names"),
    ):
        with pytest.raises(UserError, match=wrong):
            given = {"vectors": str(VECTORS), **settings}
            adapt(tiny_bert, Corpus.of(DOCUMENTS), {"entity-vectors": given}, tmp_path / "out", **SHORT)
