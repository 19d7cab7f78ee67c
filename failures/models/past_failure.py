"""Past failures with a vector of their log, so that similar confirmed failures can be found.

PostgreSQL stores and compares the vectors with pgvector, without an index: only confirmed cases are candidates,
comparing 10,000 of them takes a few milliseconds, and an approximate index with a filter would miss some.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from django.db import models
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from failures.diagnosis.labels import NONE, UNKNOWN
from failures.learning.embedding import DIMENSIONS, EMBEDDING_VERSION, Vector
from failures.models.diagnosis import Diagnosis, DiagnosisReview


class VectorField(models.Field):
    """A column of the pgvector type. Its text form is `[1,2,3]`."""

    def db_type(self, connection: Any) -> str:
        return f"vector({DIMENSIONS})"

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else format_vector(value)

    def from_db_value(self, value: Any, *_: Any) -> Vector | None:
        return None if value is None else np.array(value.strip("[]").split(","), dtype=np.float32)


def format_vector(vector: Vector) -> str:
    return "[" + ",".join(f"{number:.6g}" for number in vector.tolist()) + "]"


class PastFailureQuerySet(models.QuerySet["PastFailure"]):
    def confirmed(self) -> Self:
        settled = self.exclude(diagnosis__review=DiagnosisReview.NONE)
        return settled.exclude(diagnosis__root_cause__in=(NONE, UNKNOWN))

    def nearest(self, vector: Vector) -> Self:
        """Cases by `distance` (0: same text, 1: nothing in common), without vectors of other versions."""
        distance = RawSQL("vector <=> %s::vector", [format_vector(vector)], output_field=models.FloatField())
        return self.filter(version=EMBEDDING_VERSION).annotate(distance=distance).order_by("distance", "id")


class PastFailure(models.Model):
    diagnosis = models.OneToOneField(Diagnosis, on_delete=models.PROTECT, related_name="past_failure")
    vector = VectorField()
    version = models.CharField(max_length=40)
    made_at = models.DateTimeField(db_default=Now())
    learned_at = models.DateTimeField(null=True, help_text="When the failure was last used for learning rules.")

    objects = PastFailureQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"past failure of {self.diagnosis.attempt}"

    @property
    def similarity(self) -> float:
        """The similarity from 0 to 1, for rows of `nearest`."""
        return 1.0 - float(getattr(self, "distance", 1.0))

    @property
    def percent(self) -> int:
        return round(100 * self.similarity)

    @property
    def cured_by(self) -> str:
        """The review note of the diagnosis, else the resolution of its incident."""
        incident = self.diagnosis.incident
        return self.diagnosis.review_note or (incident.resolved_why if incident else "")
