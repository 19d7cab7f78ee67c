"""One line about each policy and each placement, for forms, grouped by what they need to know."""

from __future__ import annotations

from collections.abc import Container, Mapping

Groups = Mapping[str, Mapping[str, str]]  # what they need to know -> name -> summary
GroupedChoices = list[tuple[str, list[tuple[str, str]]]]

SHARED_GPUS = "Profiles of jobs, which then share GPUs"
LEARNED_RUN_TIMES = "Run times learned from ended jobs"
TEAM_RESOURCES = "What each team uses or has used"
POLICY_GROUPS: Groups = {
    "Order of submission": {
        "fifo": "first come, first served; the first job that does not fit blocks the rest",
        "fifo-skip": "first come, first served; jobs that do not fit are skipped",
    },
    "Quotas, and which jobs may be preempted": {
        "acme": "quotas per team, idle GPUs lent to preemptible jobs, backfilling",
    },
    "Time limits or run times": {
        "easy": "first come, first served; others pass if they do not delay the first",
        "conservative": "first come, first served; others pass only if they delay nobody",
        "sjf": "the shortest expected run time first",
        "srtf": "the shortest true remaining time first; preempts; a lower bound",
        "themis": "the job that sharing has slowed down most first; preempts",
    },
    LEARNED_RUN_TIMES: {
        "qssf": "the smallest predicted GPU time first",
        "qssf-ml": "the smallest GPU time first, predicted by trees over ended jobs",
        "srtf-predicted": "the shortest predicted remaining time first; preempts preemptible jobs",
    },
    "GPU time of each job so far": {
        "tiresias": "the job with the fewest GPU-seconds so far first; preempts preemptible jobs",
        "las-aware": "like tiresias, but GPU-seconds count by the speed of the GPU model; jobs that gain most go first",
        "gittins": "the job most likely to end soon first, by the GPU-seconds of ended jobs; preempts",
    },
    TEAM_RESOURCES: {
        "fair": "the team with the least recent usage first, as Slurm's fair share",
        "drf": "the team with the smallest share of GPUs, CPUs or memory first",
    },
    SHARED_GPUS: {
        "lucid": "the smallest predicted GPU time first; two jobs share GPUs if they slow each other down little",
        "gandiva": "first come, first served; jobs without free GPUs join others if both together gain",
        "antman": "guaranteed jobs first; opportunistic jobs run on what these leave of their GPUs",
        "salus": "first come, first served; as many jobs on a GPU as its memory holds",
    },
    "Deadlines": {
        "edf": "the earliest deadline first; preempts preemptible jobs",
        "chronus": "leases; jobs are admitted while all admitted deadlines can be met, by their run times",
    },
}
PLACEMENT_GROUPS: Groups = {
    "Free GPUs of each node": {
        "consolidate": "the fullest node that fits; several nodes as close together as possible",
        "pack": "as consolidate, but a job that fits on no single node is split over several",
        "spread": "the emptiest node that fits; several nodes as close together as possible",
    },
    "Other jobs": {
        "gradient": "where the fewest GPUs become unusable for typical jobs",
        "exact": "as consolidate; a solver moves the other jobs of a turn if that makes room",
    },
    "CPUs and memory": {
        "tune": "CPUs and memory shared so that no GPU is idle for lack of them",
    },
    "Nodes that are guaranteed to virtual clusters": {
        "cells": "guaranteed nodes of a team stay close together",
    },
    "Sum of all free GPUs": {
        "count": "any free GPUs, as if the cluster were one node",
    },
}
POLICY_SUMMARIES = {name: text for group in POLICY_GROUPS.values() for name, text in group.items()}


def grouped_choices(names: Container[str], groups: Groups, default: str = "") -> GroupedChoices:
    """The choices of a form field with their summaries. The default has no value of its own."""
    found = {label: [name for name in group if name in names] for label, group in groups.items()}
    return [
        (label, [("" if name == default else name, f"{name} – {groups[label][name]}") for name in group])
        for label, group in found.items()
        if group
    ]
