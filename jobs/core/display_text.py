"""Cleans user text for pages and terminals: removes escape sequences and control characters. Pure."""

from __future__ import annotations

import re

from jobs.core.masking import mask_text

ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"  # CSI: colors, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\)?"  # OSC, DCS and similar: titles, links, clipboard
    r"|\x1b[ -/]*+[0-~]"
    r"|\x9b[0-?]*+[ -/]*+[@-~]"
)
# Newline and tab stay. Bidirectional overrides are removed too: they change the order in which a line is displayed.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def strip_control_characters(text: str) -> str:
    """Return the text without terminal sequences. Each remaining control character becomes a replacement character."""
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", ESCAPE_SEQUENCES.sub("", text.replace("\r\n", "\n")))


def single_line(text: str) -> str:
    """Return a name on one line: newlines and tabs become spaces."""
    return strip_control_characters(text).replace("\n", " ").replace("\t", " ").strip()


def safe_display_text(text: str) -> str:
    """Return the text cleaned and with secrets masked. Cleaning comes first: an escape sequence inside the name of a
    secret must not hide it from the mask."""
    return mask_text(strip_control_characters(text))
