"""One line about each policy of the replays with speeds, grouped by what it needs to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

POLICY_GROUPS: Mapping[str, Mapping[str, str]] = {
    "No speeds": {
        "widths tiresias": "two queues by GPU time so far, at the requested widths",
        "widths gandiva-fair": "equal time for all jobs, at the requested widths",
        "widths gandiva": "equal time for all jobs; once none waits, jobs grow to idle GPUs",
        "widths dorm": "equally many GPUs for all jobs, with few changes of widths",
        "rounds las": "the same part of all GPUs for each job, whatever their type",
    },
    "Speed at the requested width": {
        "widths max-sum": "as many steps per second as possible",
        "rounds max-sum": "the same, whatever the types of the GPUs",
    },
    "Speed and time left at the requested width": {
        "widths shockwave": "equal progress, and no job ends much later than the others",
        "widths finish-time": "the largest delay by sharing is as small as possible",
        "rounds finish-time": "the same, whatever the types of the GPUs",
    },
    "Speed by width": {
        "widths pollux": "the harmonic mean of the jobs' speed-ups is as high as possible",
    },
    "Speed by width, and time left": {
        "widths optimus": "each GPU goes where it saves the most run time",
        "widths afs": "each GPU goes where it shortens the mean completion time most, compared in pairs",
    },
    "Deadlines, and speed by width": {
        "widths edf": "the earliest deadline first, on as many GPUs as make it faster",
        "widths elasticflow": "jobs are admitted while all deadlines can be met; each is as narrow as its own permits",
    },
    "Speed by width and GPU type": {
        "widths sia": "type and width together, for the highest sum of speed-ups, small jobs first",
    },
    "Speed by GPU type at the requested width": {
        "rounds las-aware": "the smallest share of any job is as large as possible",
        "rounds max-sum-aware": "as many steps per second as possible",
        "rounds finish-time-aware": "the largest delay by sharing is as small as possible",
        "rounds allox": "the shortest sum of completion times, for jobs of one GPU",
    },
    "Speed of two jobs on the same GPUs": {
        "rounds las-packed": "the smallest share of any job is as large as possible; two jobs may share GPUs",
        "rounds gandiva": "random pairs of jobs share GPUs while there are more jobs than GPUs",
    },
}


def policy_lines() -> Iterator[str]:
    """All policies, with the groups as headings."""
    for group, policies in POLICY_GROUPS.items():
        yield f"{group}:"
        yield from (f"  {name:26}{text}" for name, text in policies.items())
