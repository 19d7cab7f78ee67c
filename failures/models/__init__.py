"""The models of failures: diagnoses, incidents, recovery decisions, signs, notices, and learned cases and rules."""

from failures.models.cadence import Cadence
from failures.models.case import Case
from failures.models.decision import Decision, DecisionState, Order, Step
from failures.models.diagnosis import Diagnosis, DiagnosisReview
from failures.models.following import Following
from failures.models.incident import Incident, IncidentState
from failures.models.notice import Channel, Notice
from failures.models.sign import Sign
from failures.models.signature import LearnedRule, ModelOpinion, RuleHit, RuleKind, RuleOrigin, RuleState
from failures.models.stacks import StackDump

__all__ = [
    "Cadence",
    "Case",
    "Channel",
    "Decision",
    "DecisionState",
    "Diagnosis",
    "DiagnosisReview",
    "Following",
    "Incident",
    "IncidentState",
    "LearnedRule",
    "ModelOpinion",
    "Notice",
    "Order",
    "RuleHit",
    "RuleKind",
    "RuleOrigin",
    "RuleState",
    "Sign",
    "StackDump",
    "Step",
]
