"""Losses and instructions before and after an adaptation: the values are those of the models on disk."""

from __future__ import annotations

import json
import shlex

import pytest

from acclimate.adaptation import changes
from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.evaluation import instructions
from acclimate.evaluation.lm_loss import language_model_loss
from tests.cases import each
from tests.docs.conftest import TEMPLATE
from tests.test_cli import call
from tests.tiny import TEXTS, save_tiny

OPTIONS = {"steps": 2, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}


@pytest.fixture
def texts(tmp_path):
    for name in ("corpus", "heldout", "general"):
        lines = [f"{text} {name} {number}" for text in TEXTS for number in range(5)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    return tmp_path


@each("kind", ["bert", "llama"])
def test_general_text_is_measured_before_and_after(kind, texts):
    base = save_tiny(kind, texts / kind / "base")
    given = {"corpus": texts / "corpus.txt", "general": texts / "general.txt", **OPTIONS}
    one = adapt(base, out=texts / kind / "one", **given)
    (change,) = one.changes
    lines = (texts / "general.txt").read_text().splitlines()
    for side, model in (("before", base), ("after", texts / kind / "one")):
        assert change[side] == pytest.approx(language_model_loss(model, lines, max_length=24)["nats"], abs=1e-5)
    assert change.low <= change.difference <= change.high and change.count == len(lines)
    assert change.difference == pytest.approx(change.after - change.before)
    assert [entry.to_dict() for entry in adapt(base, out=texts / kind / "one", **given).changes] == [change.to_dict()]
    both = adapt(base, out=texts / kind / "two", heldout=texts / "heldout.txt", **given)
    assert [entry.name for entry in both.changes] == ["loss on held-out text", "loss on general text"]
    card = (texts / kind / "two" / "README.md").read_text()
    assert "Before and after" in card and sum("oss" in line for line in both.describe()) == 3


@each("read", ["corpus", "replay", "sources", None])
def test_general_text_that_is_read_is_said_to_show_no_forgetting(read, texts, caplog):
    general, other = texts / "general.txt", texts / "heldout.txt"
    more = {
        "corpus": {"corpus": [other, general]},
        "replay": {"replay": {other: 0.1, str(general): 0.1}},
        "sources": {"sources": {"wiki": general}, "mix": {"fixed": {"domain": 1, "wiki": 1}}},
    }.get(read, {"replay": other})
    given = {"corpus": texts / "corpus.txt", "general": general, **OPTIONS} | more
    caplog.clear()
    adapt(save_tiny("llama", texts / "base"), out=texts / f"read-{read}", **given)
    assert ("cannot show what is forgotten" in caplog.text) == (read is not None)


@pytest.mark.slow
def test_a_chat_model_answers_before_and_after_and_its_next_steps_are_its_own(texts, monkeypatch, capsys):
    base = save_tiny("llama", texts / "base", max_position_embeddings=512)
    words = ["adapt", "--model", base, "--corpus", texts / "corpus.txt", "--steps", 1, "--max-length", 24, "--quiet"]
    words += ["--general", texts / "general.txt", "--replay", texts / "heldout.txt", "--out"]
    code, _, err = call(monkeypatch, capsys, *words, texts / "no", "--instructions")
    assert code == 2 and "has no chat template" in err and not (texts / "no").exists()
    (base / "chat_template.jinja").write_text(TEMPLATE)
    some = instructions.read_instructions()[:3]
    monkeypatch.setattr(
        changes, "measure_instructions", lambda model: instructions.measure_instructions(model, some, max_tokens=3)
    )
    code, out, err = call(monkeypatch, capsys, *words, texts / "chat", "--instructions")
    assert code == 0, err
    assert "Instructions, % followed:" in out, out
    assert "vllm serve" in out and "finetune" not in out
    result = json.loads((texts / "chat" / "acclimate.json").read_text())["result"]
    assert [change["name"] for change in result["changes"]] == ["loss on general text", "instructions"]
    assert '{"role": "user"' in (texts / "chat" / "README.md").read_text()
    for line in (line for line in out.splitlines() if line.startswith("Next")):
        command = shlex.split(line.partition(": acclimate ")[2])
        more = ["--max-tokens", "2"] if command[0] == "inspect" else ["--dry-run", "--quiet"]
        code, _, err = call(monkeypatch, capsys, *command, *more)
        assert code == 0, (line, err)


def test_what_cannot_be_measured_is_a_warning(texts, monkeypatch, caplog):
    base = save_tiny("bert", texts / "base")

    def fail(path):
        raise UserError("no memory")

    monkeypatch.setattr(changes, "open_language_model", fail)
    result = adapt(base, texts / "corpus.txt", out=texts / "one", general=texts / "general.txt", **OPTIONS)
    assert "was not measured. no memory" in caplog.text and not result.changes and (texts / "one").is_dir()
