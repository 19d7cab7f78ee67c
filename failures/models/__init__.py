"""What was found out (Diagnosis), what went wrong (Incident), what was learned of it (Case, LearnedRule)."""

from failures.models.case import Case
from failures.models.diagnosis import Diagnosis, Review
from failures.models.following import Following
from failures.models.incident import Incident, Standing
from failures.models.signature import LearnedRule, ModelOpinion, Origin, RuleHit, RuleKind, RuleState

__all__ = [
    "Case",
    "Diagnosis",
    "Following",
    "Incident",
    "LearnedRule",
    "ModelOpinion",
    "Origin",
    "Review",
    "RuleHit",
    "RuleKind",
    "RuleState",
    "Standing",
]
