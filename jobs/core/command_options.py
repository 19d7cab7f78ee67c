"""Options in a job's command that repeat what the job requests, such as `torchrun --nproc-per-node 8`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OPTION_PATTERNS = {
    "gpus_per_node": re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,6})\b"),
    "nodes": re.compile(r"--nnodes[= ](\d{1,6})\b"),
}


def conflicting_option(command: str, changes: Mapping[str, Any]) -> str:
    """Return the option of the command that contradicts a changed request, or an empty string."""
    for field, pattern in OPTION_PATTERNS.items():
        option = pattern.search(command) if field in changes else None
        if option and int(option[1]) != int(changes[field]):
            return option[0]
    return ""
