#!/usr/bin/env bash
# Create .venv in the checkout and install acclimate[dev] in it, in the versions of constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "acclimate needs Python 3.11 or newer; choose one with PYTHON=... make setup." >&2
    exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
pip=(.venv/bin/python -m pip install --quiet)
# torch first: if a CPU build is available, later packages keep it instead of pulling in another one.
"${pip[@]}" "$(grep '^torch==' constraints.txt)"
"${pip[@]}" --constraint constraints.txt --editable '.[dev]'
touch .venv/.installed
