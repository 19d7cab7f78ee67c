"""Builds the engine's hot modules as machine code:  python -m acmeweb.services.compile_engine

mypyc makes C of the same typed sources that mypy checks, and the machine's C compiler makes a library of it, in the
directory of this Python (`.venv/acme-engine`). A build is kept under the checksum of its sources and looked for there
only (`scheduling.compiled`); it is put in place whole, after it was imported once. Whatever is missing, Acme works:
then the engine is interpreted, and one line says why.
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
alone = ["--no-site-packages", "--follow-imports=silent"]  # NumPy, which others import, takes minutes to read
setup(
    name="acme-engine",
    packages=[],
    ext_modules=mypycify([*alone, *files], opt_level="1", debug_level="0", group_name=group, target_dir=work),
    script_args=["-q", "build_ext", "--build-lib", home, "--build-temp", work],
)
"""
IMPORT_CHECK_SCRIPT = (
    "import sys; from scheduling import compiled; sys.meta_path.insert(0, compiled.Finder(compiled.Path(sys.argv[1])))"
)
IMPORT_CHECK_SCRIPT += "; import scheduling.replay.run; assert compiled.runs() == 'compiled'"


class EngineBuildError(Exception):
    """In a sentence."""


def main(builds: Path = BUILDS) -> int:
    home = builds / source_checksum()
    if home.is_dir():
        return 0
    try:
        _check_toolchain()
        with _build_lock(builds):
            if not home.is_dir():
                _build(home)
    except EngineBuildError as problem:
        print(f"The engine runs interpreted, which is slower: {problem}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _build_lock(builds: Path) -> Iterator[None]:
    """Two builds at once would do the same; whoever dies leaves the lock."""
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
            f"there is no C compiler {compiler.split()[0]} here (on Debian and Ubuntu: apt install gcc)."
        )
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise EngineBuildError(
            "this Python came without its C headers (on Debian and Ubuntu: apt install python3-dev)."
        )
    if missing := [name for name in ("mypyc", "setuptools") if find_spec(name) is None]:
        raise EngineBuildError(f"{' and '.join(missing)} is not installed.")


def _build(home: Path) -> None:
    # The newest of the others stays: who runs from it may import a module of it yet
    for earlier in sorted(home.parent.iterdir(), key=lambda one: one.stat().st_mtime)[:-1]:
        shutil.rmtree(earlier, ignore_errors=True)
    files = [f"{name.replace('.', '/')}.py" for name in MODULES]
    with tempfile.TemporaryDirectory(dir=home.parent) as made:
        made_home, work = f"{made}/home", f"{made}/work"
        _run_python("-c", BUILD_SCRIPT, made_home, work, LIBRARY.removesuffix("__mypyc"), *files)
        _run_python("-c", IMPORT_CHECK_SCRIPT, made_home)
        if source_checksum() != home.name:
            raise EngineBuildError("its sources were edited while it was built.")
        Path(made_home).rename(home)


def _given_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def _run_python(*words: str) -> None:
    environment = {**os.environ, "ACME_COMPILED": "0", "PYTHONPATH": os.pathsep.join((str(ROOT), *_given_path()))}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing was said"]
        raise EngineBuildError(f"the build failed with: {said[-1]}")


if __name__ == "__main__":
    os.closerange(3, 1024)  # whoever started this in the background may hold locks that must not live as long
    sys.exit(main())
