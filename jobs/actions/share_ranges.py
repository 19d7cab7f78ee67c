"""Chooses which thousandths of a GPU a share gets, so that the database can refuse an over-allocation.

A share needs consecutive thousandths. If what is free is scattered, the other shares of the GPU move down first: which
thousandths a share has means nothing to its job.

Failure story: callers lock the nodes or are refused by the constraint. A transaction that fails leaves all ranges as
they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from jobs.core.gpu_shares import WHOLE_GPU, first_gap
from jobs.models import Allocation, Attempt

GpuKey = tuple[int, int]  # node id, GPU index


@dataclass(kw_only=True)
class HeldRange:
    """The thousandths that one live allocation holds."""

    allocation_id: int
    begin: int
    milli: int


def begins_of_new_shares(shares: Sequence[tuple[GpuKey, int]]) -> list[int]:
    """Return the first thousandth of each new share, given its GPU and size. Moves other shares if it must.

    A share that does not fit gets thousandths that others hold, so that the constraint refuses its allocation.
    """
    if not shares:
        return []
    held = _held_ranges({gpu for gpu, _ in shares})
    return [_begin_on_gpu(held[gpu], milli) for gpu, milli in shares]


def allocations(
    attempt: Attempt, gpus: Sequence[tuple[int, int | None]], gpu_milli: int, *, held_at: datetime
) -> list[Allocation]:
    """Return the unsaved allocations of an attempt that already runs, given (node id, GPU index or None)."""
    if not gpu_milli:
        return [Allocation(attempt=attempt, node_id=node, gpu=gpu, held_at=held_at) for node, gpu in gpus]
    begins = begins_of_new_shares([((node, gpu), gpu_milli) for node, gpu in gpus if gpu is not None])
    rows = [Allocation(attempt=attempt, node_id=node, gpu=gpu, held_at=held_at, share=gpu_milli) for node, gpu in gpus]
    for row, begin in zip((row for row in rows if row.gpu is not None), begins, strict=True):
        row.share_begin = begin
    return rows


def _begin_on_gpu(ranges: list[HeldRange], milli: int) -> int:
    begin = first_gap([(one.begin, one.milli) for one in ranges], milli)
    if begin is None and sum(one.milli for one in ranges) + milli <= WHOLE_GPU:
        begin = _move_down(ranges)
    begin = 0 if begin is None else begin
    ranges.append(HeldRange(allocation_id=0, begin=begin, milli=milli))
    return begin


def _move_down(ranges: list[HeldRange]) -> int:
    """Close the gaps between the ranges, and return the first free thousandth."""
    begin = 0
    for one in sorted(ranges, key=lambda one: one.begin):
        if one.begin != begin and one.allocation_id:
            Allocation.objects.filter(pk=one.allocation_id, released_at__isnull=True).update(share_begin=begin)
        one.begin = begin
        begin += one.milli
    return begin


def _held_ranges(gpus: Collection[GpuKey]) -> Mapping[GpuKey, list[HeldRange]]:
    rows = Allocation.objects.live().filter(node__in={node for node, _ in gpus}, gpu__in={gpu for _, gpu in gpus})
    held: dict[GpuKey, list[HeldRange]] = defaultdict(list)
    for pk, node, gpu, begin, milli in rows.order_by().values_list("pk", "node_id", "gpu", "share_begin", "share"):
        held[node, gpu].append(HeldRange(allocation_id=pk, begin=begin, milli=milli))
    return held


@dataclass(frozen=True, kw_only=True)
class GpuCorrection:
    """One GPU that the cluster allocated differently than Acme had planned."""

    attempt_id: int
    node_id: int
    promised: int
    given: int


def correct_indices(corrections: Sequence[GpuCorrection]) -> set[int]:
    """Apply all corrections in one statement, because attempts may swap GPUs and constraints are checked at its end.
    Return the attempts that changed.
    """
    begins = _begins_after(corrections)
    values = ", ".join(["(%s::bigint, %s::int, %s::int)"] * len(begins))
    numbers = [number for pk, (gpu, begin) in begins.items() for number in (pk, gpu, begin)]
    if not begins:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobs_allocation a SET gpu = v.gpu, share_begin = v.begin FROM (VALUES {values}) v (id, gpu, begin)"  # noqa: S608
            " WHERE a.id = v.id AND a.released_at IS NULL RETURNING a.attempt_id",
            numbers,
        )
        changed = {row[0] for row in cursor.fetchall()}
    return changed & {one.attempt_id for one in corrections}


def _begins_after(corrections: Sequence[GpuCorrection]) -> dict[int, tuple[int, int]]:
    """Return GPU and first thousandth by allocation, for those to be corrected and the shares beside them."""
    given = {(one.attempt_id, one.node_id, one.promised): one.given for one in corrections}
    rows = Allocation.objects.live().filter(node__in={one.node_id for one in corrections}, gpu__isnull=False)
    columns = rows.order_by("node", "share_begin", "pk").values_list("pk", "attempt_id", "node_id", "gpu", "share")
    after: dict[int, tuple[int, int]] = {}
    used: dict[GpuKey, int] = defaultdict(int)
    for pk, attempt, node, gpu, milli in columns:
        new = given.get((attempt, node, gpu), gpu)
        if new != gpu or milli < WHOLE_GPU:
            after[pk] = new, used[node, new]
            used[node, new] += milli
    return after
