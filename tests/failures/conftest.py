"""Compiles the rules once per process. Property tests have no deadline, because the machine may be busy."""

from __future__ import annotations

import pytest
from hypothesis import settings

from failures.diagnosis import scan

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session", autouse=True)
def compiled_rules() -> scan.Scanner:
    return scan.shipped_scanner()
