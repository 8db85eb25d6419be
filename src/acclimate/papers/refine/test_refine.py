"""Refinement programs: what they do, what is malformed, that nothing is evaluated, and who writes them."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.operations import find_accounts
from acclimate.papers.refine import transform as refine
from acclimate.papers.refine.transform import execute, is_boilerplate, parse_call, remove_where, write_by_rules
from tests.cases import each

TEXT = "zero\none (1), a=b\ntwo\nthree"


@each(
    ("program", "expected", "malformed"),
    [
        ("keep_doc()", TEXT, 0),
        ("drop_doc()", None, 0),
        ("remove_lines(line_start=1, line_end=2)", "zero\nthree", 0),
        ("remove_lines(0, 0)\n\n  remove_lines(line_start=3, line_end=3)  ", "one (1), a=b\ntwo", 0),
        ("remove_lines(all=True)", "", 0),
        ("remove_lines(line_start=2, line_end=9)", "zero\none (1), a=b", 1),
        ("remove_lines(line_start=4, line_end=9)", TEXT, 1),
        ("remove_lines(line_start=2, line_end=1)", TEXT, 1),
        ("remove_lines(line_start=-1, line_end=1)", TEXT, 1),
        ("remove_lines(line_start=True, line_end=1)", TEXT, 1),
        ("remove_lines(all=1)", TEXT, 1),
        ("remove_lines(line_start=1)", TEXT, 1),
        ('normalize(source_str="(1), a=b", target_str="x")', "zero\none x\ntwo\nthree", 0),
        ('normalize(source_str="e")', "zro\non (1), a=b\ntwo\nthr", 0),
        ('remove_lines(1, 1)\nnormalize(source_str="o", target_str="0")', "zer0\ntw0\nthree", 0),
        ('normalize(source_str="", target_str="x")', TEXT, 1),
        ('normalize(source_str="zero\\none", target_str="x")', TEXT, 1),
        ('normalize(source_str="two", target_str="a\\nb")', TEXT, 1),
        ('normalize(source_str="absent", target_str="x")', TEXT, 1),
        ('normalize(source_str=1, target_str="x")', TEXT, 1),
        ('normalize(source_str="a", source_str="b")', TEXT, 1),
        ('normalize(*"ab")', TEXT, 1),
        ('normalize(**{"source_str": "two"})', TEXT, 1),
        ("do not know\nremove_lines(0, 0)", "one (1), a=b\ntwo\nthree", 1),
        ("remove_lines(line_start=0, line_end=0", TEXT, 1),
        ("keep_doc", TEXT, 1),
        ("", TEXT, 0),
    ],
)
def test_programs(program, expected, malformed):
    outcome = execute(program, TEXT)
    assert outcome.text == expected and len(outcome.malformed) == malformed
    assert outcome.removed == (0 if expected is None else 4 - len(expected.split("\n")) if expected else 4)


@each(
    "call",
    [
        "__import__('os').system('touch /tmp/evil')",
        "remove_lines(line_start=__import__('os').getpid(), line_end=9)",
        "normalize(source_str='a'.upper(), target_str='b')",
        "normalize(source_str=f'{open}', target_str='b')",
        "(lambda: drop_doc())()",
        "drop_doc.__class__()",
        "exec('drop_doc()')",
        "[drop_doc() for _ in 'a']",
        "drop_doc() or keep_doc()",
        "(" * 5000 + ")" * 5000,
        "-" * 9000 + "1",
        "drop_doc()\0",
        f"normalize(source_str='{'a' * 20_000}')",
    ],
)
def test_nothing_but_constant_arguments_of_known_functions_is_accepted(call):
    assert parse_call(call) is None
    assert execute(call, TEXT).text == TEXT


PARTS = [
    "remove_lines",
    "normalize",
    "drop_doc",
    "(",
    ")",
    "line_start=",
    "source_str=",
    "0",
    "1",
    "'a'",
    ",",
    "\n",
    "-",
]


@given(st.lists(st.sampled_from(PARTS), max_size=12), st.text(max_size=10))
@settings(max_examples=80, deadline=None)
def test_every_line_is_a_call_or_malformed(parts, text):
    program = "".join(parts)
    outcome = execute(program, text)
    assert outcome.calls.total() + len(outcome.malformed) == sum(bool(line.strip()) for line in program.split("\n"))
    assert outcome.calls or outcome.text is not None
    assert "drop_doc" not in outcome.calls or outcome.text is None


@given(st.lists(st.booleans(), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_runs_of_lines_are_removed(noise):
    lines = [f"line {place}" for place in range(len(noise))]
    calls = remove_where(noise)
    outcome = execute("\n".join(calls), "\n".join(lines))
    assert outcome.text == "\n".join(line for line, is_noise in zip(lines, noise, strict=True) if not is_noise)
    assert not outcome.malformed and len(calls) == sum(
        is_noise and not before for is_noise, before in zip(noise, [False, *noise], strict=False)
    )


ARTICLE = "The court decided on Monday that the appeal of the company was late.\nIt will not be heard again this year."
NOISE = ["Home | News | Sport | Weather", "Share this", "© 2024 Example Ltd. All rights reserved.", "Page 3 of 12"]
NOISE += ["We use cookies. Accept all cookies", "https://example.com/a", "-----", "Read more »", "www.example.com"]


def test_rules_remove_boilerplate_and_no_sentences():
    assert all(map(is_boilerplate, NOISE)) and not any(
        map(is_boilerplate, ["", *ARTICLE.split("\n"), "Results", "| a | b | c |", "}", "3.14"])
    )
    page = "\n".join([*NOISE[:4], ARTICLE.replace("late", "&quot;late&quot;\u200b"), *NOISE[4:]])
    assert execute(write_by_rules(page), page).text == ARTICLE.replace("late", '"late"')
    assert not execute(write_by_rules(page), page).malformed
    made = transform([page, ARTICLE, "Share this"], "refine")
    assert list(made) == [ARTICLE.replace("late", '"late"'), ARTICLE]
    notes = find_accounts(made)[0].notes
    assert notes["removed_lines"] == len(NOISE) and notes["changed_documents"] == 1
    assert notes["dropped_too_short"] == 1 and find_accounts(made)[0].dropped == ["Share this"]
    assert notes["calls"] == {"normalize": 2, "remove_lines": 3, "keep_doc": 3}


def test_a_classifier_learns_which_lines_are_noise(tmp_path):
    draw = random.Random(0)
    words = "court appeal judge company decided late law year case state".split()
    good = [f"The {' '.join(draw.choices(words, k=9))}." for _ in range(60)]
    bad = [f"posted by user{draw.randint(1, 99)} likes {draw.randint(1, 99)}" for _ in range(60)]
    labels = [("keep", good[:30]), ("remove", bad[:30])]
    rows = [{"text": line, "label": label} for label, lines in labels for line in lines]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pages = ["\n".join([bad[place], good[place], "", good[place - 1]]) for place in range(31, 60)]
    made = transform(pages, {"refine": {"by": "lines", "lines": str(tmp_path / "lines.jsonl")}})
    assert list(made) == [page.split("\n", 1)[1] for page in pages]
    assert not any(map(is_boilerplate, bad))  # the rules do not know them


def test_programs_of_the_user_and_their_errors_are_counted(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def program(text):\n"
        "    return text.split('\\n')[0].replace(';', '\\n')\n"
        "def nothing(text):\n    return None\n"
        "def fail(text):\n    return 1 / 0\n"
    )
    rest = " ".join(["word"] * 12)
    texts = [
        f"remove_lines(0, 0)\n{rest}",
        f"remove_lines(0, 0);oops\nsome {rest}",
        f"remove_lines(0, 0);oops;oops\n{rest}",
        f"drop_doc()\n{rest}",
        f"remove_lines(0, 1)\n{rest}\nx",
    ]
    settings = {"by": "program", "program": f"{tmp_path / 'mine.py'}:program"}
    made = transform(texts, {"refine": settings})
    assert list(made) == [rest, f"some {rest}", texts[2]]
    notes = find_accounts(made)[0].notes
    assert (notes["malformed_calls"], notes["ignored_programs"]) == (3, 1)
    assert notes["malformed_examples"] == ["oops"] * 3
    assert (notes["dropped_by_program"], notes["dropped_too_short"]) == (1, 1)
    mostly = transform(texts, {"refine": {**settings, "least": 0, "removed": 0.9}})
    assert find_accounts(mostly)[0].notes["dropped_mostly_noise"] == 1
    for name, message in (("nothing", "a program is text"), ("fail", "division by zero"), ("absent", "no function")):
        with pytest.raises(UserError, match=message):
            transform(texts, {"refine": {"by": "program", "program": f"{tmp_path / 'mine.py'}:{name}"}})


@each(
    ("parameters", "message"),
    [
        ({"by": "lines"}, "goes with lines"),
        ({"lines": "x"}, "goes with lines"),
        ({"by": "lines", "lines": "missing.jsonl"}, "keep or remove"),
        ({"by": "program"}, "FILE.py:FUNCTION"),
        ({"by": "program", "program": "x"}, "names no function"),
        ({"errors": 0}, "at least 1"),
        ({"removed": 0}, "above 0"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        transform(["a text"], {"refine": parameters})


def test_a_program_cannot_multiply_the_text():
    line = f"normalize(source_str='a', target_str='{'a' * 20}')"
    outcome = execute("\n".join([line] * 12 + ["remove_lines(line_start=1, line_end=1)"]), "a dog\nx\n" + "b" * 60)
    assert outcome.text == "a" * 20 + " dog\n" + "b" * 60 and outcome.malformed == [line] * 11


def test_a_program_of_any_length_ends(monkeypatch):
    monkeypatch.setattr(refine, "MAX_WORK", 10_000)
    text = "ab" * 500
    swaps = ["normalize(source_str='a', target_str='c')", "normalize(source_str='c', target_str='a')"] * 100
    assert len(execute("\n".join(swaps), text).malformed) == 190
    removals = ["remove_lines(line_start=0, line_end=99)"] * 100
    assert len(execute("\n".join(removals), "\n" * 100).malformed) == 95
