"""The record: every row of it, one subject a module."""

from jobs.models.cluster import Cluster, Mode, Node
from jobs.models.door import IdempotencyKey
from jobs.models.event import Deed, DeedKind, Event
from jobs.models.job import After, Allocation, Attempt, Checkpoint, Dependency, Hold, Job, Verdict
from jobs.models.people import Membership, Quota, Role, Scope, Team, Token
from jobs.models.progress import PROGRESS_KEPT, Progress, Pulse
from jobs.models.telemetry import KEPT, Resolution, Sample

__all__ = [
    "KEPT",
    "PROGRESS_KEPT",
    "After",
    "Allocation",
    "Attempt",
    "Checkpoint",
    "Cluster",
    "Deed",
    "DeedKind",
    "Dependency",
    "Event",
    "Hold",
    "IdempotencyKey",
    "Job",
    "Membership",
    "Mode",
    "Node",
    "Progress",
    "Pulse",
    "Quota",
    "Resolution",
    "Role",
    "Sample",
    "Scope",
    "Team",
    "Token",
    "Verdict",
]
