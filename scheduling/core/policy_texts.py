"""One line about each policy and each placement, for forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

POLICY_SUMMARIES = {
    "acme": "quotas per team, idle GPUs lent to preemptible jobs, backfilling",
    "chronus": "leases; jobs are admitted while all admitted deadlines can be met",
    "conservative": "first come, first served; others pass only if they delay nobody",
    "drf": "the team with the smallest share of GPUs, CPUs or memory first",
    "easy": "first come, first served; others pass if they do not delay the first",
    "edf": "the earliest deadline first; preempts preemptible jobs",
    "fair": "the team with the least recent usage first, as Slurm's fair share",
    "fifo": "first come, first served; the first job that does not fit blocks the rest",
    "fifo-skip": "first come, first served; jobs that do not fit are skipped",
    "gittins": "the job most likely to end soon first; preempts",
    "qssf": "the smallest predicted GPU time first",
    "qssf-ml": "the smallest GPU time first, predicted by trees over ended jobs",
    "sjf": "the shortest expected run time first",
    "srtf": "the shortest true remaining time first; preempts; a lower bound",
    "srtf-predicted": "the shortest predicted remaining time first; preempts preemptible jobs",
    "themis": "the job that sharing has slowed down most first; preempts",
    "tiresias": "the job with the fewest GPU-seconds so far first; preempts preemptible jobs",
}
PLACEMENT_SUMMARIES = {
    "consolidate": "as few nodes and leaf switches as possible",
    "pack": "the fullest nodes first, so that whole nodes stay free",
    "spread": "the emptiest nodes first",
    "cells": "guaranteed nodes of a team stay close together",
    "gradient": "where the fewest GPUs become unusable for typical jobs",
    "tune": "CPUs and memory shared so that no GPU is idle for lack of them",
    "exact": "a solver, if the simple placement finds no room",
}


def described_choices(names: Iterable[str], summaries: Mapping[str, str]) -> list[tuple[str, str]]:
    """The choices of a form field, each with its summary."""
    return [(name, f"{name} – {summaries[name]}") for name in names]
