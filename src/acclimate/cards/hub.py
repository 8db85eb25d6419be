"""Uploading a model folder to the Hugging Face Hub, with the license and languages that its card needs there."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError, first_line
from acclimate.base.files import MANIFEST_FILE, RECORD_FILE, recorded_files, write_text
from acclimate.base.options import verb
from acclimate.base.progress import print_message
from acclimate.base.terminal import echo
from acclimate.base.verbs import Next
from acclimate.base.version import __version__
from acclimate.cards.card import CARD_FILE, USAGE, format_bytes, read_metadata
from acclimate.cards.options import PushOptions

log = logging.getLogger(__name__)

IGNORED_PATTERNS = ["acclimate.json", "run.json", "predictions.jsonl", "step-*/*", "carried.*", ".*"]
"""Files that are not uploaded: records with local paths, predictions on test items, intermediate checkpoints, and
state for later adaptations, which may hold training texts."""
LICENSES = frozenset(
    """apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
    bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0
    cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0
    cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
    cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0
    gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl
    apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl
    lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3
    llama4 grok2-community gemma unknown other""".split()
)
"""License identifiers of the Hub: https://huggingface.co/docs/hub/repositories-licenses."""
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual|code")
"""A language of a card: its code in ISO 639, perhaps with script or region."""


@verb(PushOptions)
def push(options: PushOptions) -> str:
    """Upload a model with its card to the Hugging Face Hub; see :func:`push_to_hub`.

    Returns:
        The URL of the commit.

    Raises:
        UserError: If the folder has no model, a name, license or language is invalid, or the upload fails.
    """
    return push_to_hub(
        options.folder,
        options.repo,
        private=not options.public,
        license=options.license,
        language=options.language,
        base_model=options.base_model_name,
    )


def show_upload(url: str, options: PushOptions) -> Iterator[Any]:
    """Yield what ``acclimate push`` prints."""
    yield url
    if missing := missing_metadata(options.folder):
        flags = " ".join(f"--{name.replace('_model', '-model-name')} ..." for name in missing)
        names = ", ".join(missing).replace("_", " ")
        echo(f"The card does not name {names}; push again with {flags}", err=True)
    if (Path(options.folder) / RECORD_FILE).is_file():
        use = ["predict", "--model", options.repo, "--data", "DATA", "--out", "predictions.csv"]
    else:
        use = ["finetune", "--model", options.repo, "--task", "TASK", "--out", "finetuned"]
    yield Next(use, "on any machine")


def push_to_hub(
    folder: str | Path,
    repo: str,
    *,
    private: bool = True,
    license: str | None = None,
    language: Sequence[str] = (),
    base_model: str | None = None,
    api: Any = None,
    progress: bool = True,
) -> str:
    """Upload a model folder to a repository of the Hub, creating the repository if necessary.

    It is only called when the user explicitly asks for an upload. The card in the folder gets the metadata that is
    given, and loads the model by its name on the Hub. Scores on benchmarks of the Hub are uploaded as evaluation
    results, too; see :func:`evaluation_files`.

    Args:
        folder: A model folder written by ``adapt``, ``pretrain``, ``finetune``, ``distill`` or a study.
        repo: ``USER/NAME``, or ``NAME`` under the account of the user.
        private: Create a new repository as private. The visibility of an existing repository does not change.
        license: License of the model, such as ``"apache-2.0"``; by default the base model's, if it is known.
        language: Languages of the model, such as ``["en"]``; by default the base model's.
        base_model: Hub name of the base model, where the folder does not tell.
        api: A ``huggingface_hub.HfApi``; by default one with the token stored on this machine.
        progress: List the files on stderr before they are uploaded.

    Returns:
        The URL of the commit.

    Raises:
        UserError: If the folder has no model, a name, license or language is invalid, or the upload fails.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"'{folder}' is not a model folder: config.json is missing.")
    check_repo_name(repo)
    given = check_metadata(license, language, base_model)
    listed = written_files(folder)
    client = HfApi() if api is None else api
    try:
        created = client.create_repo(repo, private=private, exist_ok=True)
        name = str(getattr(created, "repo_id", repo))
        _update_card(folder, name, given)
        names = sorted(file for file in listed if (folder / file).is_file() and not _is_ignored(file))
        files: dict[str, str | bytes] = {file: str(folder / file) for file in names} | evaluation_files(folder, client)
        sizes = {file: len(x) if isinstance(x, bytes) else Path(x).stat().st_size for file, x in files.items()}
        print_message(f"Uploading to '{name}' ({format_bytes(sum(sizes.values()))}):", enabled=progress)
        for file, size in sizes.items():
            print_message(f"  {file}, {format_bytes(size)}", enabled=progress)
        commit = client.create_commit(
            repo_id=name,
            operations=[CommitOperationAdd(file, content) for file, content in files.items()],
            commit_message="Upload model and card with acclimate",
        )
    except Exception as error:  # the client raises many classes for network and permission errors
        raise UserError(
            f"Could not upload '{folder}' to the Hub as '{repo}': {first_line(error).rstrip('.')}. The local model is "
            f"complete; fix the problem ('hf auth login' gives access), then run: acclimate push {folder} {repo}"
        ) from error
    kept = sorted(name for name in _files(folder) if name not in listed and not _is_ignored(name))
    if kept:
        log.warning(
            "Not uploaded, as acclimate did not write them in '%s': %s. Upload them with 'hf upload'.",
            folder,
            ", ".join(kept[:10]) + (f" and {len(kept) - 10:,} more" if len(kept) > 10 else ""),
        )
    return str(getattr(commit, "commit_url", None) or commit)


def written_files(folder: Path) -> set[str]:
    """Return the names of the files of a model folder that may be uploaded: the card, and what its manifest lists.

    Without a manifest, that is the files that decide what the model computes.

    Raises:
        UserError: If the manifest is damaged.
    """
    manifest = next((name for name in (MANIFEST_FILE, RECORD_FILE) if (folder / name).is_file()), None)
    if manifest is None:
        from acclimate.models.checkpoints import model_files  # takes seconds

        names = {file.relative_to(folder).as_posix() for file in model_files(folder)}
    else:
        names = set(recorded_files(folder, manifest, "make the model again"))
    return names | {CARD_FILE}


def evaluation_files(folder: Path, client: Any) -> dict[str, bytes]:
    """Return the evaluation results for the Hub, as YAML by name of the file; it shows them with the benchmark.

    The Hub takes one score for each task of a dataset that is a benchmark, which has ``eval.yaml``. The scores are
    those of ``model-index`` in the card, the first metric of each dataset: https://huggingface.co/docs/hub/eval-results

    Args:
        folder: The model folder.
        client: A ``huggingface_hub.HfApi``, which downloads ``eval.yaml``.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    found: dict[str, list[EvalResultEntry]] = {}
    index = read_metadata(folder / CARD_FILE).get("model-index") or [{}]
    for result in index[0].get("results") or ():
        dataset, metric = result["dataset"], result["metrics"][0]
        name, place = str(dataset["type"]), f".eval_results/{Path(dataset['type']).name}.yaml"
        if "/" not in name or place in found:
            continue
        wanted = dataset.get("config") or "default", dataset.get("split", "test")
        try:
            about = yaml.safe_load(Path(client.hf_hub_download(name, "eval.yaml", repo_type="dataset")).read_text())
            tasks = [str(task["id"]) for task in about["tasks"] if (task.get("config"), task.get("split")) == wanted]
        except Exception as error:  # the client raises many classes; most datasets are no benchmarks, and files differ
            log.info("'%s' has no eval.yaml that can be read: %s", name, first_line(error))
            continue
        notes = f"{metric['name']}, measured with acclimate {__version__}"
        found[place] = [EvalResultEntry(name, task, metric["value"], notes=notes) for task in tasks[:1]]
    return {
        place: yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False).encode()
        for place, entries in found.items()
        if entries
    }


def _files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()]


def _is_ignored(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in IGNORED_PATTERNS)


def _update_card(folder: Path, repo: str, given: Mapping[str, Any]) -> None:
    """Set metadata of the card, and load the model by its name on the Hub in the section on usage."""
    from huggingface_hub import metadata_save

    file = folder / CARD_FILE
    if given:
        metadata_save(file, {**read_metadata(file), **given})
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        start, usage, rest = text.partition(f"{USAGE}\n")
        usage_text, heading, after = rest.partition("\n## ")
        if loaded := re.search(r"from_pretrained\('([^']+)'", usage_text):
            usage_text = re.sub(rf"(?<=['\s]){re.escape(loaded[1])}(?=['\s])", repo, usage_text)
        write_text(file, start + usage + usage_text + heading + after)


def missing_metadata(folder: str | Path) -> list[str]:
    """Return which of license, language and base model the card of a folder does not name."""
    found = read_metadata(Path(folder) / CARD_FILE)
    return [name for name in ("license", "language", "base_model") if not found.get(name)]


def check_repo_name(repo: str) -> None:
    """Validate the name of a repository before training starts.

    Raises:
        UserError: If the name is invalid.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"'{repo}' is not a valid repository name: {first_line(error).rstrip('.')}.") from error


def check_metadata(
    license: str | None = None, language: str | Sequence[str] = (), base_model: str | None = None
) -> dict[str, Any]:
    """Return metadata that the user gives for a card.

    Args:
        license: Identifier of a license.
        language: Codes of languages.
        base_model: Hub name of the base model.

    Raises:
        UserError: If the Hub knows no such license, or a language or name is not one.
    """
    if license is not None and license not in LICENSES:
        near = get_close_matches(license.lower().replace(" ", "-"), sorted(LICENSES), 1, 0.5)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UserError(
            f"The Hub knows no license '{license}'; {hint}Give an identifier such as apache-2.0, or other."
        )
    codes = [language] if isinstance(language, str) else list(language)
    for code in codes:
        if not LANGUAGE.fullmatch(code):
            raise UserError(f"'{code}' is no code of a language; give one of ISO 639 such as en, or multilingual.")
    if base_model is not None:
        check_repo_name(base_model)
    given = {"license": license, "language": codes[0] if len(codes) == 1 else codes, "base_model": base_model}
    return {name: value for name, value in given.items() if value}
