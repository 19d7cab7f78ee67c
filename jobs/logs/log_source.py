"""Where the log of an attempt is. Pure.

All code that reads logs takes a LogSource and passes it to `jobs.logs`, which opens it. Only `Cluster.log_source` knows
where a cluster keeps its logs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogSource:
    """A file beneath a directory. `root` is empty if the logs of the cluster cannot be read here."""

    root: str
    path: str
