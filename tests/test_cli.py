"""The command line: its output, and one line with exit code 2 for user errors."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args, get_origin

import pytest
import torch
import typer
from rich.text import Text

import acclimate.adaptation
from acclimate.adaptation.method import REGISTRY, Method, names
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.result import AdaptResult
from acclimate.base.errors import Stopped
from acclimate.base.options import option_fields
from acclimate.base.terminal import SafeConsole
from acclimate.base.verbs import SECTIONS, find_declared, find_verbs
from acclimate.cli import main as cli
from acclimate.cli.commands import HUGGING_FACE, propose
from acclimate.cli.flags import read_options
from acclimate.engine import distributed
from acclimate.labs.advise.methods import PURPOSES, list_methods, show_methods, worse_on
from acclimate.labs.advise.options import MethodsOptions
from acclimate.results.requirements import EXIT_CODES
from tests.cases import SOURCES, each
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


def test_the_next_commands_read_the_same_text_and_task(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "t.csv"):
        (tmp_path / name).write_text("body,queue\nx,y\n")
    result = AdaptResult(tmp_path, "lm", steps=1, tokens=1, seconds=0, losses={})
    monkeypatch.setattr("acclimate.adaptation.adapt.adapt", lambda **_: result)
    text = ["--corpus", "a.csv", "--corpus", "b.csv:body", "--heldout", "t.csv", "--text-column", "queue"]
    task = ["--task", "t.csv:body", "--label-column", "queue", "--split-seed", 3]
    command = ["adapt", "--model", "m", *text, *task, "--encoding", "cp1252", "--method", "tapt", "--out", "o"]
    code, out, err = call(monkeypatch, capsys, *command)
    reading = "--task t.csv:body --label-column queue --split-seed 3 --encoding cp1252"
    texts = "--corpus a.csv:queue --corpus b.csv:body --heldout t.csv:queue"
    assert code == 0, err
    assert f"acclimate finetune --model {tmp_path} {reading} --out finetuned\n" in out
    assert out.endswith(f"acclimate compare --model m {texts} {reading} --methods tapt --out runs/compare\n")


@pytest.mark.needs("dga")
def test_adapt_with_flags_and_with_a_configuration_file(tiny_bert, corpus, tmp_path, monkeypatch, capsys):
    common = ["--steps", 2, "--batch-size", 4, "--max-length", 24, "--precision", "fp32", "--quiet"]
    method = "dga contrast_weight=0.5 importance_tokens=100"
    code, out, _ = call(
        monkeypatch, capsys, "adapt", "--model", tiny_bert, "--corpus", corpus, "--method", method,
        "--out", tmp_path / "a", *common,
    )  # fmt: skip
    assert code == 0
    assert "dga, 2 steps" in out and re.search(
        r"\nTraining loss in nats: mlm \d.*, mean of step 1; mlm \d.*, mean of step 2", out
    )
    compared = f"--corpus {corpus} --task TASK --methods {shlex.quote(method)} --out runs/compare"
    assert out.endswith(f"Next, to see whether adaptation helps: acclimate compare --model {tiny_bert} {compared}\n")
    card = json.loads((tmp_path / "a" / "acclimate.json").read_text())
    assert card["settings"]["contrast_weight"] == 0.5
    config = tmp_path / "run.yaml"
    config.write_text(
        f"model: {tiny_bert}\ncorpus: ['{corpus}']\nsteps: 9\nbatch-size: 4\nmax_length: 24\n"
        f"precision: fp32\nout: {tmp_path / 'b'}\nmethod: {{dga: {{contrast_weight: 0.5, importance_tokens: 100}}}}\n"
    )
    code, _, _ = call(monkeypatch, capsys, "adapt", "--config", config, "--steps", 2, "--quiet")
    assert code == 0
    again = json.loads((tmp_path / "b" / "acclimate.json").read_text())
    assert again["result"]["losses"] == card["result"]["losses"]


@pytest.mark.needs("dga")
@each(
    ("arguments", "message"),
    [
        (["--method", "dgaa"], "Did you mean 'dga'"),
        (["--method", "dga temprature=1"], "Did you mean 'temperature'"),
        (["--method", "lm nonsense"], "parameter=value"),
        (["--method", "lm name=x"], "'name' cannot be set"),
        (["--set", "weight=1"], "has no option --set. Give it as --method 'dga contrast_weight=0.5'"),
        (["--masking-set", "mask=1"], "has no option --masking-set. Give it as --masking 'whole-word"),
        (["--method", "dga name=x"], "Unknown parameter of method 'dga' 'name'"),
        (["--steps", "1e15"], "--steps must be at most 1,000,000,000"),
        (["--corpus", "no-such-file.txt"], "no-such-file.txt"),
        (["--model", "./no-such-model"], "no-such-model"),
        (["--config", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_user_errors_are_one_line_with_exit_code_2(
    tiny_bert, corpus, tmp_path, monkeypatch, capsys, arguments, message
):
    basic = ["adapt", "--model", tiny_bert, "--corpus", corpus, "--steps", 1, "--out", tmp_path / "o", "--quiet"]
    if "--corpus" in arguments:
        basic[3:5] = []
    code, _, err = call(monkeypatch, capsys, *basic, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


VERBS = sorted(typer.main.get_command(cli.app).commands)


@each("verb", [verb for verb in VERBS if verb not in ("adapt", "bench", "pretrain", "finetune")])
def test_commands_that_cannot_share_work_refuse_several_processes(verb, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = call(monkeypatch, capsys, verb, *{"inspect": ["leakage"], "periods": ["split"]}.get(verb, []))
    assert code == 2
    assert f"Start 'acclimate {verb}' without torchrun" in err
    assert ("--workers auto" in err) == (verb == "compare")
    if verb == "compare":
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert "WORLD_SIZE" not in call(monkeypatch, capsys, verb, "--help")[2]


@pytest.mark.parametrize("verb", ["adapt", "pretrain"])
def test_training_commands_leave_the_process_group(verb, monkeypatch, capsys, tmp_path):
    done = []
    result = AdaptResult(tmp_path, "mlm", steps=1, tokens=9, seconds=1.0, losses={})
    monkeypatch.setattr(f"acclimate.adaptation.{verb}.{verb}", lambda **_: done.append("trained") or result)
    monkeypatch.setattr(distributed, "leave_process_group", lambda: done.append("left"))
    model = ["--model", "m"] if verb == "adapt" else []
    assert call(monkeypatch, capsys, verb, *model, "--corpus", "c", "--out", "o")[0] == 0
    assert done == ["trained", "left"]


@pytest.mark.parametrize("verb", ["adapt", "pretrain"])
def test_training_commands_accept_several_processes(verb, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE" not in call(monkeypatch, capsys, verb, "--quiet")[2]


def test_a_file_in_place_of_the_cache_costs_no_run(tiny_bert, corpus, tmp_path, monkeypatch, capsys):
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    arguments = [
        "--model",
        tiny_bert,
        "--corpus",
        corpus,
        "--steps",
        1,
        "--max-length",
        24,
        "--out",
        tmp_path / "out",
        "--quiet",
    ]
    code, _, err = call(monkeypatch, capsys, "adapt", *arguments)
    assert code == 0
    assert f"The cache '{tmp_path / 'cache'}' cannot be written" in err and "Set ACCLIMATE_CACHE" in err


def test_running_out_of_device_memory_is_one_line_with_advice(monkeypatch, capsys):
    def run_out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore of it.")

    monkeypatch.setattr(cli, "app", run_out_of_memory)
    code, _, err = call(monkeypatch, capsys, "methods")
    assert code == 2
    assert "CUDA out of memory. Set ACCLIMATE_MEMORY_GB to" in err
    assert len(err.strip().splitlines()) == 1


@each(
    ("error", "message"),
    [
        (OverflowError("cannot convert float infinity to integer"), "is too large a number (cannot convert"),
        (RecursionError("maximum recursion depth exceeded"), "is too deeply nested"),
        (MemoryError(), "is too large for the memory of this machine (MemoryError)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "too large for the memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x"), "Raise the limit with 'ulimit"),
        (OSError(errno.ELOOP, os.strerror(errno.ELOOP), "x"), "choose another folder"),
    ],
)
def test_the_last_resort_is_one_line(monkeypatch, capsys, error, message):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", fail)
    code, _, err = call(monkeypatch, capsys, "methods")
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1


@each(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_with_its_exit_code(monkeypatch, capsys, number, code):
    monkeypatch.setattr(cli, "app", lambda: os.kill(os.getpid(), number))
    found, _, err = call(monkeypatch, capsys, "methods")
    assert found == code
    assert err.startswith(f"Stopped by {signal.Signals(number).name}. Run the same command again; it does not repeat")
    _, _, err = call(monkeypatch, capsys, "bench", "--json")
    assert "Run the same command again to measure anew: it keeps nothing." in err


@each(("saved", "said"), [(True, "to resume from the last checkpoint."), (False, "There is no checkpoint of this")])
def test_a_stopped_training_says_whether_it_resumes(monkeypatch, capsys, saved, said):
    def stop():
        stopped = Stopped(signal.SIGINT)
        stopped.saved = saved
        raise stopped

    monkeypatch.setattr(cli, "app", stop)
    assert said in call(monkeypatch, capsys, "adapt")[2]


def test_other_runtime_errors_are_bugs_with_a_traceback_and_a_code_that_is_no_decision(monkeypatch, capsys):
    def fail():
        raise RuntimeError("an internal error")

    monkeypatch.setattr(cli, "app", fail)
    code, _, err = call(monkeypatch, capsys, "methods")
    assert code == 70 and "Traceback" in err and "RuntimeError: an internal error" in err
    assert code not in EXIT_CODES.values()


@pytest.mark.needs("dga", "selective", "tapt")
def test_methods_are_listed_by_purpose_with_their_cost(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(monkeypatch, capsys, "methods")
    lines = [line.split() for line in out.splitlines()]
    order = [words[0] for words in lines if words and words[0] in names()]
    assert code == 0 and sorted(order) == names()
    assert order[0] == "lm" and order[-2:] == ["none", "mlm"] and order.index("tapt") < order.index("selective")
    assert [line for line in map(str.strip, out.splitlines()) if line in PURPOSES] == [*PURPOSES]
    assert ["dga", "2.7", "×", "+"] in [words[:4] for words in lines]
    assert lines[-1][:3] == ["Next:", "acclimate", "adapt"]


@dataclass
class Consistency(Method):
    weight: float = 0.2
    layers: tuple[int, ...] = field(default_factory=tuple)
    kind: str = field(kw_only=True)


def test_a_method_that_hurt_on_two_models_says_so(capsys):
    def study(model, *verdicts):
        rows = [{"model": model, "task": f"t{number}", "verdict": verdict} for number, verdict in enumerate(verdicts)]
        return {"against_rival": [*rows, {"model": model, "text": "domain", "verdict": "hurt"}]}

    mixed = study("c", "hurt", "helped", "no difference shown")
    assert worse_on([study("b", "hurt"), study("a", "hurt", "hurt", "helped"), mixed, study("d")]) == ["a", "b"]
    row = {**list_methods()[0], "measured": ["once"]}
    for models, said in (
        ([], "; measured"),
        (["a"], "; measured"),
        (["a", "b"], "; worse than without it on 2 models"),
    ):
        for part in show_methods([{**row, "worse_on": models}], MethodsOptions()):
            SafeConsole(width=200).print(part)
        assert said in capsys.readouterr().out


def test_a_reader_that_stops_reading_is_no_fault_of_a_method():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        SafeConsole(file=Closed()).print("text")


def test_parameters_of_an_unexplained_method_are_listed_from_its_signature(monkeypatch, capsys):
    monkeypatch.setitem(REGISTRY.entries, "consistency", Consistency)
    monkeypatch.setattr(Consistency, "name", "consistency")
    code, out, _ = call(monkeypatch, capsys, "methods", "consistency")
    assert code == 0 and "Consistency(" not in out
    for line in ("weight = 0.2 (float)", "layers = () (tuple[int, ...])", "kind = required (str)"):
        assert f"\n    {line}\n" in out


def test_completion_offers_the_public_functions():
    assert dir(acclimate) == sorted(acclimate.__all__) and "compare" in dir(acclimate)
    assert set(dir(acclimate)) == {"__version__", *(verb.function_name for verb in find_verbs())}


def test_the_command_line_does_not_import_torch():
    heavy = ("torch", "transformers", "datasets")
    program = f"import sys, acclimate.cli.main; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_finetune_prints_the_metrics_of_the_task(tiny_bert, tmp_path, monkeypatch, capsys):
    rows = "".join(
        json.dumps({"text": text, "label": "no" if n % 2 else "yes"}) + "\n" for n, text in enumerate(TEXTS)
    )
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(rows)
    common = ["finetune", "--model", tiny_bert, "--task", tmp_path, "--seeds", 1, "--epochs", 1, "--quiet"]
    code, out, _ = call(monkeypatch, capsys, *common, "--negative", "no")
    assert code == 0
    assert out.count("positive_micro_f1") == 1 and re.search(r"\npositive_micro_f1: [01]\.", out)
    assert "The models are not kept.\nNext, to keep them: acclimate finetune" in out
    assert out.endswith("--quiet --negative no --out finetuned\n")
    assert "\nece: 0." in out and "  F1 yes: " in out
    code, _, err = call(monkeypatch, capsys, *common, "--negative", "nay")
    assert code == 2 and "Unknown negative label" in err


@pytest.mark.needs("dga")
def test_values_of_a_configuration_file_are_converted_to_the_types_of_the_options(
    monkeypatch, capsys, tiny_bert, tmp_path
):
    """YAML parses 1e-4 as a string."""
    (tmp_path / "text.txt").write_text("\n".join(f"the menu was good {number}" for number in range(9)))
    file = tmp_path / "run.yaml"
    settings = (
        f"model: {tiny_bert}\ncorpus: {tmp_path / 'text.txt'}\nsteps: 2e0\nlearning-rate: 1e-3\nmax-length: 24\n"
    )
    file.write_text(settings + "warmup: 5e-1\nmethod: dga importance_tokens=50\n")
    code, _, err = call(
        monkeypatch, capsys, "adapt", "--config", file, "--out", tmp_path / "out", "--warmup", 0.2, "--batch-size", 4
    )
    assert code == 0, err
    assert "9 documents from 1 source" in err
    card = json.loads((tmp_path / "out" / "acclimate.json").read_text())
    assert (card["budget"]["steps"], card["learning_rate"], card["warmup"]) == (2, 1e-3, 0.2)
    assert card["settings"]["importance_tokens"] == 50
    for slip, message in (
        ("steps: many", "'steps' must be an integer"),
        ("warmup: lots", "'warmup' must be a number"),
        ("keep_steps: [1.5]", "'keep_steps' expects step numbers"),
        ("settings: {weight: 1}", "'settings' is no option. Give it as method: dga contrast_weight=0.5"),
    ):
        file.write_text(settings.replace("steps: 2e0\n", "") + slip)
        code, _, err = call(monkeypatch, capsys, "adapt", "--config", file, "--out", tmp_path / "other")
        assert code == 2 and message in err


def test_a_configuration_file_with_step_numbers_and_a_numeric_folder_name(monkeypatch, capsys, tiny_bert, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(f"the menu was good {number}" for number in range(9)))
    settings = f"model: {tiny_bert}\ncorpus: [text.txt]\nsteps: 3\nbatch-size: 4\nmax-length: 24\nout: 2024\n"
    for value in ('"1,2"', "[1, '2']"):
        (tmp_path / "run.yaml").write_text(f"{settings}keep_steps: {value}\noverwrite: true\n")
        code, _, err = call(monkeypatch, capsys, "adapt", "--config", "run.yaml", "--quiet")
        assert code == 0, err
        assert sorted(path.name for path in (tmp_path / "2024").glob("step-*")) == ["step-000001", "step-000002"]


def test_a_broken_line_is_reported_on_the_terminal(monkeypatch, capsys, tiny_bert, tmp_path):
    lines = [*(json.dumps({"text": f"the menu was good {number}"}) for number in range(9)), "{broken"]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    code, _, err = call(
        monkeypatch, capsys, "adapt", "--model", tiny_bert, "--corpus", tmp_path / "text.jsonl", "--steps", 1,
        "--max-length", 24, "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0
    message = " ".join(err.split())
    assert "left out: 1 broken" in message and "text.jsonl:10" in message.replace(" ", "")


@each(
    ("arguments", "message"),
    [
        (["adapt", "--model_name_or_path"], "'acclimate adapt' has no option --model_name_or_path. Did you"),
        (["adapt", "--per_device_train_batch_size=8"], "Did you mean --batch-size (the texts of an optimizer step"),
        (["adapt", "--train_file", "x"], "Did you mean --corpus?"),
        (["finetune", "--train_file", "x"], "Did you mean --task (a labelled folder or file)?"),
        (["adapt", "--gradient_accumulation_steps", "4"], "Leave it out: --batch-size is what a step reads in total"),
        (["adapt", "--batch_size", "4"], "Did you mean --batch-size?"),
        (["adapt", "--lora_alpha", "4"], "Did you mean --adapter (as --adapter 'lora alpha=32')?"),
        (["adapt", "--lr", "1e-4"], "Did you mean --learning-rate?"),
        (["adapt", "--learning-rat", "4"], "Did you mean --learning-rate?"),
        (["inspect", "masks", "--max_seq_length", "4"], "'acclimate inspect masks' has no option --max_seq_length."),
        (["methods", "--xyzzy"], "'acclimate methods' has no option --xyzzy. --help lists all options."),
        (["adapt", "-z"], "has no option -z."),
        (["adapt", "bert", "text/"], "does not know what 'bert', 'text/' is: give the names of the options, and"),
        (["adapt", "--corpus", "a", "b"], "what 'b' is: give the name of the option, and repeat it for each value."),
    ],
)  # fmt: skip
def test_an_unknown_flag_is_one_line_with_the_right_one(monkeypatch, capsys, arguments, message):
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2 and message in err and len(err.splitlines()) == 1


def test_every_proposed_flag_exists():
    commands = typer.main.get_command(cli.app).commands
    flags = {flag for verb in ("adapt", "finetune") for parameter in commands[verb].params for flag in parameter.opts}
    proposed = {flag for flag, *_ in HUGGING_FACE.values() if flag}
    noted = {word for _, *notes in HUGGING_FACE.values() for word in " ".join(notes).split() if word.startswith("--")}
    assert proposed | {word.strip(",;") for word in noted} <= flags


def test_flags_of_the_usual_training_scripts_are_known():
    """Those of the table of names that users of ``run_mlm.py``, ``run_clm.py`` and ``SFTTrainer`` try first."""
    names = """model_name_or_path train_file dataset_name per_device_train_batch_size gradient_accumulation_steps
    num_train_epochs max_steps mlm_probability max_seq_length output_dir overwrite_output_dir bf16 validation_file
    eval_steps save_steps logging_steps line_by_line preprocessing_num_workers lr_scheduler_type lr block_size packing
    dataset_text_field lora_alpha use_peft load_in_4bit warmup_steps torch_dtype save_total_limit"""
    assert set(names.split()) <= HUGGING_FACE.keys()
    for name in ("learning_rate", "weight_decay", "max_length", "gradient_checkpointing", "report_to", "seed"):
        assert f"Did you mean --{name.replace('_', '-')}?" in propose(f"--{name}", [f"--{name.replace('_', '-')}"])


def test_the_version_and_the_short_help(monkeypatch, capsys):
    assert call(monkeypatch, capsys, "--version")[:2] == (0, f"acclimate {acclimate.__version__}\n")
    for command in ([], ["adapt"], ["inspect"], ["inspect", "masks"]):
        code, out, _ = call(monkeypatch, capsys, *command, "-h")
        assert code == 0 and out == call(monkeypatch, capsys, *command, "--help")[1]


def test_commands_are_listed_in_the_order_of_their_use(monkeypatch, capsys):
    _, out, _ = call(monkeypatch, capsys, "--help")
    shown = [name for line in out.splitlines() if (name := line.strip("│ ").split(" ")[0]) in VERBS]
    assert shown == [one.name for one in find_declared() if one.section] and sorted(shown) == VERBS
    assert shown[:5] == ["compare", "adapt", "finetune", "predict", "doctor"]
    assert all(panel in out for panel in SECTIONS)


def test_help_shows_brackets_as_they_are_written():
    command = typer.main.get_command(cli.app).commands["adapt"]
    shown = {parameter.name: Text.from_markup(parameter.help or "").plain for parameter in command.params}
    written = {field.name: field.option.help for field in option_fields(AdaptOptions).values() if field.option.cli}
    assert any("[" in text for text in written.values())
    assert {name for name, text in written.items() if text.rstrip(".") not in shown[name]} == set()


@pytest.mark.slow
def test_help_ends_with_an_example_and_a_page(monkeypatch, capsys):
    root = Path(cli.__file__).parents[3]
    for one in find_declared():
        if getattr(one, "cli", True):
            _, out, _ = call(monkeypatch, capsys, *one.name.split(), "--help")
            assert f"Example: acclimate {one.name}" in " ".join(out.split()), one.name
            assert f"More: {one.page}" in out and (root / one.page).is_file(), one.name


def test_completion_lists_the_verbs(monkeypatch, capsys):
    for name, value in (("_ACCLIMATE_COMPLETE", "complete_bash"), ("COMP_WORDS", "acclimate comp"), ("COMP_CWORD", 1)):
        monkeypatch.setenv(name, str(value))
    assert call(monkeypatch, capsys)[1].split() == ["compare"]


def paths(value):
    """Return the texts in a document that look like absolute paths."""
    if isinstance(value, dict | list):
        return {path for part in (value.values() if isinstance(value, dict) else value) for path in paths(part)}
    return {value} if isinstance(value, str) and value.startswith("/") else set()


def test_json_is_the_last_line_and_its_paths_exist(tiny_bert, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--steps", 1, "--batch-size", 4, "--max-length", 24, "--precision", "fp32", "--quiet"]
    selected = tmp_path / "selected.jsonl"
    for verb, arguments in {
        "methods": ["dga"],
        "init": [tmp_path / "study.yaml", "--model", tiny_bert, "--corpus", corpus],
        "select": ["--corpus", corpus, "--by", "random documents=5", "--out", selected],
        "adapt": ["--model", tiny_bert, "--corpus", corpus, "--out", tmp_path / "adapted", *small],
        "inspect masks": ["--model", tiny_bert, "--corpus", corpus, "--out", tmp_path / "masks"],
    }.items():
        code, out, err = call(monkeypatch, capsys, *verb.split(), *arguments, "--json")
        document = json.loads(out)  # nothing else is on standard output
        assert code == 0 and (document["schema"], document["verb"]) == (1, verb), err
        assert "Next" in err and all(line.startswith("acclimate ") for line in document["next"])
        assert all(Path(path).exists() for path in paths([document["out"], document["result"]])), document
    assert json.loads(call(monkeypatch, capsys, "methods", "--json")[1])["result"][0]["cost"] >= 0


@each(
    ("verb", "arguments", "error"),
    [
        ("adapt", ["--json", "--corpus", "no.txt", "--steps", "x"], "--model is required"),
        ("inspect masks", ["--json", "--modl", "m"], "'acclimate inspect masks' has no option --modl."),
        ("adapt", ["--json", "--out"], "Option '--out' requires an argument."),
        ("plan ratio", ["--tolerance", "x", "--json"], "--tolerance must be a number"),
        ("plan", ["--json"], "plan' needs a command: ratio"),
        ("plan", ["rati", "--json"], "No such command 'rati'"),
        ("adpt", ["--json"], "No such command 'adpt'"),
    ],
)
def test_a_failed_command_has_a_document_with_the_error(monkeypatch, capsys, verb, arguments, error):
    code, out, err = call(monkeypatch, capsys, *verb.split(), *arguments)
    document = json.loads(out)
    assert error in document["error"] and document["error"] in err, document
    assert (code, document) == (2, {"schema": 1, "verb": verb, "error": document["error"], "code": 2})


def test_a_bug_and_a_signal_have_a_document_too(monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", lambda: os.kill(os.getpid(), signal.SIGINT))
    code, out, _ = call(monkeypatch, capsys, "finetune", "--json")
    assert code == json.loads(out)["code"] == 130 and json.loads(out)["error"].startswith("Stopped by SIGINT.")
    monkeypatch.setattr(cli, "app", lambda: 1 / 0)
    code, out, err = call(monkeypatch, capsys, "finetune", "--json")
    assert code == json.loads(out)["code"] == 70 and "ZeroDivisionError: division by zero" in err


def test_the_page_lists_all_exit_codes():
    page = (Path(cli.__file__).parents[3] / "docs" / "commands.md").read_text()
    listed = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", page, flags=re.M) for code in row.split(", ")}
    sources = [file.read_text(encoding="utf-8") for file in SOURCES]
    ends = {int(code) for text in sources for code in re.findall(r"\bexit\((\d+)\)", text)}
    handled = re.findall(r"signals = \{(.+?), \*more\}", "\n".join(sources))[0]
    signals = {128 + getattr(signal, name) for name in re.findall(r"SIG\w+", handled)}
    assert ends | signals | {2, cli.BUG, *EXIT_CODES.values()} == listed


def test_a_flag_takes_what_its_option_takes():
    """A part with its parameters is one text, unless the option takes nothing but names with values."""
    app, text = typer.main.get_command(cli.app), "7 start=first"
    for verb in find_verbs():
        command = app
        for word in verb.name.split():
            command = getattr(command, "commands", {}).get(word)
        for name, one in option_fields(verb.options).items() if command else ():
            members = get_args(one.type) if get_origin(one.type) is not dict else ()
            if str in members and one.option.cli and name not in verb.without and one.flag.startswith("-"):
                flags = command.make_context(verb.name, [one.flag, text]).params
                found = read_options(dict, {name: one}, {name: flags[name]}, None, {})[name]
                assert found == ((text,) if one.option.many else text), (verb.name, one.flag)


def test_new_tokens_are_a_number_or_a_part():
    command = typer.main.get_command(cli.app).commands["adapt"]
    fields = {name: field for name, field in option_fields(AdaptOptions).items() if field.option.cli}
    for text, expected in (("500", 500), ("500 min_count=5", {500: {"min_count": 5}})):
        given = ["--model", "m", "--corpus", "c.txt", "--out", "o", "--new-tokens", text]
        flags = command.make_context("adapt", given).params
        options = read_options(AdaptOptions, fields, {name: flags[name] for name in fields}, None, {})
        assert options.new_tokens == expected
