"""Writers behind endpoints: calls under way, failures, the cache, budgets, keys, and what is counted."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data import answers, endpoints, writers
from acclimate.data.operations import TRANSFORMS
from acclimate.data.writers import Answer, Request, open_writer, read_completion
from tests.cases import each
from tests.servers import completion, serve

KEY = "sk-7f3a-secret"


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(endpoints, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(answers, "POLL_SECONDS", 0.01)


def write(server, requests=("a",), **options):
    return list(open_writer(server.url, model="m", **options).write(requests))


def test_as_many_calls_are_under_way_as_wanted_while_work_is_left():
    meeting = threading.Barrier(32, timeout=10)  # breaks if fewer than 32 calls are under way

    def answer(prompt, number):
        meeting.wait()
        return completion(f"about {prompt}")

    with serve(answer) as server:
        made = write(server, map(str, range(128)), concurrency=32)
    assert [one.text for one in made] == [f"about {number}" for number in range(128)]
    assert server.peak == 32 and len(server.bodies) == 128


def test_requests_are_read_as_they_are_needed(monkeypatch):
    monkeypatch.setattr(answers, "WINDOW", 8)
    read, first = [], threading.Event()

    def answer(prompt, number):
        if prompt == "0":
            first.wait(10)
        return completion(prompt)

    def requests():
        for number in range(100):
            read.append(number)
            if number == 7:
                first.set()
            yield str(number)

    with serve(answer) as server:
        found = open_writer(server.url, model="m", concurrency=4).write(requests())
        assert next(found).text == "0" and len(read) <= 20
        assert [one.text for one in found] == [str(number) for number in range(1, 100)]


def test_a_request_is_asked_once_whatever_the_address():
    with serve() as server, serve() as other:
        made = write(server, ["a", "b", "a"])
        again = open_writer(other.url, model="m")
        assert list(again.write(["b", "a", "c"]))[:2] == [made[1]._replace(cached=True), made[0]._replace(cached=True)]
        assert sorted(server.prompts) == ["a", "b"] and other.prompts == ["c"] and made[2].cached
        account = again.account()
        assert {name: account[name] for name in ("generator", "calls", "from_cache", "retries")} == {
            "generator": "m", "calls": 1, "from_cache": 2, "retries": 0,
        }  # fmt: skip
        for change in (
            {"model": "n"},
            {"temperature": 0.5},
            {"seed": 1},
            {"max_tokens": 7},
            {"extra": '{"top_p": 1}'},
        ):
            list(open_writer(other.url, **{"model": "m", **change}).write(["a"]))
        assert other.prompts == ["c"] + ["a"] * 5
        assert (other.bodies[2]["temperature"], other.bodies[5]["top_p"]) == (0.5, 1)


def test_servers_share_the_calls_and_one_may_be_down():
    with serve(seconds=0.02) as server, serve(seconds=0.02) as other:
        address = f"{server.url},{other.url}"
        list(open_writer(address, model="m", concurrency=4).write(map(str, range(20))))
        assert 5 <= len(server.bodies) <= 15
    with serve() as server:
        writer = open_writer(f"http://127.0.0.1:{free_port()}/v1,{server.url}", model="m", concurrency=4)
        assert len([one for one in writer.write(map(str, range(20, 30))) if one.text]) == 10


@pytest.mark.parametrize("retries", [0, 1])
def test_each_server_is_tried_whatever_the_number_of_retries(retries):
    down = ",".join(f"http://127.0.0.1:{free_port()}/v1" for _ in range(3))
    with serve() as server:
        writer = open_writer(f"{down},{server.url}", model="m", concurrency=1, retries=retries)
        assert [one.text for one in writer.write(["a"])] == ["about a"]
    with pytest.raises(UserError, match="cannot be reached"):
        list(open_writer(down, model="m", concurrency=1, retries=retries).write(["b"]))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@each(
    "failure",
    [
        (429, {"Retry-After": "0"}, {"error": {"message": "slow down"}}),
        (500, {}, b"<html>oops</html>"),
        (200, {}, b"no JSON"),
        (200, {}, {"choices": []}),
        (200, {"Content-Length": "900"}, b'{"choices": [{"mess'),
        "hangs",
    ],
)
def test_a_call_that_fails_is_made_again(failure):
    def answer(prompt, number):
        if number > 1:
            return completion("made")
        if failure == "hangs":
            server.closing.wait(0.4)
        return completion("late") if failure == "hangs" else failure

    with serve(answer) as server:
        writer = open_writer(server.url, model="m", timeout=0.2)
        assert list(writer.write([str(failure)])) == [Answer("made", "finished", 3, 2, False)]
        assert (writer.account()["retries"], len(server.bodies)) == (1, 2)


def test_a_server_that_asks_for_a_pause_gets_it():
    times = []

    def answer(prompt, number):
        times.append(time.monotonic())
        return (429, {"Retry-After": "0.3"}, b"") if number == 1 else completion("made")

    with serve(answer) as server:
        write(server)
    assert times[1] - times[0] >= 0.3


@each(
    ("failure", "message"),
    [
        (
            (404, {}, {"error": {"message": "model 'm' not found"}}),
            "answered 404 .*model 'm' not found.*check the model",
        ),
        ((401, {}, {"error": f"wrong key {KEY}"}), r"answered 401 \(wrong key \[key\]\); check the key that key_env"),
        ((301, {"Location": "http://localhost"}, b""), "answered 301 .nothing.; check the model and the address"),
        ((400, {}, {"error": {"message": "too long"}}), "rejects every request.*too long"),
        ((500, {}, b"down"), r"answered 500 \(down\); tried 3 times.*the same command continues from here"),
        ((200, {}, b"[[[" * 50_000), "sent no answer in the expected form"),
        ("hangs", "did not answer within 0.2 s; tried 3 times"),
    ],
)
def test_what_does_not_pass_is_explained_in_a_line(failure, message, monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)

    def answer(prompt, number):
        server.closing.wait(0.5 if failure == "hangs" else 0)
        return completion("late") if failure == "hangs" else failure

    with serve(answer) as server, pytest.raises(UserError, match=message) as raised:
        write(server, [str(failure)], timeout=0.2, retries=2, key_env="A_KEY")
    assert KEY not in str(raised.value) and "\n" not in str(raised.value)


@each(
    ("by", "options", "message"),
    [
        ("http://h/v1", {}, "needs the name of its model: give model=NAME"),
        ("http://user:pw@h/v1", {"model": "m"}, "without password"),
        ("http://h/v1?key=pw", {"model": "m"}, "without password"),
        ("http:///v1", {"model": "m"}, "An endpoint is an address such as"),
        ("http://h:x/v1", {"model": "m"}, "An endpoint is an address such as"),
        ("http://h/v1", {"model": "m", "key_env": KEY}, "never a key itself"),
        ("http://h/v1", {"model": "m", "key_env": "NOT_SET_HERE"}, "NOT_SET_HERE, which key_env names, is not set"),
        ("http://h/v1", {"model": "m", "key_env": "A_BAD_KEY"}, "A_BAD_KEY has characters that are in no key"),
        ("http://h/v1", {"model": "m", "concurrency": 0}, "concurrency of a writer must be at least 1"),
        ("http://h/v1", {"model": "m", "temperature": -1}, "a temperature of at least 0"),
        ("http://h/v1", {"model": "m", "extra": "[1]"}, "extra is a JSON object"),
        ("http://h/v1 model=m heat=2", {}, "Unknown parameter of writer 'model' 'heat'"),
    ],
)
def test_mistakes_are_explained(by, options, message, monkeypatch):
    monkeypatch.setenv("A_BAD_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(UserError, match=message) as raised:
        open_writer(by, **options)
    assert KEY not in str(raised.value) and "pw" not in str(raised.value)


def test_a_server_that_is_not_there_is_named_at_once(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # not asked about this machine
    with serve() as server:
        assert write(server)[0].text == "about a"
    monkeypatch.delenv("HTTP_PROXY")
    with pytest.raises(UserError, match="cannot be reached"):
        list(open_writer("http://a..b/v1", model="m").write(["b"]))
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:\d+/v1 cannot be reached.*start the server, or correct"):
        list(open_writer(f"http://127.0.0.1:{free_port()}/v1", model="m").write(["b"]))


def test_ends_are_counted():
    ends = {
        "full": completion("a text"),
        "cut": completion("a text", "length"),
        "no": completion(None, refusal="I must not"),
        "filter": completion("half", "content_filter"),
        "blank": completion(" "),
        "thought": completion("<think>well</think>\n\nso"),
        "long": (400, {}, {"error": {"message": "too long"}}),
    }
    with serve(lambda prompt, number: ends[prompt]) as server:
        writer = open_writer(server.url, model="m", concurrency=1)
        made = list(writer.write(ends))
    assert [one.ended for one in made] == [
        "finished",
        "truncated",
        "refused",
        "refused",
        "empty",
        "finished",
        "rejected",
    ]
    assert made[5].text == "so"
    counts = {"refused": 2, "truncated": 1, "empty": 1, "rejected": 1, "repeated": 1, "calls": 7}
    assert {name: writer.account()[name] for name in counts} == counts


def test_requests_that_are_rejected_again_end_no_later_run():
    asked = [*map(str, range(3)), *(f"long {number}" for number in range(12))]
    rejected = (400, {}, {"error": {"message": "too long"}})
    with serve(lambda prompt, number: rejected if "long" in prompt else completion(prompt)) as server:
        for calls in (15, 12):  # the second time all that can be answered is in the cache
            writer = open_writer(server.url, model="m", concurrency=1)
            assert [one.ended for one in writer.write(asked)] == ["finished"] * 3 + ["rejected"] * 12
            assert writer.account()["calls"] == calls
        writer = open_writer(server.url, model="m", concurrency=1)
        assert [len(list(writer.write(some))) for some in (["long", "0"], ["1"])] == [2, 1]
        with pytest.raises(UserError, match="rejects every request"):
            list(writer.write(["long"]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "text", "usage", "finish_reason", "prompt_tokens"]),
            inner,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_answer_is_a_text_or_in_another_form(body):
    try:
        text, ended, read, written = read_completion(body)
    except (ValueError, LookupError, TypeError, AttributeError):
        return
    assert isinstance(text, str) and ended in ("finished", "truncated", "refused", "empty") and read + written >= 0


@each(("budget", "calls"), [({"max_calls": 3}, 3), ({"max_total_tokens": 11}, 3), ({"max_minutes": 1e-9}, 0)])
def test_a_budget_ends_a_run_that_continues_from_there(budget, calls):
    requests = [f"{budget} {number}" for number in range(9)]
    with serve() as server:
        writer = open_writer(server.url, model="m", concurrency=1, **budget)
        with pytest.raises(UserError, match=rf"spent after {calls} calls; at most {9 - calls} of 9 requests are left"):
            list(writer.write(requests, 9))
        assert len(server.bodies) == calls
        assert len(write(server, requests)) == 9 and len(server.bodies) == 9


def test_calls_that_fail_count_and_the_budget_says_why_it_was_spent():
    with serve(lambda prompt, number: (500, {}, b"down") if number > 1 else completion("made")) as server:
        writer = open_writer(server.url, model="m", concurrency=1, max_calls=3)
        message = (
            r"max_calls=3 of the writer is spent after 3 calls, the last of which failed: .*answered 500 \(down\);"
        )
        with pytest.raises(UserError, match=message):
            list(writer.write(["counted 1", "counted 2"], 2))
        assert len(server.bodies) == writer.account()["calls"] == 3


@each(
    ("key", "is_secret"),
    [(f"sk-proj-{KEY}_1234567890123456", True), (f"hf_{'aB3dE6' * 6}", True), (f"AIzaSy{'a-B_3' * 7}", True)]
    + [
        (one, False)
        for one in ("gpt-4o-2024-08-06", "Qwen2.5-72B-Instruct", "3f2a9c" * 7, "hf-internal-testing-v2", 4)
    ],
)
def test_a_key_of_a_service_is_no_identifier(key, is_secret):
    settings = {"by": "http://h/v1", "model": "m", "prompt": "{text}", "key": key}
    try:
        assert TRANSFORMS.make("generate", **settings).key == key and not is_secret
    except UserError as error:
        assert is_secret and "key_env=NAME" in str(error) and str(key) not in str(error)


def test_two_processes_share_the_answers():
    with serve(seconds=0.02) as server:
        pair = [open_writer(server.url, model="m", concurrency=4) for _ in range(2)]
        made = [[], []]
        threads = [
            threading.Thread(target=lambda place=place: made[place].extend(pair[place].write(map(str, range(30)))))
            for place in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.bodies) == 30 and [one.text for one in made[0]] == [one.text for one in made[1]]
    assert sum(writer.account()["from_cache"] for writer in pair) == 30


def test_a_key_is_in_no_file_message_or_log(monkeypatch, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("A_KEY", KEY)
    with serve(lambda prompt, number: completion(prompt) if number < 3 else (403, {}, f"no {KEY}".encode())) as server:
        writer = open_writer(server.url, model="m", concurrency=1, key_env="A_KEY")
        with pytest.raises(UserError) as raised:
            list(writer.write(["a", "b", "c"]))
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    shown = [str(raised.value), repr(vars(writer)), str(writer.account()), caplog.text, *capfd.readouterr()]
    kept = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(kept) >= 2 and not any(KEY in text for text in (*shown, *kept))


def test_functions_are_writers_too():
    calls = []

    def answer(prompt):
        calls.append(prompt)
        return prompt.upper() or None

    found = open_writer(answer, key="v1")
    made = list(found.write([Request("a", system="be"), "b", "b", ""]))
    assert [(one.text, one.ended, one.cached) for one in made] == [
        ("BE\n\nA", "finished", False), ("B", "finished", False), ("B", "finished", True), ("", "empty", False),
    ]  # fmt: skip
    assert calls == ["be\n\na", "b", ""]
    with pytest.raises(UserError, match="must return a text or None, not 3"):
        list(open_writer(lambda prompt: 3, key="v2").write(["a"]))


RUN = """
import sys
from acclimate.data.writers import open_writer
for one in open_writer(sys.argv[1], model="m", concurrency=4).write(map(str, range(60))):
    print(one.text, flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_repeats_no_answer_that_it_got(tmp_path):
    sent = []

    def answer(prompt, number):
        sent.append(prompt)
        return completion(f"about {prompt}")

    with serve(answer, seconds=0.02) as server:
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", RUN, server.url], stdout=subprocess.PIPE, text=True)
            for _ in range(8):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        processes = [
            subprocess.Popen([sys.executable, "-c", RUN, server.url], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        made = [process.communicate()[0].split("\n")[:-1] for process in processes]
    assert made == [[f"about {number}" for number in range(60)]] * 2
    # A claim is left only if its process was killed between writing the answer and releasing it.
    assert all(lock.with_suffix(".json").is_file() for lock in (tmp_path / "cache").rglob("*.lock"))
    assert len(set(sent)) == 60 and len(sent) <= 60 + 3 * 4  # at most what was under way at each kill


def test_a_model_name_and_defaults_are_sent():
    with serve() as server:
        write(server, [Request("a", system="be brief", stop=("\n",))])
        write(server, ["b"], plain=True)
    first, second = server.bodies
    assert first["path"] == "/v1/chat/completions" and first["stop"] == ["\n"] and first["max_tokens"] == 512
    assert [one["content"] for one in first["messages"]] == ["be brief", "a"]
    assert (second["path"], second["prompt"]) == ("/v1/completions", "b")
    assert writers.CONCURRENCY > 1
