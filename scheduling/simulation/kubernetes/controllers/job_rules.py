"""Rules of Jobs: completion indexes, final states, and the pod failure policy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduling.simulation.kubernetes.objects import JsonObject, condition_of, value_at

INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class Verdict:
    """What becomes of a Job because of a failed pod: Count, Ignore or FailJob."""

    action: str
    message: str = ""


def is_finished(job: JsonObject) -> bool:
    return any((condition_of(job, kind) or {}).get("status") == "True" for kind in ("Complete", "Failed"))


def parse_indexes(text: str) -> set[int]:
    """The indexes of a text such as `0,2-4`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def format_indexes(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run_text(run) for run in runs)


def _run_text(run: list[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    return f"{run[0]},{run[1]}" if len(run) == 2 else f"{run[0]}-{run[-1]}"


def missing_indexes(job: JsonObject, busy: set[int]) -> Iterator[int]:
    """The lowest indexes that have neither succeeded nor a pod."""
    done = parse_indexes(value_at(job, "status", "completedIndexes", default=""))
    return (index for index in range(int(job["spec"]["completions"])) if index not in done and index not in busy)


def failure_verdict(job: JsonObject, pod: JsonObject) -> Verdict:
    """The action of the first rule of the pod failure policy that matches; without one, the failure counts."""
    for place, rule in enumerate(value_at(job, "spec", "podFailurePolicy", "rules", default=[])):
        if _rule_matches(rule, pod):
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            text = f"Pod {name} matches {rule.get('action')} rule at index {place}"
            return Verdict(str(rule.get("action", "Count")), text)
    return Verdict("Count")


def _rule_matches(rule: JsonObject, pod: JsonObject) -> bool:
    if codes := rule.get("onExitCodes"):
        return any(_codes_match(codes, status) for status in value_at(pod, "status", "containerStatuses", default=[]))
    return any(
        (condition_of(pod, str(pattern.get("type"))) or {}).get("status") == pattern.get("status", "True")
        for pattern in rule.get("onPodConditions") or ()
    )


def _codes_match(codes: JsonObject, status: JsonObject) -> bool:
    code = value_at(status, "state", "terminated", "exitCode")
    if code in (None, 0) or codes.get("containerName") not in (None, status.get("name")):
        return False
    return (code in (codes.get("values") or [])) == (codes.get("operator") == "In")
