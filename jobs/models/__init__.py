"""Django models of the app, one module per subject. Rules live in `jobs.core`, changes in `jobs.actions`."""

from jobs.models.cluster import Cluster, ClusterMode, DrainMode, Node, RepairStage
from jobs.models.event import NODE_COMMANDS, ClusterCommandKind, Deed, Event
from jobs.models.idempotency import IdempotencyKey
from jobs.models.installation import Installation
from jobs.models.job import (
    Allocation,
    Attempt,
    Checkpoint,
    CheckpointVerdict,
    Dependency,
    DependencyCondition,
    HoldKind,
    Job,
)
from jobs.models.login import LoginAttempts
from jobs.models.maintenance import Maintenance
from jobs.models.people import Identity, Membership, Quota, Team, TeamRole, Token, TokenScope
from jobs.models.progress import PROGRESS_RETENTION, Progress, ProgressSource, Pulse, RankTimes, Section
from jobs.models.recovery import RecoveryMode
from jobs.models.saved_view import SavedView
from jobs.models.telemetry import MINUTE_RETENTION, SAMPLE_RETENTION, Minute, Resolution, Sample

__all__ = [
    "MINUTE_RETENTION",
    "NODE_COMMANDS",
    "PROGRESS_RETENTION",
    "SAMPLE_RETENTION",
    "Allocation",
    "Attempt",
    "Checkpoint",
    "CheckpointVerdict",
    "Cluster",
    "ClusterCommandKind",
    "ClusterMode",
    "Deed",
    "Dependency",
    "DependencyCondition",
    "DrainMode",
    "Event",
    "HoldKind",
    "IdempotencyKey",
    "Identity",
    "Installation",
    "Job",
    "LoginAttempts",
    "Maintenance",
    "Membership",
    "Minute",
    "Node",
    "Progress",
    "ProgressSource",
    "Pulse",
    "Quota",
    "RankTimes",
    "RecoveryMode",
    "RepairStage",
    "Resolution",
    "Sample",
    "SavedView",
    "Section",
    "Team",
    "TeamRole",
    "Token",
    "TokenScope",
]
