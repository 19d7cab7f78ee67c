"""Import the engine's hot modules as machine code if `acmeweb.services.compile_engine` built them from these sources.

The .py files remain authoritative. A build is found by a checksum of them, so after any edit everything is interpreted
again until the next build. No build files lie beside the sources, so none can be imported by accident.
`ACME_COMPILED=0` disables builds.
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

TURNS = (
    *("strict", "skipping", "sharing", "easy", "preempting", "claiming", "rank_claims", "settling"),
    *("timeline", "exact_timeline", "gpu_only_timeline", "plan", "conservative"),
)
# Policies that need NumPy are not compiled; they inherit from one of these
POLICIES = (
    *("fifo", "sjf", "qssf", "srtf_predicted", "tiresias", "las_aware"),
    *("easy", "conservative", "fair", "drf", "edf", "acme"),
)
RESEARCH = (
    *("queue.srtf", "queue.themis"),
    *("packing.engine", "packing.lucid", "packing.gandiva", "packing.antman", "packing.salus"),
)
STATE = ("running_jobs", "borrowers", "maintenance", "preemption_costs", "turn_memory")
CORE = ("job", "job_queue", "resources", "engine", "placement", "predicting", "live", "explain")
MODULES = (
    *(f"scheduling.engine.{name}" for name in CORE),
    *(f"scheduling.engine.state.{name}" for name in STATE),
    *(f"scheduling.engine.turns.{name}" for name in TURNS),
    *(f"scheduling.engine.policies.{name}" for name in POLICIES),
    *(f"scheduling.research.{name}" for name in RESEARCH),
    "scheduling.event_queue",
    "scheduling.whatif.replay.kernel",
    "scheduling.whatif.replay.sharing_profiles",
)
LIBRARY = "acme_engine__mypyc"  # the shared library that all compiled modules are linked into
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
BUILDS = Path(sys.prefix) / "acme-engine"


def source_checksum(root: Path = ROOT) -> str:
    """The checksum of the compiled modules and of all files in the engine, whose types they use."""
    compiled = (root / f"{name.replace('.', '/')}.py" for name in MODULES)
    sources = {*root.glob("scheduling/engine/**/*.py"), *compiled}
    checksum = hashlib.sha256(SUFFIX.encode())
    for source in sorted(sources):
        checksum.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return checksum.hexdigest()[:20]


class CompiledFinder(MetaPathFinder):
    """Finds compiled modules in a build directory."""

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
    """Import compiled modules from now on, if a build of exactly these sources exists."""
    if EnvReader(os.environ).flag("ACME_COMPILED", default=True) and (home := BUILDS / source_checksum()).is_dir():
        sys.meta_path.insert(0, CompiledFinder(home))


def engine_mode() -> str:
    """Whether this process has imported the compiled or the interpreted engine."""
    engine = sys.modules.get("scheduling.engine.engine")
    return "compiled" if str(getattr(engine, "__file__", "")).endswith(SUFFIX) else "interpreted"
