"""Models of scheduling: leases, estimates, history, ledger, campaigns, rules, pair tests, simulations and traces."""

from .breaker import ClusterEndpoint, OpenCircuit
from .estimate import LEAD_UNTIL, Estimate, EstimateError, EstimateLead, EstimateOutcome, Forecast
from .evaluation import (
    OPEN_CAMPAIGN_STATES,
    Campaign,
    CampaignState,
    Evaluation,
    Framework,
    Shard,
    ShardState,
    Staging,
    StagingState,
    Suite,
    SuiteDataset,
    Trial,
    TrialKind,
)
from .evaluation_rule import EvaluationRule, ProcessedCheckpoint, RuleSelection
from .gpu_speed import GpuSpeed
from .history import AccountUsage, LearnedRunTime, RunTimeModel
from .lease import Lease
from .ledger import LedgerChange, LedgerPeriod, PeriodLength
from .node_sleep import ACTIVE_SLEEP_STATES, UNDECIDED_SLEEP_STATES, NodeSleep, NodeSleepState
from .nodetest import NodeTest, PairTestJob
from .power_budget import POWER_CAP_RETENTION, BudgetScope, PowerBudget, PowerCap, PowerCapMode
from .power_peaks import AttemptPeak, LearnedPeaks
from .run_time_trees import TrainedTrees
from .simulation import UNFINISHED_STATES, WORKER_SILENCE_LIMIT, Simulation, SimulationState
from .trace import UPLOAD_PREFIX, UploadedTrace

__all__ = [
    "ACTIVE_SLEEP_STATES",
    "LEAD_UNTIL",
    "OPEN_CAMPAIGN_STATES",
    "POWER_CAP_RETENTION",
    "UNDECIDED_SLEEP_STATES",
    "UNFINISHED_STATES",
    "UPLOAD_PREFIX",
    "WORKER_SILENCE_LIMIT",
    "AccountUsage",
    "AttemptPeak",
    "BudgetScope",
    "Campaign",
    "CampaignState",
    "ClusterEndpoint",
    "Estimate",
    "EstimateError",
    "EstimateLead",
    "EstimateOutcome",
    "Evaluation",
    "EvaluationRule",
    "Forecast",
    "Framework",
    "GpuSpeed",
    "LearnedPeaks",
    "LearnedRunTime",
    "Lease",
    "LedgerChange",
    "LedgerPeriod",
    "NodeSleep",
    "NodeSleepState",
    "NodeTest",
    "OpenCircuit",
    "PairTestJob",
    "PeriodLength",
    "PowerBudget",
    "PowerCap",
    "PowerCapMode",
    "ProcessedCheckpoint",
    "RuleSelection",
    "RunTimeModel",
    "Shard",
    "ShardState",
    "Simulation",
    "SimulationState",
    "Staging",
    "StagingState",
    "Suite",
    "SuiteDataset",
    "TrainedTrees",
    "Trial",
    "TrialKind",
    "UploadedTrace",
]
