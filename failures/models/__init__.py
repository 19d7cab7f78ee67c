"""What was found out: why an attempt failed (Diagnosis), and what went wrong (Incident)."""

from failures.models.diagnosis import Diagnosis, Review
from failures.models.incident import Incident, Standing

__all__ = ["Diagnosis", "Incident", "Review", "Standing"]
