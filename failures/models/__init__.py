"""What was found out (Diagnosis), what went wrong (Incident), what is done about it (Decision), and what was learned of
it (Case, LearnedRule)."""

from failures.models.cadence import Cadence
from failures.models.case import Case
from failures.models.decision import Course, Decision, Order, Step
from failures.models.diagnosis import Diagnosis, Review
from failures.models.following import Following
from failures.models.incident import Incident, Standing
from failures.models.notice import Channel, Notice
from failures.models.sign import Sign
from failures.models.signature import LearnedRule, ModelOpinion, Origin, RuleHit, RuleKind, RuleState
from failures.models.stacks import StackDump

__all__ = [
    "Cadence",
    "Case",
    "Channel",
    "Course",
    "Decision",
    "Diagnosis",
    "Following",
    "Incident",
    "LearnedRule",
    "ModelOpinion",
    "Notice",
    "Order",
    "Origin",
    "Review",
    "RuleHit",
    "RuleKind",
    "RuleState",
    "Sign",
    "StackDump",
    "Standing",
    "Step",
]
