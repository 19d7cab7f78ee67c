"""The tables of the diagnosis, ready to be used:  python -m failures.diagnosis.tables

`make up` and the build of the image run this, which compiles the patterns into files of the virtual environment. The
parent of the workers calls `load_tables` before it forks: its children share the memory, and no task compiles within
its time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import catalogue, compiled_patterns, filters
from .scan import shipped_scanner, stored_scanner
from .table import SIGNATURES


def load_tables() -> None:
    """Load the shipped signatures and filters into this process: some milliseconds, or seconds without the files."""
    _ = shipped_scanner().unless
    filters.filter_scanner(filters.SHIPPED_FILTERS)
    catalogue.xid_codes()


def compile_tables(places: Sequence[Path]) -> None:
    """Compile the shipped signatures and filters into files, unless they exist there."""
    stored_scanner(SIGNATURES, places)
    stored_scanner(filters.as_signatures(filters.SHIPPED_FILTERS), places)


if __name__ == "__main__":
    compile_tables(compiled_patterns.directories()[:1])
