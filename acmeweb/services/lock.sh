#!/bin/sh
# Locks the versions and hashes of all requirements of pyproject.toml. Existing pins stay, so that a new package changes
# nothing else; `make lock UPGRADE=1` upgrades all of them.
set -eu
cd "$(dirname "$0")/../.."

compile() {
    out=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links ${UPGRADE:+--upgrade} -o "$out" "$@" >/dev/null
    echo "$out: $(grep -c == "$out") packages"
}

compile requirements.lock pyproject.toml
# all of our extras, none of the client's: torch is gigabytes, and comes from the trainer's own environment
extras="--extra embedded --extra traces --extra exact --extra plots --extra prediction --extra dev"
compile requirements-dev.lock $extras pyproject.toml client/pyproject.toml
echo uv | compile requirements-uv.lock -
# for the image, where the engine is compiled without the other development packages
sed -n 's/^ *"\(mypy\[mypyc\].*\)",/\1/p' pyproject.toml | compile requirements-compile.lock -c requirements-dev.lock -
