"""The comparison of arithmetics in fine-tuning: its emulated products, its table, and that it goes on."""

from __future__ import annotations

import json
import math

import torch

from acclimate.models import kernels_of
from benchmarks import precision
from tests.tiny import save_tiny, tiny_model


def test_emulated_products_are_rounded_once_and_so_are_their_gradients():
    torch.manual_seed(0)
    wide, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((6, 5, 16), (8, 16), (8,)))
    wide.requires_grad_()
    with precision.RoundedProducts():
        made = torch.nn.functional.linear(wide, weight, bias)
        batched = wide @ wide.transpose(1, 2)
        made.float().sum().backward()
    assert torch.equal(made, torch.nn.functional.linear(wide.float(), weight.float(), bias.float()).bfloat16())
    assert torch.equal(batched, (wide.float() @ wide.float().transpose(1, 2)).bfloat16())
    assert torch.equal(wide.grad[0, 0], weight.float().sum(0).bfloat16())
    exact = torch.randn(3, 4)
    with precision.RoundedProducts():
        assert torch.equal(exact @ exact.T, exact @ exact.T)


def test_each_arithmetic_is_what_it_says():
    for name, asked, lowers in (("fp32", "fp32", False), ("lowered", "bf16", True), ("autocast", "bf16", False)):
        with precision.arithmetic(name) as said:
            assert said == asked
            assert (said == "bf16" and kernels_of(tiny_model("bert")).bf16_weights) == lowers
    assert kernels_of(tiny_model("bert")).bf16_weights


def test_differences_are_paired_by_seed():
    scores = {"fp32": {"0": 0.5, "1": 0.7, "2": 0.1}, "lowered": {"0": 0.49, "1": 0.67}, "autocast": {}}
    runs = {name: {seed: {"f": value} for seed, value in given.items()} for name, given in scores.items()}
    assert precision.compared(runs, "fp32", "f") == "| f | fp32 | 3 | 0.433 ± 0.306 | | | |"
    # -0.01 and -0.03: mean -0.02, standard error 0.01, and Student's t with one degree has 12.7 there
    row = "| f | lowered | 2 | 0.580 ± 0.127 | -0.020 | -0.147 to +0.107 | 0.295 |"
    assert precision.compared(runs, "lowered", "f") == row
    assert precision.compared(runs, "autocast", "f") == "| f | autocast | 0 | | | | |"


def test_cross_entropy_is_that_of_the_true_labels():
    class Made:
        metrics = {"macro_f1": 0.5, "micro_f1": 0.25}
        gold, probabilities = [1, 0], [[0.2, 0.8], [0.5, 0.5]]

    found = precision.measured(Made())
    assert found == {"macro_f1": 0.5, "micro_f1": 0.25, "cross-entropy": -(math.log(0.8) + math.log(0.5)) / 2}


def test_it_trains_on_train_judges_on_dev_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    save_tiny("bert", tmp_path / "model")
    task = tmp_path / "task"
    task.mkdir()
    for split, count in (("train", 16), ("dev", 10), ("test", 4)):
        rows = [{"text": ("bad", "good")[place % 2], "label": ("no", "yes")[place % 2]} for place in range(count)]
        (task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["--model", tmp_path / "model", "--task", task, "--epochs", 1, "--rate", "1e-3", "--json", tmp_path / "a"]
    asked = [str(word) for word in asked]
    assert precision.main([*asked, "--seeds", "1", "--arithmetics", "fp32", "lowered"]) == 0
    first = json.loads((tmp_path / "a").read_text())["runs"]
    assert {name: [*runs] for name, runs in first.items()} == {"fp32": ["0"], "lowered": ["0"], "autocast": []}
    capsys.readouterr()
    assert precision.main([*asked, "--seeds", "2"]) == 0
    told = capsys.readouterr()
    assert told.err.count("seed 0") == 1 and told.err.count("seed 1") == 3  # the rest was there
    assert "| cross-entropy | autocast | 2 |" in told.out
    assert precision.main([*asked, "--epochs", "2"]) == 2


def test_without_the_data_it_says_so(capsys):
    assert precision.main(["--task", "no/such/task"]) == 0
    assert "no/such/task" in capsys.readouterr().out
