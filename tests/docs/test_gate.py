"""The scripts of the page on gates run as shell, and only a decision opens the gate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cases import each
from tests.docs.blocks import DOCS, blocks

SCRIPT, WORKFLOW, HOOK = (block.text for block in blocks(DOCS / "guides" / "gate.md") if block.skipped)
SAYS = {0: "open", 1: "closed", 3: "undecided", 2: "no decision", 70: "no decision", 137: "no decision"}
"""What the script says, by the exit code of the command."""


def place(folder: Path, command: str) -> dict[str, str]:
    """Write the script, and an ``acclimate`` that runs ``command``; return the environment that finds it."""
    (folder / "gate.sh").write_text(SCRIPT)
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "acclimate"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def workflow_steps() -> list[str]:
    """Return the commands of the workflow, without the installation."""
    steps = yaml.safe_load(WORKFLOW)["jobs"]["gate"]["steps"]
    return [step["run"] for step in steps if not step.get("run", "pip").startswith("pip")]


@each("code", list(SAYS))
def test_the_pipeline_ends_with_the_code_and_says_what_it_means(tmp_path, code):
    environment = place(tmp_path, f"exit {code}")
    (step,) = workflow_steps()
    done = subprocess.run(
        ["bash", "-e", "-c", step], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code and done.stdout.startswith(f"Gate: {SAYS[code]}"), done


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@each(("code", "target", "pushed"), [(0, "main", True), (1, "main", False), (70, "main", False), (1, "draft", True)])
def test_the_hook_lets_a_push_to_main_through_only_if_the_requirements_are_met(tmp_path, code, target, pushed):
    environment = place(tmp_path, f"cat; exit {code}")  # what reads the input would end the loop of the hook

    def git(*words: str) -> int:
        given = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false", *words]
        return subprocess.run(given, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode

    assert not git("init", "--bare", "remote.git") + git("init", ".") + git("commit", "--allow-empty", "-m", "one")
    hook = tmp_path / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(HOOK)
    hook.chmod(0o755)
    ended = git("push", "./remote.git", f"HEAD:refs/heads/{target}")
    assert (ended == 0) is pushed
    assert git("--git-dir=remote.git", "rev-parse", f"refs/heads/{target}") == (0 if pushed else 128)


@pytest.mark.slow
def test_the_command_of_the_script_decides(tiny_bert, tmp_path):
    environment = place(tmp_path, f'exec "{sys.executable}" -m acclimate "$@" --epochs 1')
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "candidate").symlink_to(tiny_bert)
    rows = [f"the menu was {'good' if number % 2 else 'bad'} {number},{'ny'[number % 2]}\n" for number in range(200)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(rows))
    done = subprocess.run(
        ["sh", "gate.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    line, said = done.stdout.splitlines()[-2:]
    states = {0: "met", 1: "not met", 3: "undecided"}
    assert done.returncode in states, done.stderr
    assert line.startswith(f"Requirement {states[done.returncode]}: accuracy >= 80 (mean of 3 seeds ")
    assert said.startswith(f"Gate: {SAYS[done.returncode]}")
