"""Uploading to the Hub, with a fake client and no network."""

from __future__ import annotations

from fnmatch import fnmatch
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects

from acclimate.base.errors import UserError
from acclimate.base.files import record_files
from acclimate.cards import hub
from acclimate.cards.hub import check_metadata, push_to_hub
from tests.cases import each
from tests.test_cli import call, corpus  # noqa: F401  (a fixture)


class Client:
    """Records its calls."""

    def __init__(self, error=None):
        self.calls, self.error = [], error

    def create_repo(self, repo, **options):
        if self.error:
            raise self.error
        self.calls.append(("create", repo, options))
        return SimpleNamespace(repo_id=f"me/{repo}" if "/" not in repo else repo)

    def upload_folder(self, **options):
        self.calls.append(("upload", options))
        return SimpleNamespace(commit_url="https://hub/commit/1")


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_a_new_repository_is_private_and_gets_the_folder(model):
    client = Client()
    assert push_to_hub(model, "name", api=client) == "https://hub/commit/1"
    (_, name, options), (_, upload) = client.calls
    assert name == "name" and options == {"private": True, "exist_ok": True}
    assert upload["repo_id"] == "me/name" and upload["folder_path"] == str(model)

    def is_ignored(file):
        return any(fnmatch(file, pattern) for pattern in upload["ignore_patterns"])

    uploaded = ["config.json", "model.safetensors", "README.md", "tokenizer.json", "log.jsonl", "importance.json"]
    assert not any(map(is_ignored, uploaded))
    assert all(
        map(is_ignored, ["acclimate.json", "predictions.jsonl", "run.json", "step-000100/config.json", ".hidden"])
    )


@each("manifest", ["acclimate.json", "run.json", None])
def test_only_what_was_written_is_uploaded_and_the_rest_is_named(tmp_path, caplog, manifest):
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    written = ["README.md", "config.json", "model.safetensors", "1_Pooling/config.json", "modules.json"]
    for name in written:
        (model / name).write_text("{}")
    (model / "modules.json").write_text('[{"path": "1_Pooling"}]')
    if manifest is not None:
        (model / manifest).write_text("{}")
        record_files(model, manifest)
    others = ["credentials", "train-copy.jsonl", "1_Pooling/notes.md", "[a].py"]
    for name in others:
        (model / name).write_text("secret")
    client = Client()
    push_to_hub(model, "name", api=client)
    upload = client.calls[1][1]
    files = [file.relative_to(model).as_posix() for file in model.rglob("*") if file.is_file()]
    patterns = {name: upload[name] for name in ("allow_patterns", "ignore_patterns")}
    assert sorted(filter_repo_objects(files, **patterns)) == sorted(written)
    assert ", ".join(sorted(others)) in caplog.text


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
    assert clients[0].calls[0][1] == "me/b" and clients[0].calls[1][1]["folder_path"] == str(tmp_path / "b")
    code, _, err = call(monkeypatch, capsys, *basic, "--out", tmp_path / "c", "--push-to-hub", "a b", "--quiet")
    assert code == 2 and "not a valid repository name" in err and not (tmp_path / "c").exists()
    code, out, err = call(
        monkeypatch, capsys, "push", model, "me/c", "--public", "--license", "mit", "--language", "en"
    )
    assert "does not name base model; push again with --base-model-name ..." in err
    assert code == 0 and clients[-1].calls[0] == ("create", "me/c", {"private": False, "exist_ok": True})
    assert clients[-1].calls[1][1]["ignore_patterns"] == hub.IGNORED_PATTERNS
