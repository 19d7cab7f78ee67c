"""Text of users as a page or a terminal may show it: without characters that change how the rest is shown. Pure."""

from __future__ import annotations

import re

from jobs.core.masking import mask_text

ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\)?"  # OSC, DCS and the like: titles, links, clipboard
    r"|\x1b[ -/]*+[0-~]"
    r"|\x9b[0-?]*+[ -/]*+[@-~]"
)
# Newline and tab stay. Bidirectional overrides go too: they let a line read otherwise than it is.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def strip_control_characters(text: str) -> str:
    """Without terminal sequences; each remaining control character becomes a replacement character."""
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", ESCAPE_SEQUENCES.sub("", text.replace("\r\n", "\n")))


def single_line(text: str) -> str:
    """For names: newlines and tabs become blanks."""
    return strip_control_characters(text).replace("\n", " ").replace("\t", " ").strip()


def safe_display_text(text: str) -> str:
    """Cleaned and without secrets. Cleaned first: an escape sequence inside a secret's name must not hide it."""
    return mask_text(strip_control_characters(text))
