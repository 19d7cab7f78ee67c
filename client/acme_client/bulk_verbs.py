"""Applies one verb to many jobs, and waits for the end if the server does it in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acme_client.api import Acme

MAX_IDS_PER_REQUEST = 500
POLL_S = 1.0

VerbProgressCallback = Callable[[int, int], None]  # jobs processed, jobs in total


@dataclass(kw_only=True)
class VerbResult:
    """The outcomes of all requests, job by job. Of actions in the background, only refused jobs are listed."""

    matched: int = 0
    remaining: int = 0
    success_count: int = 0
    error: str = ""
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [outcome for outcome in self.outcomes if not outcome["succeeded"]]


def run_verb_on_ids(
    acme: Acme,
    body: Mapping[str, Any],
    ids: Sequence[str],
    progress: VerbProgressCallback,
) -> VerbResult:
    """Apply the verb to these jobs, each once."""
    result, done, total = VerbResult(), 0, len(dict.fromkeys(ids))
    for part in _id_batches(list(dict.fromkeys(ids))):
        answer = acme.post("jobs/actions/", {**body, "ids": part})
        _add_answer(result, _final_answer(acme, answer, progress))
        done += len(part)
        progress(done, total)
    result.matched = max(result.matched, len(result.outcomes))
    return result


def run_verb_on_filter(
    acme: Acme,
    body: Mapping[str, Any],
    filters: Mapping[str, Any],
    progress: VerbProgressCallback,
) -> VerbResult:
    """Apply the verb to matching jobs."""
    result = VerbResult()
    answer = acme.post("jobs/actions/", {**body, "filter": dict(filters)})
    _add_answer(result, _final_answer(acme, answer, progress))
    return result


def _final_answer(
    acme: Acme,
    answer: Mapping[str, Any],
    progress: VerbProgressCallback,
) -> Mapping[str, Any]:
    """Wait for the end of an action in the background. Other answers are final."""
    while answer.get("state") == "running":
        progress(answer["matched"] - answer["remaining"], answer["matched"])
        time.sleep(POLL_S)
        answer = acme.get(f"jobs/actions/{answer['id']}/")
    return answer


def _add_answer(result: VerbResult, answer: Mapping[str, Any]) -> None:
    result.matched += answer["matched"]
    result.remaining += answer["remaining"]
    result.success_count += answer["succeeded"]
    result.error = result.error or answer.get("error", "")
    result.outcomes += answer["results"]


def _id_batches(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), MAX_IDS_PER_REQUEST):
        yield ids[first : first + MAX_IDS_PER_REQUEST]
