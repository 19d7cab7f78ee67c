"""The engine is importable where there is no Django: a client package will carry it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"django", "psycopg", "redis", "celery"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from failures.diagnosis import compress, engine, wording
print(engine.diagnose_text("KeyError: 'x'").root_cause)
"""


def test_engine_works_without_django() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "KeyError", done.stderr


def test_engine_uses_neither_clock_nor_randomness() -> None:
    for path in (ROOT / "failures" / "diagnosis").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not {"import time", "import random", "import socket", "datetime.now", "open("} & set(text.split("\n")), (
            path
        )
