"""Hostile corpora, tasks and models."""

from __future__ import annotations

import json

import numpy as np

from tests.hostile.checks import ADAPT, DONE, TEXT, TUNE, TUNED, made, not_run, same_label
from tests.hostile.makers import (
    GZIP_CUT,
    ROWS,
    SCORES,
    bytes_name,
    config,
    cut,
    fifo,
    folder_of,
    lines,
    link,
    malicious_pickle,
    mixed_numbers,
    mode,
    other_endings,
    own_code,
    parquet_labels,
    put,
    remove,
    saved_data_set,
    sentence_transformer,
    several,
    task,
    weights,
)
from tests.hostile.runner import Case, give_up_rights
from tests.tiny import TEXTS

CORPORA = [
    Case("a pipe", f"{ADAPT} --corpus pipe.jsonl", 2, r"'pipe\.jsonl' is a pipe", fifo("pipe.jsonl")),
    Case("a pattern over a pipe", f"{ADAPT} --corpus 'p/*.txt'", 2, r"'p/p\.txt' is a pipe", fifo("p/p.txt")),
    Case(
        "a device without end", f"{ADAPT} --corpus zero.txt", 2, r"'zero\.txt' is a .*device",
        link("zero.txt", "/dev/zero"),
    ),
    Case(
        "a link to itself", f"{ADAPT} --corpus me.txt", 2, r"me\.txt", link("me.txt", "me.txt"), never="Did you mean",
    ),
    Case(
        "a pattern over a link to itself", f"{ADAPT} --corpus 'l/*.txt'", 2, r"^Error: .*me\.txt",
        link("l/me.txt", "me.txt"),
    ),
    Case("a dangling link", f"{ADAPT} --corpus gone.txt", 2, r"^Error: .*gone\.txt", link("gone.txt", "nowhere.txt")),
    Case("a misspelled file", f"{ADAPT} --corpus txet.txt", 2, r"Did you mean 'text\.txt'"),
    Case("a name that is too long", f"{ADAPT} --corpus {'x' * 300}.txt", 2, r"^Error: .*name too long"),
    Case("an empty file", f"{ADAPT} --corpus none.txt", 2, r"no usable document", put("none.txt", "")),
    Case(
        "blank lines only", f"{ADAPT} --corpus none.txt", 2, r"no usable document", put("none.txt", " \n\t\n\u3000\n"),
    ),
    Case(
        "one word", f"{ADAPT} --corpus one.txt --mask-rate 0.0001", 2, r"^Error: No token .* chosen",
        put("one.txt", "pizza\n"),
    ),
    Case(
        "unknown tokens only", f"{ADAPT} --corpus thai.txt", 2, r"^Error: .*no token of this text",
        put("thai.txt", "สวัสดี ชาวโลก\nลด ราคา\n"),
    ),
    Case(
        "half of the tokens unknown", f"{ADAPT} --corpus half.txt", 0, DONE,
        put("half.txt", "".join(f"{text} {'ลด ราคา ' * 9}\n" for text in TEXTS)), also=r"\d ?% of the tokens",
    ),
    Case(
        "UTF-16 with a mark", f"{ADAPT} --corpus wide.txt", 0, DONE,
        put("wide.txt", "\n".join(TEXTS).encode("utf-16")),
    ),
    Case(
        "UTF-16 without a mark", f"{ADAPT} --corpus wide.txt", 2, r"^Error: .*UTF-16",
        put("wide.txt", ("the food\n" * 9).encode("utf-16-le")),
    ),
    Case(
        "a cut archive", f"{ADAPT} --corpus cut.txt.gz", 2, r"^Error: .*no usable document",
        put("cut.txt.gz", GZIP_CUT),
    ),
    Case("no archive", f"{ADAPT} --corpus a.jsonl.gz", 2, r"^Error: .*no usable document", put("a.jsonl.gz", "{}")),
    Case(
        "a damaged Parquet file", f"{ADAPT} --corpus a.parquet", 2, r"^Error: ", put("a.parquet", b"PAR1 and no more"),
    ),
    Case("another column", f"{ADAPT} --corpus a.csv", 2, r"no column 'text'", put("a.csv", "blurb\nfood\n")),
    Case("deep nesting", f"{ADAPT} --corpus a.jsonl", 2, r"no usable document", put("a.jsonl", "[" * 100_000)),
    Case(
        "half a character", f"{ADAPT} --corpus a.jsonl", 2, r"no usable document",
        put("a.jsonl", '{"text": "\\ud83d"}\n'),
    ),
    Case("the model folder", f"{ADAPT} --corpus bert", 2, r"'bert' contains no file of a known format"),
    Case("a picture", f"{ADAPT} --corpus a.png", 2, r"format of 'a\.png' is unknown", put("a.png", b"\x89PNG")),
    Case("other endings in a folder", f"{ADAPT} --corpus mixed", 0, DONE, other_endings, also=r"notes\.docx|\.docx"),
    Case("a file name that is not UTF-8", f"{ADAPT} --corpus odd", 0, DONE, bytes_name(), check=made),
    Case("a data set without a name", f"{ADAPT} --corpus hf:", 2, r"write hf:NAME"),
    Case(
        "an unreadable file", f"{ADAPT} --corpus text.txt", 2, r"Cannot read 'text\.txt': Permission denied",
        mode("text.txt", 0), inside=give_up_rights,
    ),
    Case(
        "an unreadable sub-folder", f"{ADAPT} --corpus many", 2, r"many/closed.*Permission denied",
        several(put("many/a.txt", "the food was good\n"), folder_of("many/closed", 0)), inside=give_up_rights,
    ),
]  # fmt: skip

TASKS = [
    Case("a misspelled folder", TUNE.replace("task task", "task tsak"), 2, r"Did you mean 'task'"),
    Case("a file as task", TUNE.replace("task task", "task text.txt"), 2, r"'text\.txt' is not a table"),
    Case("a pipe as split", TUNE, 2, r"^Error: .*train\.jsonl", fifo("task/train.jsonl")),
    Case("an empty split", TUNE, 2, r"^Error: .*train", task("")),
    Case("one class", TUNE, 2, r"^Error: .*label", task([{"text": text, "label": "a"} for text in TEXTS])),
    Case("scores in CSV", TUNE, 0, r"^mae: \d", task("text,label\ngood,4.5\nbad,1.25\n", ending=".csv")),
    Case("scores in JSON lines", TUNE, 0, r"^mae: \d", task(SCORES)),
    Case("one score", TUNE, 2, r"have the same number", task([{**row, "label": 4.5} for row in SCORES])),
    Case("scores and words", TUNE, 2, r"train\.jsonl:3: .*'good'", task([*SCORES, {"text": "a", "label": "good"}])),
    Case(
        "scores that are not finite", TUNE, 2, r"train\.csv:3: .*'inf'",
        task("text,label\ngood,4.5\nbad,inf\n", ending=".csv"),
    ),
    Case("1.0 in CSV and 1 in JSON", TUNE, 0, TUNED, mixed_numbers),
    Case("True in CSV and true in Parquet", TUNE, 0, TUNED, parquet_labels),
    Case(
        "lists of zeros and ones", TUNE, 0, r"^F1 1: ",
        task([{"text": "a", "label": [0, 1]}, {"text": "b", "label": [1, 0]}]), also="F1 0: ",
    ),
    Case("nested labels", TUNE, 2, r"label must be", task([{"text": "a", "label": {"b": 1}}])),
    Case(
        "a label of the test split only", TUNE, 2, r"'new' does not occur in train",
        task(ROWS, [{"text": "a", "label": "new"}]),
    ),
    Case("semicolons", TUNE, 0, TUNED, task("text;label\ngood;a\nbad;b\n", ending=".csv")),
    Case("blanks in the header", TUNE, 0, TUNED, task("text, label\ngood,a\nbad,b\n", ending=".csv")),
    Case("quotes in TSV", TUNE, 0, TUNED, task('text\tlabel\n"Hello" he said\ta\ngood\tb\n', ending=".tsv")),
    Case("rows as one JSON array", TUNE, 0, TUNED, task(json.dumps(ROWS), ending=".json")),
    Case("JSON of another form", TUNE, 2, r"^Error: .*train\.json", task('{"rows": 3}', ending=".json")),
    Case(
        "two columns of one name", TUNE, 2, r"two columns are named 'text'",
        task("text,label,text\na,b,c\n", ending=".csv"),
    ),
    Case("Latin-1", TUNE, 2, r"train\.jsonl:1: not UTF-8", task("naïve\n".encode("latin-1"))),
    Case("a cut line", TUNE, 2, r"train\.jsonl:2: not JSON", task(lines(ROWS[:1]) + '{"text": "ha')),
    Case("a folder of save_to_disk", TUNE, 0, TUNED, saved_data_set),
    Case(
        "an unreadable split", TUNE, 2, r"test\.jsonl': Permission denied", mode("task/test.jsonl", 0),
        inside=give_up_rights,
    ),
    Case("an unknown negative label", f"{TUNE} --negative nay", 2, r"Unknown negative label .*bad, good"),
    Case("no seeds", TUNE.replace("seeds 1", "seeds 0"), 2, r"--seeds must be at least 1"),
    Case("a thousand million seeds", TUNE.replace("seeds 1", "seeds 1000000000"), 2, r"--seeds"),
    Case("a diverging learning rate", f"{TUNE} --learning-rate 1e308", 2, r"^Error: ", seconds=90),
]  # fmt: skip

MODELS = [
    Case("no folder", TEXT.replace("model bert", "model ./brt"), 2, r"no model folder '\./brt'"),
    Case("no configuration", TEXT, 2, r"'bert' has no config\.json", remove("bert/config.json")),
    Case(
        "null as configuration", TEXT, 2, r"^Error: .*config\.json", put("bert/config.json", "null"), never="NoneType",
    ),
    Case("no attention heads", TEXT, 2, r"^Error: .*num_attention_heads", config(num_attention_heads=0)),
    Case("no width", TEXT, 2, r"^Error: .*hidden_size", config(hidden_size=0)),
    Case("no layers", TUNE, 2, r"^Error: .*num_hidden_layers", config(num_hidden_layers=0)),
    Case("a thousand million layers", TEXT, 2, r"^Error: .*num_hidden_layers", config(num_hidden_layers=10**9)),
    Case("a padding id beyond the vocabulary", TEXT, 2, r"^Error: .*pad_token_id", config(pad_token_id=10**6)),
    Case(
        "another vocabulary size", TEXT, 2, r"^Error: .*'bert'", config(vocab_size=77),
        never="report above|ignore_mismatched",
    ),
    Case("deep nesting in the configuration", TEXT, 2, r"^Error: .*bert", put("bert/config.json", '{"a":' * 99_999)),
    Case(
        "an empty tokenizer", TEXT, 2, r"No tokenizer could be loaded from 'bert'.*\w{4}",
        put("bert/tokenizer.json", "{}"), never=r": 'added_tokens'$",
    ),
    Case(
        "no tokenizer", TEXT, 2, r"tokenizer in 'bert' has no vocabulary",
        several(remove("bert/tokenizer.json"), remove("bert/tokenizer_config.json")),
    ),
    Case("cut weights", TEXT, 2, r"^Error: .*'bert'", cut("bert/model.safetensors")),
    Case("a pipe as weights", TEXT, 2, r"^Error: .*bert", fifo("bert/model.safetensors")),
    Case(
        "a weight that is not a number", f"{TEXT} --method none", 2, r"^Error: .*(not finite|NaN)",
        weights(lambda name, value: (name, value * (np.nan if "word_embeddings" in name else 1))),
    ),
    Case("weights of torch.compile", TEXT, 2, r"_orig_mod", weights(same_label)),
    Case(
        "integer weights", TEXT, 2, r"^Error: .*quantized",
        weights(lambda name, value: (name, np.sign(value).astype(np.int8))),
    ),
    Case(
        "missing weights", TEXT, 2, r"^Error: .*incomplete: \d+ missing",
        weights(lambda name, value: None if "layer.1" in name else (name, value)),
    ),
    Case(
        "a pickle that runs a command", TEXT, 2, r"^Error: .*bert", malicious_pickle, never="weights_only",
        check=not_run,
    ),
    Case("code that comes with the model", TEXT, 2, r"^Error: .*own Python code", own_code, check=not_run),
    Case("a folder of sentence-transformers", TEXT, 2, r"0_Transformer", sentence_transformer),
    Case("a model of pictures", TEXT, 2, r"^Error: .*ViTConfig", put("bert/config.json", {"model_type": "vit"})),
    Case(
        "unreadable weights", TEXT, 2, r"bert/model\.safetensors", mode("bert/model.safetensors", 0),
        inside=give_up_rights, never="free some space",
    ),
]  # fmt: skip

INPUTS = {"corpora": CORPORA, "tasks": TASKS, "models": MODELS}
