"""The documentation: code examples run, the study page is complete, and no link is broken."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import typer
import yaml
from scripts.render_results import render_readme

from acclimate.adaptation import method as registry
from acclimate.adaptation.adapt import adapt
from acclimate.cli.main import app
from acclimate.data.documents import Corpus
from acclimate.study.config import DomainSpec, MethodSpec, StudyConfig, section_types
from acclimate.study.sections import DistillSpec
from acclimate.study.settings import EvaluateSettings, FinetuneSettings, TaskSpec
from tests.tiny import TEXTS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_between_pages_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    assert len(pages) > 20
    broken = []
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def test_every_command_on_the_pages_has_the_options_it_shows():
    group = typer.main.get_command(app)
    checked = 0
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^(?:\$ |    )?(?:torchrun \S+ \S+ -m |.*; do .*?)?acclimate (.+)$", text, flags=re.M):
            words = line.split("#")[0].split()
            command, names = group, ["acclimate"]
            while isinstance(command, typer.core.TyperGroup) and words and words[0] in command.commands:
                command = command.commands[words[0]]
                names.append(words.pop(0))
            if len(names) == 1:
                continue  # 'acclimate' at the start of a line of prose
            known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
            unknown = [word for word in words if word.startswith("--") and word not in {*known, "--help"}]
            assert not unknown, f"{page.name}: {' '.join(names)} has no {unknown}"
            checked += 1
    assert checked > 20


def test_every_python_name_and_file_of_the_package_on_the_pages_exists():
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        if page.name in ("CHANGELOG.md", "log.md"):
            continue  # they may name what no longer exists
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`(acclimate(?:\.[a-z_]+)+)[`(]", text):
            if name != "acclimate.json":
                assert pkgutil.resolve_name(name), f"{page.name}: {name}"
        for file in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
            assert (ROOT / file).exists() or (ROOT / "src" / "acclimate" / file).exists(), f"{page.name}: {file}"


def test_performance_page_is_short():
    assert len((DOCS / "dev" / "performance.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 500


def test_the_table_of_the_readme_is_printed_from_results():
    assert (ROOT / "README.md").read_text(encoding="utf-8") == render_readme(), "run `make docs`"


def test_the_page_of_installation_has_every_extra_with_its_packages():
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `([\w-]+)` \|([^|]*)\|", page, flags=re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(table) == set(extras)
    for name in set(extras) - {"dev", "qlora"}:
        required = {re.split(r"[\[>=]", package)[0] for package in extras[name]} - {"requests"}
        assert required == set(re.findall(r"`([^`]+)`", table[name])), name


def test_the_method_on_the_page_trains(tiny_bert, tmp_path, monkeypatch):
    page = (DOCS / "write-your-own-method.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    try:
        (tmp_path / "consistency_page.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module("consistency_page")
        result = adapt(
            tiny_bert, Corpus.of(TEXTS), "consistency weight=0.2", tmp_path / "out", steps=2, batch_size=4,
            max_length=24, precision="fp32", progress=False,
        )  # fmt: skip
        assert result.losses["agreement"] > 0
        assert abs(result.losses["loss"] - result.losses["mlm"] - 0.2 * result.losses["agreement"]) < 1e-4
    finally:
        registry.REGISTRY.entries.pop("consistency", None)


def test_the_study_page_has_a_valid_file_and_every_key():
    page = (DOCS / "study.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    config = StudyConfig.of(yaml.safe_load(source))
    assert (config.baseline, len(config.seeds), config.adapt.tokens) == ("none", 5, 50_000_000)
    keys = {*StudyConfig.model_fields, *FinetuneSettings.model_fields, *TaskSpec.model_fields}
    keys |= {*MethodSpec.model_fields, *DomainSpec.model_fields}
    keys |= {*DistillSpec.model_fields} - {*DistillSpec.option_names}  # `acclimate distill --help` describes these
    keys |= {*EvaluateSettings.model_fields, *section_types()}
    keys -= {"sections"}
    missing = [key for key in sorted(keys) if f"`{key}`" not in page and f"`{key}:" not in page]
    assert not missing


def test_the_studies_on_the_page_of_decoders_are_valid():
    page = (DOCS / "decoders.md").read_text(encoding="utf-8")
    study, tasks, asked = (yaml.safe_load(source) for source in re.findall(r"```yaml\n(.*?)```", page, flags=re.S))
    config = StudyConfig.of(study)
    assert [method.label for method in config.methods] == ["none", "lm", "lm with replay", "lm with lora"]
    (task,) = (TaskSpec.model_validate(entry) for entry in tasks["tasks"])
    assert task.likelihood and task.likelihood.words["bio"] == "biology"
    words, exam = (TaskSpec.model_validate(entry) for entry in asked["tasks"])
    assert words.likelihood and words.likelihood.shots == [0, 2, 8] and tuple(exam.shots) == (0, 5)
