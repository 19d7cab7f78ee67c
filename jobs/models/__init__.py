"""Django models of the app, one module per subject. Rules live in `jobs.core`, changes in `jobs.actions`."""

from jobs.models.bulk_action import BulkAction, BulkActionState
from jobs.models.cluster import Cluster, ClusterMode, DrainMode, Node, RepairStage, SleepMode
from jobs.models.energy import ENERGY_RETENTION, EnergyClock, EnergyHour, EnergyPrice
from jobs.models.event import NODE_COMMANDS, POWER_COMMANDS, ClusterCommand, ClusterCommandKind, Event
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
from jobs.models.loop import ClaimedLoop, Loop, LoopFailure, LoopTimes
from jobs.models.maintenance import Maintenance
from jobs.models.node_clock import NODE_CLOCK_RETENTION, NodeClock
from jobs.models.people import Identity, Membership, Quota, Team, TeamRole, Token, TokenScope
from jobs.models.progress import PROGRESS_RETENTION, LatestProgress, Progress, ProgressSource, RankTimes, Section
from jobs.models.recovery import RecoveryMode
from jobs.models.saved_view import SavedView
from jobs.models.telemetry import MINUTE_RETENTION, SAMPLE_RETENTION, ClusterMinute, Resolution, Sample

__all__ = [
    "ENERGY_RETENTION",
    "MINUTE_RETENTION",
    "NODE_CLOCK_RETENTION",
    "NODE_COMMANDS",
    "POWER_COMMANDS",
    "PROGRESS_RETENTION",
    "SAMPLE_RETENTION",
    "Allocation",
    "Attempt",
    "BulkAction",
    "BulkActionState",
    "Checkpoint",
    "CheckpointVerdict",
    "ClaimedLoop",
    "Cluster",
    "ClusterCommand",
    "ClusterCommandKind",
    "ClusterMinute",
    "ClusterMode",
    "Dependency",
    "DependencyCondition",
    "DrainMode",
    "EnergyClock",
    "EnergyHour",
    "EnergyPrice",
    "Event",
    "HoldKind",
    "IdempotencyKey",
    "Identity",
    "Installation",
    "Job",
    "LatestProgress",
    "LoginAttempts",
    "Loop",
    "LoopFailure",
    "LoopTimes",
    "Maintenance",
    "Membership",
    "Node",
    "NodeClock",
    "Progress",
    "ProgressSource",
    "Quota",
    "RankTimes",
    "RecoveryMode",
    "RepairStage",
    "Resolution",
    "Sample",
    "SavedView",
    "Section",
    "SleepMode",
    "Team",
    "TeamRole",
    "Token",
    "TokenScope",
]
