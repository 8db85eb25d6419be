"""Uploading to the Hub, with a fake client and no network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, parse_eval_result_entries

from acclimate.base.errors import UserError
from acclimate.base.files import record_files
from acclimate.cards import hub
from acclimate.cards.hub import check_metadata, push_to_hub
from tests.cases import each
from tests.test_cli import call, corpus  # noqa: F401  (a fixture)


class Client:
    """Records its calls."""

    def __init__(self, error=None):
        self.calls, self.error, self.benchmarks = [], error, {}

    def create_repo(self, repo, **options):
        if self.error:
            raise self.error
        self.calls.append(("create", repo, options))
        return SimpleNamespace(repo_id=f"me/{repo}" if "/" not in repo else repo)

    def create_commit(self, operations, **options):
        self.calls.append(("upload", {one.path_in_repo: one for one in operations}, options))
        return SimpleNamespace(commit_url="https://hub/commit/1")

    def hf_hub_download(self, name, file, repo_type):
        assert (file, repo_type) == ("eval.yaml", "dataset")
        return self.benchmarks[name]


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_a_new_repository_is_private_and_gets_the_folder(model):
    client = Client()
    assert push_to_hub(model, "name", api=client) == "https://hub/commit/1"
    (_, name, options), (_, files, upload) = client.calls
    assert name == "name" and options == {"private": True, "exist_ok": True}
    assert upload["repo_id"] == "me/name" and files["config.json"].path_or_fileobj == str(model / "config.json")


@each("manifest", ["acclimate.json", "run.json", None])
def test_only_what_was_written_is_uploaded_and_listed_before_and_the_rest_is_named(tmp_path, caplog, capsys, manifest):
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    (model / "step-000100").mkdir()
    written = ["README.md", "config.json", "model.safetensors", "1_Pooling/config.json", "modules.json"]
    private = ["predictions.jsonl", "carried.json", "step-000100/config.json", ".hidden"]
    for name in written + private:
        (model / name).write_text("{}")
    (model / "modules.json").write_text('[{"path": "1_Pooling"}]')
    if manifest is not None:
        (model / manifest).write_text("{}")
        record_files(model, manifest)
    others = ["credentials", "train-copy.jsonl", "1_Pooling/notes.md", "[a].py"]
    for name in others:
        (model / name).write_text("secret")
    listed = []
    client = Client()
    client.create_commit = lambda operations, **_: listed.extend(
        [{one.path_in_repo for one in operations}, capsys.readouterr().err]
    )
    push_to_hub(model, "name", api=client)
    files, shown = listed
    assert files == {*written}
    assert "Uploading to 'me/name'" in shown and all(f"  {name}, " in shown for name in written)
    assert len(shown.splitlines()) == 1 + len(written)
    assert ", ".join(sorted(others)) in caplog.text


def test_scores_on_benchmarks_of_the_hub_are_evaluation_results(model, tmp_path):
    """One score for each task of a dataset that has ``eval.yaml``; other datasets and local tasks have none."""
    results = [
        EvalResult("text-generation", kind, kind, "exact_match", value, dataset_config=config, dataset_split="test",
                   metric_name=metric)
        for kind, config, metric, value in (
            ("org/quiz", None, "em", 0.25), ("org/quiz", None, "f1", 0.5), ("org/sums", "hard", "em", 0.75),
            ("org/plain", None, "em", 0.1), ("org/other", "c", "em", 0.2), ("mine", None, "em", 0.3),
            ("org/list", None, "em", 0.4), ("org/empty", None, "em", 0.4), ("org/odd", None, "em", 0.4),
        )
    ]  # fmt: skip
    ModelCard.from_template(
        ModelCardData(model_name="a", eval_results=results), template_str="---\n{{ card_data }}\n---\n"
    ).save(model / "README.md")
    client = Client()
    tasks = {"quiz": ("quiz_main", "default"), "sums": ("sums_hard", "hard"), "other": ("other", "default")}
    for name, (task, config) in tasks.items():
        client.benchmarks[f"org/{name}"] = tmp_path / f"{name}.yaml"
        (tmp_path / f"{name}.yaml").write_text(f"tasks:\n- {{id: {task}, config: {config}, split: test}}\n")
    for name, text in (("list", "[1, 2]"), ("empty", ""), ("odd", "tasks: [{split: test, config: default}, quiz]")):
        client.benchmarks[f"org/{name}"] = tmp_path / f"{name}.yaml"
        (tmp_path / f"{name}.yaml").write_text(text)
    push_to_hub(model, "name", api=client)
    files = client.calls[1][1]
    made = {name: one.path_or_fileobj for name, one in files.items() if name.startswith(".eval_results/")}
    assert {*made} == {".eval_results/quiz.yaml", ".eval_results/sums.yaml"}
    (quiz,), (sums,) = (
        parse_eval_result_entries(yaml.safe_load(made[f".eval_results/{one}.yaml"])) for one in ("quiz", "sums")
    )
    assert (quiz.dataset_id, quiz.task_id, quiz.value) == ("org/quiz", "quiz_main", 0.25)
    assert (sums.dataset_id, sums.task_id, sums.value) == ("org/sums", "sums_hard", 0.75)
    assert quiz.notes.startswith("em, measured with acclimate")
    assert not (model / ".eval_results").exists()


def test_public_when_asked(model):
    client = Client()
    push_to_hub(model, "me/name", private=False, api=client)
    assert client.calls[0][2]["private"] is False


def test_the_card_gets_its_metadata_and_loads_by_the_name_on_the_hub(model):
    usage = (
        "```python\nmodel = AutoModel.from_pretrained('model')\n```\n\n$ acclimate finetune --model model --out x\n"
    )
    index = "model-index:\n- name: a\n  results: []\n"
    text = f"---\ntags:\n- lm\n{index}---\n\n# A model\n\n## How to use it\n\n{usage}\n## Data\n\n'model' and model\n"
    (model / "README.md").write_text(text)
    assert hub.missing_metadata(model) == ["license", "language", "base_model"]
    given = {"license": "apache-2.0", "language": ["de", "en"], "base_model": "org/base"}
    push_to_hub(model, "name", api=Client(), **given)
    assert hub.missing_metadata(model) == []
    card = ModelCard.load(model / "README.md")
    assert {name: getattr(card.data, name) for name in given} == given and card.data.tags == ["lm"]
    assert "from_pretrained('me/name')" in card.text and "finetune --model me/name --out x" in card.text
    assert "model-index" in (model / "README.md").read_text()
    assert "# A model\n" in card.text and "'model' and model" in card.text  # only the section on usage changes
    before = (model / "README.md").read_text()
    push_to_hub(model, "me/name", api=Client())
    assert (model / "README.md").read_text() == before


def test_metadata_that_the_hub_does_not_know(model):
    for given, message in (
        ({"license": "Apache 2.0"}, r"knows no license 'Apache 2\.0'; did you mean 'apache-2\.0'\?"),
        ({"language": "English"}, "'English' is no code of a language"),
        ({"base_model": "a b"}, "'a b' is not a valid repository name"),
    ):
        client = Client()
        with pytest.raises(UserError, match=message):
            push_to_hub(model, "name", api=client, **given)
        assert not client.calls
    assert check_metadata("mit", "en") == {"license": "mit", "language": "en"}
    assert check_metadata("other", ["zh-Hant", "multilingual"]) == {
        "license": "other",
        "language": ["zh-Hant", "multilingual"],
    }


def test_errors_are_one_line(model, tmp_path):
    with pytest.raises(UserError, match=r"not a model folder"):
        push_to_hub(tmp_path, "me/name", api=Client())
    with pytest.raises(UserError, match=r"'a/b/c' is not a valid repository name"):
        push_to_hub(model, "a/b/c", api=Client())
    with pytest.raises(UserError, match=r"401 no token\. The local model is complete.*acclimate push") as caught:
        push_to_hub(model, "me/name", api=Client(RuntimeError("401 no token.\nmore lines")))
    assert "\n" not in str(caught.value)


def test_from_the_command_line(tiny_bert, corpus, model, tmp_path, monkeypatch, capsys):  # noqa: F811
    import huggingface_hub

    clients = []

    def made(*args, **options):
        clients.append(Client())
        return clients[-1]

    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    basic = ["adapt", "--model", tiny_bert, "--corpus", corpus, "--steps", 1, "--batch-size", 4, "--max-length", 24]
    code, _, _ = call(monkeypatch, capsys, *basic, "--out", tmp_path / "a", "--quiet")
    assert code == 0 and not clients  # only on request
    code, out, _ = call(monkeypatch, capsys, *basic, "--out", tmp_path / "b", "--push-to-hub", "me/b", "--quiet")
    assert code == 0 and "https://hub/commit/1" in out
    assert clients[0].calls[0][1] == "me/b" and {"config.json", "model.safetensors", "README.md"} < {
        *clients[0].calls[1][1]
    }
    code, _, err = call(monkeypatch, capsys, *basic, "--out", tmp_path / "c", "--push-to-hub", "a b", "--quiet")
    assert code == 2 and "not a valid repository name" in err and not (tmp_path / "c").exists()
    code, out, err = call(
        monkeypatch, capsys, "push", model, "me/c", "--public", "--license", "mit", "--language", "en"
    )
    assert "does not name base model; push again with --base-model-name ..." in err
    assert code == 0 and clients[-1].calls[0] == ("create", "me/c", {"private": False, "exist_ok": True})
    assert "  config.json, 2 bytes" in err
