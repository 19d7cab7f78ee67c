"""The runtime's lock file is sufficient for every process: no module needs packages of tests or tools."""

import os
import subprocess
import sys

from acmeweb.common.env import ROOT
from tests.patience import PATIENCE_S

# Modules whose distribution is not in requirements.lock are treated as not installed.
CHILD = """
import importlib.metadata, re, sys
def plain(name): return re.sub(r"[-_.]+", "-", name.lower())
locked = {plain(line.split("==")[0]) for line in open("requirements.lock") if "==" in line}
outside = {top for top, dists in importlib.metadata.packages_distributions().items()
           if dists and not {plain(d) for d in dists} & locked}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in outside:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
for name in sys.argv[1:]:
    __import__(name)
"""
PROCESSES = (
    *("acmeweb.asgi", "acmeweb.celery", "scheduling.whatif.tasks", "scheduling.simulation.slurm.server"),
    *("celery.bin.celery", "celery.apps.worker", "kombu.transport.redis", "channels_redis.pubsub"),
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto", "psycopg_pool"),
)


def test_runtime_lock_names_every_imported_package():
    environment = {**os.environ, "SECRET_KEY": "x" * 60}
    words = [sys.executable, "-c", CHILD, *PROCESSES]

    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 0, done.stderr[-1500:]
