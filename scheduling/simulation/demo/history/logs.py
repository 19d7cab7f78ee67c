"""The logs of a simulated history, which the simulated cluster stores where its jobs write theirs.

Older logs are not stored, as on a cluster that deletes old files; the log's page then says that there is no file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.cluster_kinds import KUBERNETES
from jobs.core.lifecycle import State
from scheduling.simulation.client import SimulatorError
from scheduling.simulation.demo.history.rows import HistoryBuilder
from scheduling.simulation.demo.history.values import PlacedAttempt

log = logging.getLogger(__name__)

ALL_LOGS_S, IMPORTANT_LOGS_S = (
    2 * 86_400.0,
    7 * 86_400.0,
)  # how long logs are stored: all, and of failures and trainings
BATCH_CHARACTERS = 500_000

StoreLogs = Callable[[Mapping[str, str]], None]  # raises SimulatorError


def store_history_logs(builder: HistoryBuilder, store: StoreLogs) -> int:
    """Store the logs in batches, until the cluster refuses one. Return the number of stored logs."""
    batch: dict[str, str] = {}
    size = stored = 0
    try:
        for path, text in log_texts(builder):
            batch[path] = text
            size += len(text)
            if size > BATCH_CHARACTERS:
                store(batch)
                stored, size, batch = stored + len(batch), 0, {}
        if batch:
            store(batch)
    except SimulatorError as error:
        log.warning("The logs of the history are incomplete. %s", error)
        return stored
    return stored + len(batch)


def log_texts(builder: HistoryBuilder) -> Iterator[tuple[str, str]]:
    """Yield path and text of each log that is young enough."""
    for placed in builder.placed:
        age_s = builder.end_s - placed.ended
        is_important = placed.row.state in (State.FAILED, State.NODE_FAIL) or placed.work.kind in TRAINING_KINDS
        if placed.row.log_path and age_s <= (IMPORTANT_LOGS_S if is_important else ALL_LOGS_S):
            yield placed.row.log_path, _log_text(builder, placed)


def _log_text(builder: HistoryBuilder, placed: PlacedAttempt) -> str:
    if (known := builder.failure_logs.get(placed.row.key)) is not None:
        return known
    if placed.row.state == State.COMPLETED and (known := builder.campaigns.logs.get(placed.work.name)) is not None:
        return known + (
            "acme: end of the log of 1 pod: COMPLETED\n" if builder.place.cluster.kind is KUBERNETES else ""
        )
    text = builder.history.logs.end_log(placed.work, placed.life, placed.ended, State(placed.row.state))
    return builder.with_name_of_row(text, placed)


def write_log_files(logs: Mapping[str, str]) -> None:
    """Write logs to the directory in which Acme keeps copies of logs. Raises SimulatorError."""
    try:
        for path, text in logs.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
    except OSError as error:
        raise SimulatorError(f"They cannot be written ({error.strerror}).") from None
