from .breaker import Endpoint, OpenCircuit
from .estimate import LEAD_UNTIL, Estimate, EstimateError, EstimateOutcome, Forecast, Lead
from .evaluation import (
    OPEN,
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
from .evaluation_rule import EvaluationRule, RuleSighting, Which
from .lease import Lease
from .nodetest import NodeTest, TestWorld
from .simulation import SILENT_AFTER, UNFINISHED, Simulation, SimulationState
from .trace import UPLOAD, UploadedTrace

__all__ = [
    "LEAD_UNTIL",
    "OPEN",
    "SILENT_AFTER",
    "UNFINISHED",
    "UPLOAD",
    "Campaign",
    "CampaignState",
    "Endpoint",
    "Estimate",
    "EstimateError",
    "EstimateOutcome",
    "Evaluation",
    "EvaluationRule",
    "Forecast",
    "Framework",
    "Lead",
    "Lease",
    "NodeTest",
    "OpenCircuit",
    "RuleSighting",
    "Shard",
    "ShardState",
    "Simulation",
    "SimulationState",
    "Staging",
    "StagingState",
    "Suite",
    "SuiteDataset",
    "TestWorld",
    "Trial",
    "TrialKind",
    "UploadedTrace",
    "Which",
]
