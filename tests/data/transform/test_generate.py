"""Documents that functions of the user make: provenance, the cache per document, and what is said of failures."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import select, transform
from acclimate.base.errors import UserError
from acclimate.base.registry import identify_function, import_plugin
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.data.operations import Context, find_accounts
from acclimate.data.pool import Document
from acclimate.data.transform.generate import CachedFunction, Generate, hash_text, read_documents
from acclimate.data.writers import open_writer
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.data.select.test_operations import pool
from tests.servers import completion, serve

CODE = """
calls = []

def summaries(text):
    calls.append(text)
    if text == "fail":
        raise ValueError("no answer")
    if text == "empty":
        return None
    return [f"about {text}", {"text": f"on {text}", "topic": len(text)}]
"""


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / f"generator_{tmp_path.name}.py"
    file.write_text(f"{CODE}# {tmp_path}\n")  # another code in each test, so that none finds the results of others
    import_plugin(file)
    yield file, sys.modules[f"acclimate_plugin_{file.stem}"].calls
    del sys.modules[f"acclimate_plugin_{file.stem}"]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_documents_have_their_origin_and_the_account_counts_calls(plugin, tmp_path):
    file, calls = plugin
    out = tmp_path / "made.jsonl"
    made = transform(
        Corpus.of(["a", "empty", "b"]), {"generate": {"by": f"{file}:summaries", "key": "v1", "keep": True}}, out
    )
    source = {"made_by": "summaries", "made_with": "v1", "made_from": hash_text("a")}
    assert rows(out)[:3] == [
        {"text": "a"}, {"text": "about a", **source}, {"text": "on a", "topic": 1, **source},
    ]  # fmt: skip
    assert list(made) == ["a", "about a", "on a", "empty", "b", "about b", "on b"]
    (account,) = find_accounts(made)
    counts = {name: account.notes[name] for name in ("generator", "calls", "from_cache", "without_result")}
    assert counts == {"generator": "summaries", "calls": 3, "from_cache": 0, "without_result": 1}
    assert account.dropped == ["empty"] and calls == ["a", "empty", "b"]


def test_each_document_is_generated_once(plugin):
    file, calls = plugin
    by = f"{file}:summaries"
    transform(Corpus.of(["a", "b"]), {"generate": by})
    (account,) = find_accounts(transform(Corpus.of(["b", "c", "a"]), {"generate": {"by": by, "keep": True}}))
    assert calls == ["a", "b", "c"] and account.notes["from_cache"] == 2
    transform(Corpus.of(["b", "d"]), {"generate": "summaries"})  # the plugin is imported, so its name is enough
    assert calls[3:] == ["d"]
    transform(Corpus.of(["a"]), {"generate": {"by": by, "key": "another model"}})
    assert calls[4:] == ["a"]
    file.write_text(CODE + "# changed\n")
    transform(Corpus.of(["a"]), {"generate": {"by": by, "key": "another model"}})
    assert calls[5:] == []
    transform(Corpus.of(["a"]), {"generate": by})
    assert calls[5:] == ["a"]


def test_a_failure_keeps_what_was_made(plugin, tmp_path):
    file, calls = plugin
    with pytest.raises(UserError, match=r"'summaries' failed for 'fail': ValueError: no answer\. What it made before"):
        transform(Corpus.of(["a", "b", "fail", "c"]), {"generate": f"{file}:summaries"})
    made = transform(Corpus.of(["a", "b", "c"]), {"generate": f"{file}:summaries"})
    assert calls == ["a", "b", "fail", "c"] and find_accounts(made)[0].notes["from_cache"] == 2


def test_a_damaged_answer_is_generated_again(plugin, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    file, calls = plugin
    function = CachedFunction(f"{file}:summaries", None, read_documents)
    before = [function("a"), function("b")]
    for kept in (tmp_path / "cache" / "answers").rglob("*.json"):
        kept.write_bytes(kept.read_bytes()[:-5] if b"about a" in kept.read_bytes() else kept.read_bytes())
    again = CachedFunction(f"{file}:summaries", None, read_documents)
    assert [again("a"), again("b"), again("a")] == [*before, before[0]]
    assert again.account() == {"generator": "summaries", "calls": 1, "from_cache": 2}
    assert calls == ["a", "b", "a"]


def test_models_behind_endpoints_make_documents_whatever_their_address():
    with serve() as server, serve() as other:
        options = "model=m prompt='Say {text} {here}' keep=true"
        made = [
            transform(Corpus.of(["a", "b"]), f"generate by={one.url} {options} concurrency={number}")
            for number, one in enumerate((server, other), start=1)
        ]
    assert [list(one) for one in made] == [["a", "about Say a {here}", "b", "about Say b {here}"]] * 2
    assert server.prompts == ["Say a {here}", "Say b {here}"] and other.prompts == []
    source = {"made_by": "m", "made_from": hash_text("b")}
    assert rows(made[1].sources[0].path)[-1] == {"text": "about Say b {here}", **source}
    notes = find_accounts(made[0])[0].notes
    assert (notes["generator"], notes["calls"], notes["tokens_written"], notes["seed"]) == ("m", 2, 4, 0)


def test_a_model_of_this_machine_makes_documents(tiny_llama):
    by = f"generate by=model:{tiny_llama} prompt={{text}} max_tokens=4"
    made = transform(["the food was good", "the", "x " * 200], by)
    notes = find_accounts(made)[0].notes
    assert notes["calls"] == 3 and notes["rejected"] == 1
    assert all(row["made_by"] == tiny_llama.name for row in rows(made.sources[0].path))
    by = f"model:{tiny_llama} temperature=1 max_tokens=5"
    sampled = [[one.text for one in open_writer(by, seed=seed).write(["the", "food"])] for seed in (1, 2)]
    assert sampled[0] != sampled[1]
    for done in (3, 5):  # a budget smaller than a batch is used up, and the next run continues
        writer = open_writer(by, max_calls=3)
        with pytest.raises(UserError, match=r"max_calls=3 .* is spent after 3 calls") if done == 3 else nullcontext():
            assert [one.cached for one in writer.write("abcde", 5)] == [True] * 3 + [False] * 2


@each(
    ("operation", "answer"),
    [
        ({"refine": {"by": "program", "program": "{url} model=m prompt='Clean: {text}'"}}, "remove_lines(0, 0)"),
        ({"passages": {"words": "words.txt", "generator": {"by": "{url}", "model": "m"}}}, "a passage"),
        ({"generate": {"by": "{url} model=m prompt='{text}'"}}, "an answer"),
        ({"comprehension": {"generator": "{url} model=m"}}, "Question: what?\nAnswer: one line"),
        ({"best": {"by": "rater", "rater": "{url} model=m prompt='Rate {text}'", "documents": 1}}, "Score: 7.5 of 10"),
    ],
)
def test_endpoints_are_given_wherever_functions_are(operation, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("an entity\n")
    with serve(lambda prompt, number: completion(answer)) as server:
        given = json.loads(json.dumps(operation).replace("{url}", server.url))
        made = (select if "best" in given else transform)(["one line\n" + "word " * 20], given)
        notes = str(find_accounts(made)[0].notes)
    assert len(server.bodies) == 1 and "'calls': 1" in notes and list(made)


def test_a_budget_and_calls_at_once_are_for_functions_too(plugin):
    file, calls = plugin
    by = f"{file}:summaries"
    with pytest.raises(UserError, match="budget max_calls=2 of the generator is spent after 2 calls; at most 3 of 5"):
        transform(Corpus.of(list("abcde")), {"generate": {"by": by, "max_calls": 2}})
    made = transform(Corpus.of(list("abcde")), {"generate": {"by": by, "concurrency": 3}})
    assert list(made)[::2] == [f"about {one}" for one in "abcde"] and sorted(calls) == list("abcde")


def test_a_key_stays_in_its_variable(tmp_path, monkeypatch, capfd):
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("A_KEY", "sk-7f3a-secret")
    with serve() as server:
        by = f"generate by={server.url} model=m prompt={{text}}"
        for number, option in enumerate(("key_env=A_KEY", "key_env=sk-7f3a-secret")):
            words = ["transform", "--corpus", tmp_path / "text.txt", "--by", f"{by} {option}"]
            words += ["--out", tmp_path / f"{number}.jsonl", "--json"]
            monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, words)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert bool(ended.value.code) == (number == 1)
    texts = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(server.bodies) == 2 and len(texts) > 5
    assert not any("sk-7f3a-secret" in text for text in (*texts, *capfd.readouterr()))


def test_a_dry_run_calls_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("one\ntwo\none\n")
    out = tmp_path / "out.jsonl"
    with serve() as server:
        by = f"generate by={server.url} model=m prompt='On {{text}}'"
        words = ["transform", "--corpus", tmp_path / "text.txt", "--by", by]
        monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, words), "--out", str(out), "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    shown = capsys.readouterr().out
    assert not ended.value.code and not server.bodies and not out.exists()
    assert (
        "prompt: On one" in shown and "2 calls, about 4 tokens to read and at most 1,024 to write; 0 answers" in shown
    )


def double(text):
    return [text, text]


@given(st.lists(st.text(), max_size=8))
@settings(max_examples=25, deadline=None)
def test_functions_of_python_get_each_document_as_it_is(texts):
    context = Context()
    found = list(Generate(by=double).apply(pool(texts), context))
    assert [one.text for one in found] == [text for text in texts if text.strip() for _ in range(2)]
    assert context.notes["without_result"] == sum(not text.strip() for text in texts)


@each(
    ("returned", "found"),
    [
        (None, []),
        ("a", [["a", {}]]),
        (["a", " ", {"text": "b", "x": 1}], [["a", {}], ["b", {"x": 1}]]),
        (Document("a", {"x": 2}), [["a", {"x": 2}]]),
        ((one for one in "ab"), [["a", {}], ["b", {}]]),
    ],
)
def test_what_a_function_may_return(returned, found):
    assert read_documents(returned) == found


@each(
    ("given", "message"),
    [
        ({}, "needs a writer"),
        ({"by": "nothing"}, "names no function"),
        ({"by": "missing.py:f"}, "no Python file"),
        ({"by": lambda text: 3}, "must return a document, several, or None, not 3"),
        ({"by": lambda text: [3]}, "a document is text"),
        ({"by": lambda text: {"text": text, "x": {1}}}, "failed for 'a': TypeError"),
        ({"by": eval("lambda text: text")}, "cannot be read; define it in a file"),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(UserError, match=message):
        transform(Corpus.of(["a"]), {"generate": given})


def test_functions_of_one_name_are_distinguished():
    def append(word):
        return lambda text: f"{text} {word}"

    functions = [append("x"), append("y"), lambda text: f"{text} 1", lambda text: f"{text} 2"]
    made = [list(transform(["one text"], {"generate": function})) for function in functions]
    assert made == [["one text x"], ["one text y"], ["one text 1"], ["one text 2"]]
    assert identify_function(append("x"), "generator") == identify_function(append("x"), "generator")


def test_a_function_without_code_needs_a_key():
    assert list(transform(Corpus.of(["a"]), {"generate": {"by": eval("lambda text: text * 2"), "key": 2}})) == ["aa"]


def test_the_command_line_takes_functions_of_plugins(plugin, tmp_path, monkeypatch):
    file, _ = plugin
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    words = ["--corpus", tmp_path / "text.txt", "--by", "generate by=summaries", "--plugin", file]
    monkeypatch.setattr(sys, "argv", ["acclimate", "transform", *map(str, words), "--out", str(tmp_path / "o.jsonl")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code and next(iter(Corpus(tmp_path / "o.jsonl"))) == "about one"


def test_a_study_names_functions(plugin):
    file, _ = plugin

    def config(by):
        domain = {"name": "a", "corpus": {"from": "text.txt", "transform": {"generate": by}}}
        return StudyConfig.of({"models": ["m"], "methods": ["none"], "domains": [domain]})

    found = config(f"{file.name}:summaries").relative_to(file.parent).domains[0].transform
    assert found == [{"generate": {"by": f"{file}:summaries"}}]
    assert config("summaries").relative_to(file.parent).domains[0].transform == [{"generate": {"by": "summaries"}}]
    (file.parent / "writer").mkdir()
    given = {"by": "model:writer max_tokens=4", "prompt": "{text}"}
    located = config(given).relative_to(file.parent).domains[0].transform[0]["generate"]["by"]
    assert located == f"model:{file.parent / 'writer'} max_tokens=4"
    address = {"by": "http://localhost/v1", "model": "m", "prompt": "read a.py:f"}
    assert config(address).relative_to(file.parent).domains[0].transform == [{"generate": address}]
    with pytest.raises(UserError, match=r"give functions as FILE\.py:FUNCTION in a study"):
        config(double)
