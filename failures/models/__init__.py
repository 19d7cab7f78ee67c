"""The models of failures: diagnoses, incidents, recovery decisions, anomalies, notices, and learned cases and rules."""

from failures.models.anomaly import Anomaly
from failures.models.decision import Decision, DecisionState, ManualOverride, RecoveryStep
from failures.models.diagnosis import Diagnosis, DiagnosisReview
from failures.models.incident import Incident, IncidentState
from failures.models.log_read_state import LogReadState
from failures.models.notice import Channel, Notice
from failures.models.past_failure import PastFailure
from failures.models.signature import LearnedRule, ModelOpinion, RuleHit, RuleKind, RuleOrigin, RuleState
from failures.models.stacks import StackDump

__all__ = [
    "Anomaly",
    "Channel",
    "Decision",
    "DecisionState",
    "Diagnosis",
    "DiagnosisReview",
    "Incident",
    "IncidentState",
    "LearnedRule",
    "LogReadState",
    "ManualOverride",
    "ModelOpinion",
    "Notice",
    "PastFailure",
    "RecoveryStep",
    "RuleHit",
    "RuleKind",
    "RuleOrigin",
    "RuleState",
    "StackDump",
]
