"""Jobs as the engine sees them, and the groups of waiting jobs with equal requests."""

from __future__ import annotations

import math
from typing import Any

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.history import UNKNOWN_S
from scheduling.engine.resources import GpuPlacement, NodeSet

QueueEntry = tuple[int, float, int, "EngineJob"]  # band, key or rank, number (a total order), job


class RequestGroup:
    """All waiting jobs with equal requests that are admitted alike. If the first does not fit, none of them does."""

    __slots__ = (
        "account",
        "barred_nodes",
        "borrows",
        "charged_gpus",
        "charged_milli",
        "eligible_nodes",
        "gpus",
        "matching_nodes",
        "min_node_gpus",
        "need",
        "no_backfill_under",
        "owner",
        "queue",
        "shape",
    )

    def __init__(self, need: ResourceRequest, matching_nodes: NodeSet, owner: Any, account: object, shape: int) -> None:
        self.need = need
        self.gpus = need.total_gpus  # whole ones
        # What accounts count: a share is a part of a GPU there
        self.charged_milli = need.charged_milli
        self.charged_gpus = need.charged_milli / WHOLE_GPU
        # The fewest GPUs that a node must have free to be of use
        self.min_node_gpus = min(need.gpus, need.rest) if need.rest else need.gpus
        self.matching_nodes = matching_nodes  # nodes with the requested hardware
        self.eligible_nodes = matching_nodes  # those of them on which it may start now
        self.barred_nodes: NodeSet = 0  # those with a GPU model of which the quota of its team is used up
        self.owner = owner
        # Whether its jobs use GPUs that owners leave idle, and owners may preempt them. Shares are never preempted: the
        # GPU would be of no use to others until its last share ends
        self.borrows = bool(owner and owner.preemptible) and not need.gpu_milli
        self.shape = shape  # equal requests share it: if one does not fit, none does
        self.account = account  # the unit of comparison where shares decide
        self.queue: Any = []  # a heap of QueueEntry; an OrderedJobQueue for turns with reservations
        # A cache of `turns/easy`: the reservation for which no job in this queue is short enough to pass
        self.no_backfill_under: object = None


class EngineJob:
    """A job in the engine, waiting or running."""

    __slots__ = (
        "asked",
        "attained",
        "band",
        "began",
        "deadline",
        "expected_s",
        "group",
        "key",
        "kind",
        "level",
        "name",
        "number",
        "places",
        "predicted_s",
        "preempted_by",
        "protected_until",
        "ran_s",
        "remaining_s",
        "runs",
        "saved",
        "saves_first",
        "similar",
        "since",
        "slowdown",
        "stopping",
        "submitted",
        "submitted_band",
        "user",
        "wider_group",
        "worked_s",
    )

    def __init__(
        self,
        number: int,
        group: RequestGroup,
        submitted: float,
        runtime_s: float,
        expected_s: float,
        band: int = 0,
    ) -> None:
        self.number = number  # the order of submission, which breaks ties
        self.group = group
        # That of the whole request, if `group` has only some of its GPU models (`state/model_choice`)
        self.wider_group: RequestGroup | None = None
        self.submitted = submitted
        self.remaining_s = runtime_s  # the true remaining time in a replay; the expected one on a live cluster
        self.expected_s = expected_s  # what reservations rely on: the limit, or the true run time in a replay
        self.deadline = math.inf  # when it should have ended; infinite without a deadline
        self.predicted_s = UNKNOWN_S  # the run time learned from similar jobs, for the order of the queue only
        # Known in replays only, as numbers
        self.user = self.name = self.kind = 0
        self.similar = 0  # equal for names that differ only in their numbers
        self.band = self.submitted_band = band  # lower goes first, regardless of the policy's order
        self.key = 0.0
        self.level = 0
        self.attained = 0.0  # GPU-seconds up to `since`
        self.since = 0.0  # work before this time is counted in `attained` and subtracted from `remaining_s`
        self.began = 0.0  # start of the current run
        self.slowdown = 1.0  # of the GPU model that it holds or held last: the time for which it does a second's work
        self.worked_s = 0.0  # as `ran_s`, in seconds on the first GPU model that it requests
        self.ran_s = 0.0  # earlier runs; a turn may stop a job and restart it elsewhere at the same moment
        self.runs = 0
        self.places: GpuPlacement | None = None  # set while it runs
        self.saved = 0.0  # when its last checkpoint was written, if known
        self.stopping = False  # a stop is requested already, so its GPUs come free without a claim
        self.preempted_by: EngineJob | None = None
        # Its contract, for borrowers. 0: not protected; infinite: the end of the protection is not known
        self.protected_until = 0.0
        self.saves_first = False  # it may be stopped only after its next checkpoint
        self.asked = math.inf  # when it was asked for that checkpoint

    @property
    def gpus(self) -> int:
        return self.group.gpus

    def may_stop(self, now: float) -> bool:
        """Whether it agreed to be preempted, and its contract permits it now."""
        return self.stopping or (self.group.borrows and self.protected_until <= now)

    @property
    def is_reclaimable(self) -> bool:
        """Whether owners may count its GPUs as free."""
        return self.stopping or (self.group.borrows and not self.protected_until)
