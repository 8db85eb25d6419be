"""The command line: what it writes, and one line with exit code 2 for a mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from acclimate import cli
from tests.tiny import TEXTS


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "reviews.txt"
    path.write_text("\n".join(f"{text} {number}" for text in TEXTS for number in range(3)))
    return path


def test_adapt_from_options_and_from_a_file(tiny_bert, corpus, tmp_path, monkeypatch, capsys):
    common = ["--steps", 2, "--batch-size", 4, "--max-length", 24, "--precision", "fp32", "--quiet"]
    code, out, _ = call(
        monkeypatch, capsys, "adapt", "--model", tiny_bert, "--corpus", corpus, "--method", "dga",
        "--set", "contrast_weight=0.5", "--set", "importance_tokens=100", "--out", tmp_path / "a", *common,
    )  # fmt: skip
    assert code == 0
    assert "dga, 2 steps" in out
    card = json.loads((tmp_path / "a" / "acclimate.json").read_text())
    assert card["settings"]["contrast_weight"] == 0.5
    config = tmp_path / "run.yaml"
    config.write_text(
        f"model: {tiny_bert}\ncorpus: ['{corpus}']\nmethod: dga\nsteps: 9\nbatch-size: 4\nmax_length: 24\n"
        f"precision: fp32\nout: {tmp_path / 'b'}\nsettings: {{contrast_weight: 0.5, importance_tokens: 100}}\n"
    )
    code, _, _ = call(monkeypatch, capsys, "adapt", "--config", config, "--steps", 2, "--quiet")
    assert code == 0
    again = json.loads((tmp_path / "b" / "acclimate.json").read_text())
    assert again["result"]["losses"] == card["result"]["losses"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "dgaa"], "Did you mean 'dga'"),
        (["--method", "dga", "--set", "temprature=1"], "Did you mean 'temperature'"),
        (["--set", "nonsense"], "name=value"),
        (["--corpus", "no-such-file.txt"], "no-such-file.txt"),
        (["--model", "./no-such-model"], "no-such-model"),
        (["--config", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tiny_bert, corpus, tmp_path, monkeypatch, capsys, arguments, message):
    basic = ["adapt", "--model", tiny_bert, "--corpus", corpus, "--steps", 1, "--out", tmp_path / "o", "--quiet"]
    if "--corpus" in arguments:
        basic[3:5] = []
    code, _, err = call(monkeypatch, capsys, *basic, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_methods_lists_papers_and_defaults(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "methods")
    assert code == 0
    assert "dga (Ke et al., EMNLP 2022)" in out
    assert "temperature = 0.05" in out


def test_help_imports_nothing_heavy():
    program = (
        "import sys, acclimate.cli; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'datasets')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_finetune_says_what_the_task_is_scored_by(tiny_bert, tmp_path, monkeypatch, capsys):
    rows = "".join(
        json.dumps({"text": text, "label": "no" if n % 2 else "yes"}) + "\n" for n, text in enumerate(TEXTS)
    )
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(rows)
    common = ["finetune", "--model", tiny_bert, "--task", tmp_path, "--seeds", 1, "--epochs", 1, "--quiet"]
    code, out, _ = call(monkeypatch, capsys, *common, "--negative", "no")
    assert code == 0
    assert "\npositive_micro_f1: 0." in out or "\npositive_micro_f1: 1." in out
    assert "\nece: 0." in out and "  F1 yes: " in out
    code, _, err = call(monkeypatch, capsys, *common, "--negative", "nay")
    assert code == 2 and "Unknown negative label" in err
