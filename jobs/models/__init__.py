"""The record: every row of it, one subject a module."""

from jobs.models.cluster import Care, Cluster, DrainMode, Mode, Node
from jobs.models.door import IdempotencyKey
from jobs.models.event import TO_NODES, Deed, DeedKind, Event
from jobs.models.installation import Installation
from jobs.models.job import After, Allocation, Attempt, Checkpoint, Dependency, Hold, Job, Verdict
from jobs.models.login import LoginAttempts
from jobs.models.maintenance import Maintenance
from jobs.models.people import Identity, Membership, Quota, Role, Scope, Team, Token
from jobs.models.progress import PROGRESS_KEPT, Progress, Pulse, RankTimes, Section, Source
from jobs.models.recovery import RecoveryMode
from jobs.models.saved_view import SavedView
from jobs.models.telemetry import KEPT, MINUTES_KEPT, Minute, Resolution, Sample

__all__ = [
    "KEPT",
    "MINUTES_KEPT",
    "PROGRESS_KEPT",
    "TO_NODES",
    "After",
    "Allocation",
    "Attempt",
    "Care",
    "Checkpoint",
    "Cluster",
    "Deed",
    "DeedKind",
    "Dependency",
    "DrainMode",
    "Event",
    "Hold",
    "IdempotencyKey",
    "Identity",
    "Installation",
    "Job",
    "LoginAttempts",
    "Maintenance",
    "Membership",
    "Minute",
    "Mode",
    "Node",
    "Progress",
    "Pulse",
    "Quota",
    "RankTimes",
    "RecoveryMode",
    "Resolution",
    "Role",
    "Sample",
    "SavedView",
    "Scope",
    "Section",
    "Source",
    "Team",
    "Token",
    "Verdict",
]
