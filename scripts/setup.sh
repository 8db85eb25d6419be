#!/usr/bin/env bash
# Make .venv beside the project and install acclimate[dev] in it, in the versions of constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "acclimate needs Python 3.11 or newer; name one with PYTHON=... make setup." >&2
    exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
pip=(.venv/bin/python -m pip install --quiet)
# torch first: where a build for the CPU is offered, later packages find it and pull in no other.
"${pip[@]}" "$(grep '^torch==' constraints.txt)"
"${pip[@]}" --constraint constraints.txt --editable '.[dev]'
touch .venv/.installed
