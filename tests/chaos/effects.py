"""Reads the cluster's own file about commands that it ran: `job_effects.jsonl`, one line per start and end.

The cluster writes the file before a change is confirmed, so it does not depend on Acme's records. The order of its
lines is the order of events. A cluster that was killed and restarted may repeat a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_NAME = "job_effects.jsonl"
ATTEMPT_KEY = re.compile(r"([0-9a-z]{11}(?:_\d+)?)\.\d+")  # <job id>.<number>; node tests have other keys


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A command started or ended on the cluster."""

    event: str  # "start" or "end"
    job_id: int  # the cluster's own id, never reused
    key: str  # <installation>:<attempt key>, or the attempt key alone
    exit_code: int | None = None
    signal: int | None = None
    at: float = 0.0

    @property
    def attempt(self) -> str:
        return self.key.rpartition(":")[2]

    @property
    def job(self) -> str:
        """The job's id, without installation and attempt number."""
        match = ATTEMPT_KEY.fullmatch(self.attempt)
        return match[1] if match else self.attempt

    @property
    def starts(self) -> bool:
        return self.event == "start"

    @property
    def succeeded(self) -> bool:
        return self.event == "end" and self.exit_code == 0 and not self.signal


def read_effects(path: Path) -> list[Effect]:
    """All effects written so far; none if the file does not exist."""
    if not path.exists():
        return []
    return list(distinct(parse(path.read_text())))


def parse(text: str) -> Iterator[Effect]:
    """Parse complete lines, because the last line may still be incomplete.

    A line that was cut off when the cluster was killed is repeated by its next server.
    """
    whole, _, _ = text.rpartition("\n")
    for line in whole.split("\n"):
        with suppress(json.JSONDecodeError):
            yield _effect(json.loads(line))


def _effect(row: Mapping[str, Any]) -> Effect:
    return Effect(
        event=row["event"],
        job_id=row["job_id"],
        key=row["key"],
        exit_code=row["exit_code"],
        signal=row["signal"],
        at=row["at"],
    )


def distinct(effects: Iterable[Effect]) -> Iterator[Effect]:
    """Each event of each cluster job once; the first line counts."""
    seen: set[tuple[int, str]] = set()
    for effect in effects:
        if effect.key and (effect.job_id, effect.event) not in seen:
            seen.add((effect.job_id, effect.event))
            yield effect
