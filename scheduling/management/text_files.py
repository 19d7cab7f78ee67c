"""Text files that commands read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from django.core.management.base import CommandError


@contextmanager
def open_text(path: str, option: str = "") -> Iterator[TextIO]:
    """Open a file. Every error of reading ends the command with one sentence that names the option and the file."""
    name = f"{option}: {path}" if option else path
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            yield lines
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}.") from error
    except UnicodeError as error:
        raise CommandError(f"{name} is not a text file in UTF-8.") from error
