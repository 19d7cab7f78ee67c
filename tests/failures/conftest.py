"""Compiles the rules once per process."""

from __future__ import annotations

import pytest

from failures.diagnosis import scan


@pytest.fixture(scope="session", autouse=True)
def compiled_rules() -> scan.Scanner:
    return scan.shipped_scanner()
