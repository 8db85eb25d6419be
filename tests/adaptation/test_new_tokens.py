"""New tokens: the pieces that are learned, the tokenizer and rows that are extended, and adaptations with them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn.linear_model import Ridge
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

import acclimate
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.new_tokens import NEW_TOKENS_FILE, read_vectors
from acclimate.adaptation.tokenizer import extend_tokenizer, learn_pieces, split_into_tokens, tokenizer_model
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.surface_forms import SurfaceForm
from acclimate.models.loading import load_language_model
from acclimate.parts.modules.new_rows import TrainNewRows, add_rows, map_vectors
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import TASK
from tests.tiny import ENCODERS, TEXTS, VOCABULARY, decoder_tokenizer, tiny_model, tiny_tokenizer

DOMAIN = [f"{text} myocardial infarction of the myocardium" for text in TEXTS]
WORDS = ["infarction", "myocardial", "myocardium"]
SHORT = {"steps": 2, "batch_size": 4, "max_length": 32, "precision": "fp32", "progress": False}


def make_pieces(tokenizer, texts=DOMAIN, **options):
    model = tokenizer_model(tokenizer)
    mark = model.get("continuing_subword_prefix") or ""
    words = split_into_tokens(tokenizer, texts)
    return learn_pieces(words, model["vocab"], mark=mark, every="merges" in model, **options)


def naive_pairs(words, limit, min_count):
    """Byte-pair encoding that counts all pairs again after every merge; as (pair, occurrences)."""
    words, found = Counter(words), []
    while len(found) < limit:
        counts = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                counts[pair] += count
        made = {"".join(pair) for pair, _ in found}
        open_pairs = [(-count, pair) for pair, count in counts.items() if "".join(pair) not in made]
        if not open_pairs or -min(open_pairs)[0] < min_count:
            break
        number, pair = min(open_pairs)
        found.append((pair, -number))
        merged = Counter()
        for word, count in words.items():
            new = []
            for token in word:
                if new and (new[-1], token) == pair:
                    new[-1] += token
                else:
                    new.append(token)
            merged[tuple(new)] += count
        words = merged
    return [pair for pair, _ in found]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=7).map(tuple), st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(1, 6),
)
def test_pieces_are_those_of_a_slow_byte_pair_encoding(words, limit, min_count):
    found = learn_pieces(words, set("abc"), limit=limit, min_count=min_count)
    assert [(piece.left, piece.right) for piece in found] == naive_pairs(words, limit, min_count)
    assert all("".join(piece.parts) == piece.text and len(piece.parts) > 1 for piece in found)


@each("kind", ["wordpiece", "bpe"])
def test_the_extended_tokenizer_writes_words_as_they_were_learned(tmp_path, kind):
    tokenizer = tiny_tokenizer() if kind == "wordpiece" else decoder_tokenizer()
    pieces = make_pieces(tokenizer, min_count=2)
    longer = extend_tokenizer(tokenizer, pieces)
    assert {"myocardial", "Ġmyocardial"} & {piece.text for piece in pieces}
    counts = Counter()
    for word, count in split_into_tokens(longer, DOMAIN).items():
        counts.update(dict.fromkeys(word, count))
    assert all(counts[piece.text] == piece.count for piece in pieces)
    assert kind == "bpe" or all(piece.count >= 2 for piece in pieces), "no token is only a part of others"
    assert len(longer) == len(tokenizer) + len(pieces)
    longer.save_pretrained(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in (*DOMAIN, "zebra, 12 quokkas!"):
        assert saved(text)["input_ids"] == longer(text)["input_ids"]
    # A text without new pieces has its old tokens.
    news = {piece.text for piece in pieces}
    for text in ("zz qq!", "bvbv 12", *TEXTS):
        new = longer(text)["input_ids"]
        if not news & set(longer.convert_ids_to_tokens(new)):
            assert new == tokenizer(text)["input_ids"]
    assert longer("zz qq!")["input_ids"] == tokenizer("zz qq!")["input_ids"]


def test_new_tokens_hold_no_digits_punctuation_or_unknown_letters():
    texts = ["covid19 covid19 ~~covid~~ x=y"] * 5
    for tokenizer in (tiny_tokenizer(), decoder_tokenizer()):
        texts_of_pieces = "".join(piece.text for piece in make_pieces(tokenizer, texts, min_count=2))
        assert "covid" in texts_of_pieces and not set("19~=") & set(texts_of_pieces)


@each(
    ("kind", "tied", "start"),
    [*((kind, True, "mean") for kind in ENCODERS), ("llama", True, "zero"), ("llama", False, "mean")],
)
def test_logits_of_old_tokens_do_not_change(kind, tied, start):
    size = 352 if kind == "llama" else len(VOCABULARY)
    model = tiny_model(kind, tie_word_embeddings=tied)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        old = model.get_input_embeddings().weight.clone()
        bias = getattr(model.get_output_embeddings(), "bias", None)
        bias = None if bias is None else bias.normal_(generator=torch.Generator().manual_seed(0)).clone()
        before = model(input_ids=ids).logits
    parts = [[7, 8, 9], [30, 31]]
    inputs = torch.zeros(2, old.shape[1]) if start == "zero" else None
    tables = add_rows(model, size, parts, inputs=inputs, outputs=False)
    with torch.no_grad():
        after = model(input_ids=ids).logits
    assert torch.equal(after[..., :size], before) and after.shape[-1] == size + 2
    labels = ids.flatten()
    losses = [torch.nn.functional.cross_entropy(logits[0, :, :size], labels) for logits in (before, after)]
    assert abs(losses[0] - losses[1]) < 1e-6
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    expected = torch.stack([old[part].mean(0) for part in parts]) if start == "mean" else inputs
    torch.testing.assert_close(table[size:], expected)
    assert (head.weight is table) == tied and model.config.vocab_size == size + 2
    if not tied:
        assert not head.weight[size:].any() and tables[1] is head.weight
    if bias is not None:
        torch.testing.assert_close(tables[-1][size:], torch.stack([bias[part].mean() for part in parts]))


def test_the_warm_up_rule_trains_new_rows_only():
    model = tiny_model("bert")
    tables = add_rows(model, len(VOCABULARY), [[7, 8]], inputs=None, outputs=True)
    before = [table.detach().clone() for table in tables]
    rule, optimizer = TrainNewRows(tables, [len(VOCABULARY)]), torch.optim.AdamW(tables, lr=0.1, weight_decay=0.1)
    ids = torch.tensor([[2, 9, len(VOCABULARY), 3]])
    model(input_ids=ids, labels=ids).loss.backward()
    rule.after_backward()
    optimizer.step()
    rule.after_step()
    assert len(tables) == 2
    for table, old in zip(tables, before, strict=True):
        assert torch.equal(table[:-1], old[:-1]) and not torch.equal(table[-1], old[-1])


def test_the_map_of_vectors_is_a_ridge_regression():
    generator = torch.Generator().manual_seed(0)
    known, embeddings, new = (torch.randn(size, generator=generator) for size in ((40, 5), (40, 7), (3, 5)))
    centered = (known - known.mean(0)).square().sum(0).mean().item()
    expected = Ridge(alpha=1e-2 * centered).fit(known, embeddings).predict(new)
    torch.testing.assert_close(
        map_vectors(new, known, embeddings), torch.tensor(expected).float(), atol=1e-5, rtol=1e-4
    )


@pytest.fixture(scope="module")
def run(tiny_bert, tmp_path_factory):
    """An adaptation of BERT with new tokens and a warm-up."""
    out = tmp_path_factory.mktemp("new") / "out"
    options = {"new_tokens": "6 min_count=2 warm_up_tokens=300"}
    return adapt(tiny_bert, Corpus.of(DOMAIN), "lm", out, **SHORT, **options), options


def test_the_result_is_an_ordinary_folder_with_a_report(run, tiny_bert):
    result, _ = run
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(result.out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(result.out)
    report = result.preparation[NEW_TOKENS_FILE]
    assert len(tokenizer) == model.config.vocab_size == len(VOCABULARY) + len(report["tokens"])
    assert len(tokenizer.tokenize("myocardial infarction")) == 2 and "myocardial" in report["tokens"]
    # The report is what the two tokenizers do.
    words = [word for text in DOMAIN for word in text.split() if word.strip(".,!?").isalpha()]
    sizes = [
        sum(len(one.tokenize(word.strip(".,!?"))) for word in words)
        for one in (AutoTokenizer.from_pretrained(tiny_bert), tokenizer)
    ]
    assert report["saved"] == pytest.approx(1 - sizes[1] / sizes[0])
    assert report["tokens_per_word"] == pytest.approx([size / len(words) for size in sizes])
    assert report["most_saved"]["myocardial"] == [10, 1, len(DOMAIN)]
    assert 0 < report["probability"] < 0.2


def test_a_killed_run_has_the_same_weights_and_a_warm_up_alone_moves_new_rows_only(run, tiny_bert, tmp_path):
    whole, options = run
    with killed(lambda state: state.max_steps == SHORT["steps"] and state.global_step == 1):
        adapt(tiny_bert, Corpus.of(DOMAIN), "lm", tmp_path / "cut", save_every=1, **SHORT, **options)
    adapt(tiny_bert, Corpus.of(DOMAIN), "lm", tmp_path / "cut", save_every=1, **SHORT, **options)
    adapt(tiny_bert, Corpus.of(DOMAIN), "none", tmp_path / "none", **SHORT, **options)
    base, first, second, still = (
        load_file(at / "model.safetensors") for at in (tiny_bert, whole.out, tmp_path / "cut", tmp_path / "none")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    size = len(VOCABULARY)
    for name, value in base.items():
        assert torch.equal(still[name][:size] if len(value) == size else still[name], value)
    table = still["bert.embeddings.word_embeddings.weight"]
    assert (table[size:].norm(dim=1) > 0).all()


def test_results_with_the_same_new_tokens_merge(run, tiny_bert, tmp_path):
    result, options = run
    adapt(tiny_bert, Corpus.of(DOMAIN), "lm", tmp_path / "other", **{**SHORT, "seed": 1}, **options)
    acclimate.merge(
        result.out, {"interpolation": {"alpha": 0.5}}, tmp_path / "merged", base=tmp_path / "other", progress=False
    )
    one, other, merged = (
        load_language_model(at).model.state_dict() for at in (result.out, tmp_path / "other", tmp_path / "merged")
    )
    for name, value in merged.items():
        torch.testing.assert_close(value, (one[name] + other[name]) / 2)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "merged").tokenize("myocardial")) == 1


def test_given_words_start_from_their_vectors(tiny_bert, tmp_path):
    """The vectors are a linear map of the embeddings, so the regression finds the embedding of a new word exactly."""
    table = load_language_model(tiny_bert).model.get_input_embeddings().weight.detach()
    back = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(1))).Q
    target = torch.randn(32, generator=torch.Generator().manual_seed(2)) / 50
    rows = {word: table[VOCABULARY[word]] for word in "the of food service model data table price wine good".split()}
    rows |= {word: table[index] for word, index in VOCABULARY.items() if word.isalpha()} | {"infarction": target}
    lines = [" ".join([word, *(f"{value:.9f}" for value in (row @ back).tolist())]) for word, row in rows.items()]
    (tmp_path / "words.vec").write_text(f"{len(lines)} 32\n" + "\n".join(lines))
    (tmp_path / "words.txt").write_text("infarction\nmyocardial\n\nfood\n")
    chosen = {"start": "vectors", "vectors": str(tmp_path / "words.vec")}
    result = adapt(
        tiny_bert,
        Corpus.of(DOMAIN),
        "none",
        tmp_path / "out",
        new_tokens={str(tmp_path / "words.txt"): chosen},
        **SHORT,
    )
    report, model = result.preparation[NEW_TOKENS_FILE], load_language_model(tmp_path / "out")
    assert report["tokens"] == ["infarction", "myocardial"] or report["tokens"] == ["myocardial", "infarction"]
    assert report["with_vectors"] == 1 and report["asked"] == 3
    new = model.model.get_input_embeddings().weight
    found = new[model.tokenizer.convert_tokens_to_ids("infarction")]
    assert torch.nn.functional.cosine_similarity(found, target, dim=0) > 0.95
    parts = [VOCABULARY[part] for part in tiny_tokenizer().tokenize("myocardial")]
    torch.testing.assert_close(new[model.tokenizer.convert_tokens_to_ids("myocardial")], table[parts].mean(0))


def test_fasttext_vectors_of_the_text_give_starts(tiny_bert, tmp_path):
    pytest.importorskip("gensim")
    text = Corpus.of([f"{text} {number}" for number in range(20) for text in DOMAIN])
    chosen = {"start": "fasttext"}
    result = adapt(tiny_bert, text, "none", tmp_path / "out", new_tokens={tuple(WORDS): chosen}, **SHORT)
    report, table = result.preparation[NEW_TOKENS_FILE], load_language_model(tmp_path / "out").model
    rows = table.get_input_embeddings().weight[len(VOCABULARY) :]
    assert report["with_vectors"] == len(rows) == 3 and rows.isfinite().all()
    assert len({row.sum().item() for row in rows}) == 3


@pytest.mark.needs("tapt")
def test_later_stages_do_not_add_tokens_again(tiny_bert, tmp_path):
    options = {"new_tokens": {4: {"min_count": 2}}}
    adapt(tiny_bert, Corpus.of(DOMAIN), "dapt+tapt task_steps=1", tmp_path / "out", task=TASK, **SHORT, **options)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(VOCABULARY) < len(tokenizer) <= len(VOCABULARY) + 4


@each(
    ("options", "message"),
    [
        ({"new_tokens": 0}, "'new_tokens' must be a whole number from 1"),
        ({"new_tokens": []}, "a list of words"),
        ({"new_token_settings": {"min_count": 3}}, "Give it as new_tokens: 500 min_count=5"),
        ({"new_tokens": "5 words"}, "A new vocabulary is NAME"),
        ({"new_tokens": 5, "adapter": "lora"}, "which an adapter freezes"),
        ({"new_tokens": "5 min_count=1e4"}, "occur 10000 times in the text; lower"),
        ({"new_tokens": ["food", "12"]}, "each of the given words is a token already"),
        ({"new_tokens": "no.txt"}, r"new tokens 'no\.txt' cannot be read"),
        ({"new_tokens": "5 start=vectors"}, "give both or neither"),
        ({"new_tokens": "5 start=random"}, "start"),
        ({"new_tokens": "5 start=vectors vectors=no.vec"}, "does not exist"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tiny_bert, tmp_path, options, message):
    with pytest.raises(UserError, match=message) as error:
        adapt(tiny_bert, Corpus.of(DOMAIN), "lm", tmp_path / "out", **SHORT, **options)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_words_of_vectors_may_hold_unusual_spaces_and_lines_may_be_empty(tmp_path):
    (tmp_path / "some.vec").write_text("3 2\nnew\u00a0york 1 2\n\u3000 3 4\n\nfood\t5 6 \n", encoding="utf-8")
    look_up = read_vectors(tmp_path / "some.vec")
    found = [look_up(SurfaceForm(word, True), True) for word in ("new\u00a0york", "\u3000", "Food")]
    assert [vector.tolist() for vector in found] == [[1, 2], [3, 4], [5, 6]]


def test_other_vocabularies_and_files_are_refused(tmp_path):
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    with pytest.raises(UserError, match="a vocabulary of the kind Unigram; remove new-tokens"):
        tokenizer_model(transformers.PreTrainedTokenizerFast(tokenizer_object=unigram, unk_token="<unk>"))
    for text, message in (("a 1 2\nb 1", "line 2 has 1 numbers"), ("a 1 x", "could not convert"), ("a nan 1", "NaN")):
        (tmp_path / "bad.vec").write_text(text)
        with pytest.raises(UserError, match=message):
            read_vectors(tmp_path / "bad.vec")
