"""Uploading to the Hub, with a fake client and no network."""

from __future__ import annotations

from fnmatch import fnmatch
from types import SimpleNamespace

import pytest

from acclimate.cards import hub, push_to_hub
from acclimate.errors import UserError
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


def test_public_when_asked(model):
    client = Client()
    push_to_hub(model, "me/name", private=False, api=client)
    assert client.calls[0][2]["private"] is False


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
    code, out, _ = call(monkeypatch, capsys, "push", model, "me/c", "--public")
    assert code == 0 and clients[-1].calls[0] == ("create", "me/c", {"private": False, "exist_ok": True})
    assert clients[-1].calls[1][1]["ignore_patterns"] == hub.IGNORED_PATTERNS
