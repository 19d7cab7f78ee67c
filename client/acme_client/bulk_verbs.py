"""Applies one verb to many jobs, in as many requests as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acme_client.api import Acme

MAX_IDS_PER_REQUEST = 500

VerbProgressCallback = Callable[[int, int], None]  # jobs processed, jobs in total


@dataclass(kw_only=True)
class VerbResult:
    """The outcomes of all requests, job by job."""

    matched: int = 0
    remaining: int = 0
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def success_count(self) -> int:
        return sum(1 for outcome in self.outcomes if outcome["succeeded"])

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [outcome for outcome in self.outcomes if not outcome["succeeded"]]


def run_verb_on_ids(
    acme: Acme, body: Mapping[str, Any], ids: Sequence[str], progress: VerbProgressCallback
) -> VerbResult:
    """Apply the verb to these jobs, each once."""
    result = VerbResult()
    for part in _id_batches(list(dict.fromkeys(ids))):
        answer = acme.post("jobs/actions/", {**body, "ids": part})
        _add_outcomes(result, answer)
        progress(min(len(result.outcomes), len(ids)), len(ids))
    result.matched = len(result.outcomes)
    return result


def run_verb_on_filter(
    acme: Acme, body: Mapping[str, Any], filters: Mapping[str, Any], progress: VerbProgressCallback
) -> VerbResult:
    """Apply the verb to matching jobs. Repeat until none is left or a request changes nothing."""
    result = VerbResult()
    while True:
        answer = acme.post("jobs/actions/", {**body, "filter": dict(filters)})
        _add_outcomes(result, answer)
        result.matched = max(result.matched, answer["matched"])
        result.remaining = answer["remaining"]
        progress(result.matched - result.remaining, result.matched)
        if not answer["remaining"] or not answer["succeeded"] or body.get("dry_run"):
            return result


def _add_outcomes(result: VerbResult, answer: Mapping[str, Any]) -> None:
    known = {outcome["id"] for outcome in result.outcomes}
    result.outcomes += [outcome for outcome in answer["results"] if outcome["id"] not in known]


def _id_batches(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), MAX_IDS_PER_REQUEST):
        yield ids[first : first + MAX_IDS_PER_REQUEST]
