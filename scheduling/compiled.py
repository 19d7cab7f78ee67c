"""The engine's hot modules as machine code, where `acmeweb.services.compile_engine` built them of these very sources.

The .py files stay the truth: a build is found by a checksum of them, so one edited line and everything is interpreted
again, at once and as it stands. Nothing lies beside the sources that could be imported instead of them.
`ACME_COMPILED=0` leaves a build alone.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from acmeweb.common.env import ROOT, EnvReader

TURNS = ("strict", "skipping", "sharing", "easy", "preempting", "claiming", "ahead", "plan", "conservative")
# Those that need NumPy stay as they are: they inherit from one of these
POLICIES = (
    *("fifo", "sjf", "srtf", "qssf", "tiresias", "themis"),
    *("easy", "conservative", "fair", "drf", "acme"),
)
STATE_MODULES = ("line", "room", "engine", "placement", "rules", "predicting", "live", "explain")
MODULES = (
    *(f"scheduling.engine.{name}" for name in STATE_MODULES),
    *(f"scheduling.engine.turns.{name}" for name in TURNS),
    *(f"scheduling.engine.policies.{name}" for name in POLICIES),
    "scheduling.replay.kernel",
)
LIBRARY = "acme_engine__mypyc"  # what all of them are linked into
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
BUILDS = Path(sys.prefix) / "acme-engine"


def source_checksum(root: Path = ROOT) -> str:
    """Of the modules, and of all beside them that they take types from."""
    sources = [*root.glob("scheduling/engine/**/*.py"), root / "scheduling/replay/kernel.py"]
    whole = hashlib.sha256(SUFFIX.encode())
    for source in sorted(sources):
        whole.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return whole.hexdigest()[:20]


class CompiledFinder(MetaPathFinder):
    def __init__(self, home: Path) -> None:
        self.home = home

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != LIBRARY and fullname not in MODULES:
            return None
        file = self.home / (fullname.replace(".", "/") + SUFFIX)
        return spec_from_file_location(fullname, file) if file.exists() else None


def prefer_compiled() -> None:
    """From now on what was built is imported instead of its source, if it was built of it."""
    if EnvReader(os.environ).flag("ACME_COMPILED", default=True) and (home := BUILDS / source_checksum()).is_dir():
        sys.meta_path.insert(0, CompiledFinder(home))


def engine_mode() -> str:
    """What this process has imported."""
    engine = sys.modules.get("scheduling.engine.engine")
    return "compiled" if str(getattr(engine, "__file__", "")).endswith(SUFFIX) else "interpreted"
