#!/bin/sh
# Builds .venv: finds a Python, then installs exactly what the lock files name. Nothing outside the checkout changes.
# Can be called at any time: a finished set-up is recognized in a few milliseconds, an interrupted one starts again.
set -eu
cd "$(dirname "$0")/../.."
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV CONDA_PREFIX || true

NEEDED_KB=1572864
STAMP=.venv/acme-stamp

fail() {
    echo "$1" >&2
    exit 1
}

say() {
    echo "set-up: $1" >&2
}

# What a finished .venv was made from. The directory is part of it, because the scripts in .venv name it.
inputs() {
    cat requirements-uv.lock requirements-dev.lock client/pyproject.toml acmeweb/services/setup.sh | cksum
    echo "$PWD"
    "$1" -I -S -c 'import sys; print(sys.version)' 2>/dev/null
}

# A shim that exists but does not run (an unset pyenv version, a store alias) fails and is skipped.
runs() {
    "$1" -I -S -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        runs "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python 3.11, 3.12, 3.13 or 3.14."
        command -v "$PYTHON"
        return
    fi
    for name in python3.13 python3.12 python3.11 python3 python3.14; do
        if runs "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "Acme needs Python 3.11 or newer (up to 3.14), and none was found on the PATH. Install one or set PYTHON=/path/to/python3."
}

finished() {
    [ -f "$STAMP" ] && [ "$(inputs .venv/bin/python)" = "$(cat "$STAMP")" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version .venv/bin/python)" = "$(version "$PYTHON")" ]
}

version() {
    "$1" -I -S -c 'import sys; print(sys.version)' 2>/dev/null || true
}

check_python() {
    "$1" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        fail "$1 cannot make virtual environments: its modules venv and ensurepip are missing (on Debian and Ubuntu: apt install python3-venv)."
}

check_disk() {
    free=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$NEEDED_KB" ] ||
        fail "Acme needs 1.5 GiB of free disk for its packages, and $PWD has $((free / 1024)) MiB."
}

# The lock is on the directory itself and dies with the last process of this set-up, so no stale lock can exist.
alone() {
    exec "$1" -I -S -c '
import fcntl, os, sys
directory = os.open(".", os.O_RDONLY)
os.set_inheritable(directory, True)
try:
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("set-up: waiting for another set-up of this directory", file=sys.stderr)
    fcntl.flock(directory, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks; do not run two set-ups at once there
os.execv("/bin/sh", ["sh", "acmeweb/services/setup.sh", "locked"])
'
}

make_venv() {
    # Without a stamp the last attempt was interrupted, and an installer may take a partial package for a complete one.
    if [ ! -f "$STAMP" ] || [ "$(version .venv/bin/python)" != "$(version "$1")" ]; then
        rm -rf .venv
    fi
    rm -f "$STAMP"
    if [ ! -d .venv ]; then
        say "making .venv with $("$1" --version)"
        "$1" -m venv .venv || fail "$1 could not make a virtual environment in $PWD/.venv."
    fi
}

# Trust the machine's own certificates if it has any: a company's package index is often signed by them.
trust_the_machine() {
    for store in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
        if [ -r "$store" ]; then
            export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
        fi
    done
}

install() {
    export UV_PYTHON_DOWNLOADS=never UV_PYTHON="$PWD/.venv/bin/python"
    trust_the_machine
    [ -w "${HOME:-/nonexistent}" ] || export UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1
    PIP_USER=0 .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes -r requirements-uv.lock || no_packages
    say "installing $(grep -c == requirements-dev.lock) packages"
    # Compile now: a dozen processes start from these files, and some environments do not let them write.
    .venv/bin/uv pip sync --quiet --compile-bytecode --require-hashes requirements-dev.lock || no_packages
    .venv/bin/uv pip install --quiet --no-deps --no-build-isolation -e client || no_packages
}

no_packages() {
    check_disk
    fail "Packages could not be installed (see the reason above). Check that the package index is reachable, then run the command again."
}

if [ "${1:-}" != locked ]; then
    finished && exit 0
    python=$(find_python)
    PYTHON=$python
    export PYTHON
    alone "$python"
fi

finished && exit 0
check_python "$PYTHON"
check_disk
make_venv "$PYTHON"
install
inputs .venv/bin/python >"$STAMP.new"
mv "$STAMP.new" "$STAMP"
say "done"
# Takes half a minute of a core in the background. Processes that start meanwhile interpret the engine, as they do
# without a C compiler; the log then has the reason.
nice .venv/bin/python -m acmeweb.services.compile_engine >.venv/acme-engine.log 2>&1 </dev/null &
