"""Regular expressions that mean the same on every Python that Acme supports."""

import re

from acmeweb.common.env import ROOT

POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")
SOURCES = ("acmeweb", "jobs", "failures", "scheduling", "client/acme_client")


def test_no_pattern_has_a_possessive_or_atomic_group():
    """Before 3.11.5 Python skips the characters that such a group had read when it failed."""
    files = [file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")]

    assert [str(file.relative_to(ROOT)) for file in files if POSSESSIVE_GROUP.search(file.read_text())] == []
