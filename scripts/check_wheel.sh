#!/usr/bin/env bash
# Build the sdist and the wheel, install each with pip, and use them outside of the checkout.
#
#   scripts/check_wheel.sh           # with the packages of .venv, about a minute
#   scripts/check_wheel.sh --fresh   # in environments with nothing but the package and what it requires, and the demo
set -euo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
python="${PYTHON:-$root/.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export HF_HUB_OFFLINE=1 ACCLIMATE_CACHE="$work/cache"

"$python" -m build --outdir "$work/dist" . >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
wheel="$(echo "$work"/dist/*.whl)" sdist="$(echo "$work"/dist/*.tar.gz)"
"$python" - "$root" "$sdist" "$wheel" <<'PYTHON'
import subprocess, sys, tarfile, zipfile

root, sdist, wheel = sys.argv[1:]
command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"]
listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
names = {name.removeprefix("src/") for name in listed.stdout.split()}
tracked = {name for name in names if not name.rpartition("/")[2].startswith("test_")}
assert len(names - tracked) > 40  # tests of papers, which neither the wheel nor the sdist has
with zipfile.ZipFile(wheel) as packed:
    files = {name: packed.read(name) for name in packed.namelist() if "dist-info/" not in name}
with tarfile.open(sdist) as packed:
    members = [member for member in packed if member.isfile()]
    source = {member.name.partition("/")[2]: packed.extractfile(member).read() for member in members}
assert set(files) == tracked, set(files) ^ tracked
assert {f"src/{name}" for name in tracked} <= set(source)
assert {"README.md", "LICENSE", "pyproject.toml", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"} <= set(source)
assert not [name for name in source if name.startswith(("tests/", "docs/", "benchmarks/")) or "/test_" in name]
paths = [name for name, text in {**source, **files}.items() if root.encode() in text]
assert not paths, f"a path of this machine: {paths}"
PYTHON

purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
install() {  # ENVIRONMENT PACKAGE [OPTION]
    "$python" -m venv --without-pip "$1"
    local pip=("$python" -m pip --python "$1/bin/python" install --quiet --constraint constraints.txt)
    if [ "${3:-}" = --fresh ]; then
        "${pip[@]}" "$(grep '^torch==' constraints.txt)"  # first, so that a CPU build is kept if there is one
        "${pip[@]}" "$2[demo]"
        "$1/bin/python" -c 'import pytest' 2>/dev/null && { echo "The environment has packages for developers."; exit 1; }
        return 0
    fi
    "${pip[@]}" --no-deps "$2"
    # The packages of .venv come after the package. The installation of the checkout is not among them, because .pth
    # files are only read in the folders of the environment itself.
    "$python" -c "$purelib" >"$("$1/bin/python" -c "$purelib")/others.pth"
}
install "$work/env" "$wheel" "${1:-}"
install "$work/env-of-sdist" "$sdist"  # its requirements are those of the wheel

mkdir "$work/use"
cd "$work/use"
PATH="$work/env/bin:$PATH"
python - "$work/env" <<'PYTHON'
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import acclimate

assert Path(acclimate.__file__).is_relative_to(sys.argv[1]), acclimate.__file__
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the soup was cold good waiter kind slow fresh wine".split()]
words += [str(number) for number in range(60)]
tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), words, strict=False))
transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained("tiny")
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=128, **sizes)
transformers.BertForMaskedLM(config).save_pretrained("tiny")
texts = [f"the {word} was {other} {number}" for number, (word, other) in
         enumerate([("soup", "cold"), ("waiter", "kind"), ("wine", "good")] * 20)]
Path("reviews.txt").write_text("\n".join(texts))
rows = [f"{text},{'bad' if 'cold' in text else 'good'}" for text in texts]
Path("reviews.csv").write_text("\n".join(["review,sentiment", *rows]))
PYTHON
acclimate --version
acclimate demo --help >/dev/null
acclimate adapt --model tiny --corpus reviews.txt --steps 2 --batch-size 4 --max-length 16 --out adapted --quiet
test -s adapted/model.safetensors -a -s adapted/README.md
acclimate compare --model tiny --corpus reviews.txt --task reviews.csv --tokens 200 --seeds 1 \
    --set finetune.epochs=1 --out study --quiet
test -s study/report.html
(cd "$("$work/env-of-sdist/bin/python" -c "$purelib")" && find acclimate -type f -not -name '*.pyc' | sort) >"$work/sdist.txt"
(cd "$("$work/env/bin/python" -c "$purelib")" && find acclimate -type f -not -name '*.pyc' | sort) | diff - "$work/sdist.txt"
if [ "${1:-}" = --fresh ]; then
    acclimate demo --seeds 1 --out demo --quiet
    test -s demo/report.html
fi
echo "The wheel and the sdist work."
