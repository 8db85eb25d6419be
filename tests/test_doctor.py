"""``acclimate doctor``: what it says about a machine, and what it keeps to itself."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import torch

import acclimate
from acclimate.labs.bench.doctor import _advise as advise
from acclimate.labs.bench.doctor import doctor, show_machine
from acclimate.labs.bench.options import DoctorOptions
from tests.cases import each
from tests.test_cli import call

FINE = {
    "machine": {"threads": 4, "usable_cores": 4, "load": 0.5, "memory": 64e9},
    "devices": [],
    "default_device": "cpu",
    "precision": "bf16",
    "variables": {},
    "caches": {"acclimate": {"path": "~/.cache/acclimate", "free": 100e9, "writable": True}},
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with a cache of five kilobytes, and secrets next to it."""
    (tmp_path / ".cache" / "acclimate" / "rows").mkdir(parents=True)
    (tmp_path / ".cache" / "acclimate" / "rows" / "a").write_bytes(b"a" * 5_000)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / ".cache" / "acclimate"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return tmp_path


def test_the_text_for_a_bug_report(home, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    code, out, err = call(monkeypatch, capsys, "doctor")
    assert code == 0 and not err
    for line in (
        f"acclimate {acclimate.__version__}",
        f"python {platform.python_version()}",
        f"torch {torch.__version__}",
        "cache of acclimate: ~/.cache/acclimate, 0.0 GB",
        "ACCLIMATE_CACHE=~/.cache/acclimate",
    ):
        assert any(found.startswith(line) for found in out.splitlines()), line
    assert str(home) not in out and "hf_secret" not in out
    code, out, _ = call(monkeypatch, capsys, "doctor", "--json")
    found = json.loads(out)["result"]
    assert found["caches"]["acclimate"]["bytes"] == 5_000 and str(home) not in out and "hf_secret" not in out
    assert found["kernels"] and found["machine"]["threads"] == torch.get_num_threads()


def test_an_extra_names_the_packages_that_it_lacks(monkeypatch):
    from importlib import metadata

    versions = {"peft": "0.99", "openpyxl": "3.0"}

    def version(name):
        if name in versions:
            return versions[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    extras = doctor()["extras"]
    assert extras["lora"] == [] and extras["qlora"][0].startswith("bitsandbytes")
    assert extras["excel"][0].startswith("openpyxl>=")  # it is there, and too old
    assert "dev" not in extras


@each(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"machine": {"threads": 1}}, "Set OMP_NUM_THREADS=4, or unset it. torch uses 1 of 4 cores."),
        ({"machine": {"load": 15.0}}, "Wait for other programs, or stop them. The load is 15.0 on 4 cores."),
        ({"machine": {"memory": 4e9}}, "Adapt with --adapter lora"),
        ({"precision": "fp32"}, "Use a CPU with AMX"),
        ({"variables": {"ACCLIMATE_KERNELS": "torch"}}, "Unset ACCLIMATE_KERNELS."),
        ({"devices": [{"kind": "cuda", "name": "H100", "memory": 8e10, "used": True}]}, "Unset ACCELERATE_USE_CPU."),
        ({"devices": [{"kind": "mps", "name": "M3", "memory": 1e10, "used": False}]}, "Report this text"),
        ({"devices": [{"kind": "mps", "name": "M3", "memory": 1e10, "used": True}]}, "Unset ACCELERATE_USE_CPU."),
        (
            {"devices": [{"kind": "mps", "name": "M3", "memory": 1e10, "used": True}], "default_device": "mps"},
            "Report speed and faults with this text. Nobody has run acclimate on an Apple GPU yet",
        ),
        (
            {"caches": {"acclimate": {"path": "/c", "free": 1e9, "writable": True}}},
            "Free some space on",
        ),
        ({"caches": {"acclimate": {"path": "/c", "free": 1e11, "writable": False}}}, "Make /c writable."),
    ],
)
def test_what_would_make_a_machine_faster(monkeypatch, changes, expected):
    monkeypatch.setattr("shutil.which", lambda name: None)
    machine = {**FINE["machine"], **changes.get("machine", {})}
    found = [f"{one['do']} {one['why']}" for one in advise({**FINE, **changes, "machine": machine})]
    assert len(found) == bool(expected) and (not found or found[0].startswith(expected)), found


def test_a_driver_without_a_gpu_in_torch_is_reported(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi")
    assert "torch sees no GPU" in next(iter(advise(FINE)))["why"]


def test_an_invalid_variable_is_reported_and_the_rest_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCLIMATE_KERNELS", "fast")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "missing" / "cache"))
    text = "\n".join(show_machine(doctor(), DoctorOptions()))
    assert "Problem: ACCLIMATE_KERNELS is 'fast'; set it to auto or torch." in text
    assert "kernels of an encoder: none" in text
    assert not Path(tmp_path / "missing").exists()
