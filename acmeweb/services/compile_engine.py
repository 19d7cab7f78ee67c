"""Compiles the hot modules of the engine to machine code:  python -m acmeweb.services.compile_engine

mypyc translates the typed sources that mypy checks to C, and the C compiler builds a library in the directory of this
Python (`.venv/acme-engine`). A build is stored under the checksum of its sources and only found there
(`scheduling.compiled`). It is moved to its place as a whole, after a test import. Acme also works without a build: then
the engine is interpreted, and one log line says why.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from acmeweb.common.env import ROOT
from scheduling.compiled import BUILDS, LIBRARY, MODULES, source_checksum

BUILD_SCRIPT = """
import sys
from setuptools import setup
from mypyc.build import mypycify
home, work, group, *files = sys.argv[1:]
alone = ["--no-site-packages", "--follow-imports=silent"]  # otherwise mypy reads NumPy for minutes
setup(
    name="acme-engine",
    packages=[],
    ext_modules=mypycify([*alone, *files], opt_level="1", debug_level="0", group_name=group, target_dir=work),
    script_args=["-q", "build_ext", "--build-lib", home, "--build-temp", work],
)
"""
IMPORT_CHECK_SCRIPT = "; ".join(
    (
        "import sys",
        "from scheduling import compiled",
        "sys.meta_path.insert(0, compiled.CompiledFinder(compiled.Path(sys.argv[1])))",
        "import scheduling.whatif.replay.run",
        "assert compiled.engine_mode() == 'compiled'",
    )
)


class EngineBuildError(Exception):
    """Why the build failed, in one sentence."""


def main(builds: Path = BUILDS) -> int:
    """Build the engine unless the build for the present sources exists; return the exit code."""
    home = builds / source_checksum()
    if home.is_dir():
        return 0
    try:
        _check_toolchain()
        with _build_lock(builds):
            if not home.is_dir():
                _build(home)
    except EngineBuildError as problem:
        print(f"The engine runs interpreted, which is slower. Reason: {problem}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _build_lock(builds: Path) -> Iterator[None]:
    """Hold a lock: two concurrent builds would do the same work. The kernel releases the lock of a dead process."""
    builds.mkdir(exist_ok=True)
    directory = os.open(builds, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _check_toolchain() -> None:
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler.split()[0]):
        raise EngineBuildError(
            f"C compiler {compiler.split()[0]} is not installed (on Debian and Ubuntu: apt install gcc)."
        )
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise EngineBuildError(
            "the C headers of this Python are missing (on Debian and Ubuntu: apt install python3-dev)."
        )
    if missing := [name for name in ("mypyc", "setuptools") if find_spec(name) is None]:
        raise EngineBuildError(f"{' and '.join(missing)} is not installed.")


def _build(home: Path) -> None:
    # Keep the newest of the other builds: a process that runs from it may still import a module of it
    for earlier in sorted(home.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-1]:
        shutil.rmtree(earlier, ignore_errors=True)
    files = [f"{name.replace('.', '/')}.py" for name in MODULES]
    with tempfile.TemporaryDirectory(dir=home.parent) as made:
        made_home, work = f"{made}/home", f"{made}/work"
        _run_python("-c", BUILD_SCRIPT, made_home, work, LIBRARY.removesuffix("__mypyc"), *files)
        _run_python("-c", IMPORT_CHECK_SCRIPT, made_home)
        if source_checksum() != home.name:
            raise EngineBuildError("the sources were edited during the build.")
        Path(made_home).rename(home)


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def _run_python(*words: str) -> None:
    # Its own cache: mypy may check the sources at the same time
    environment = {
        **os.environ,
        "ACME_COMPILED": "0",
        "MYPY_CACHE_DIR": str(BUILDS.with_name(f"{BUILDS.name}-mypy")),
        "PYTHONPATH": os.pathsep.join((str(ROOT), *_python_path())),
    }
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        output = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise EngineBuildError(f"the build failed with: {output[-1]}")


if __name__ == "__main__":
    os.closerange(3, 1024)  # setup.sh starts this in the background; the inherited descriptor would keep its lock
    sys.exit(main())
