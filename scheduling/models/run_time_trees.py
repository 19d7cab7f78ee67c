"""Trees that predict run times: their versions, and the newest one that can be loaded."""

from __future__ import annotations

import logging
from functools import lru_cache

from django.db import models

from jobs.models.cluster import Cluster
from scheduling.engine.blending import RunTimeTrees
from scheduling.engine.settings import MissingLibrary

log = logging.getLogger(__name__)

KEPT_VERSIONS = 3
CACHED_TREES = 8  # per process; a few MB each


class TrainedTrees(models.Model):
    """One version of the trees of a cluster. A version never changes; predictions use the newest that can be loaded."""

    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="trained_trees")
    version = models.PositiveIntegerField()
    trained_at = models.DateTimeField()
    learned_jobs = models.PositiveIntegerField(help_text="Number of jobs that had ended on the cluster by then.")
    training_jobs = models.PositiveIntegerField(help_text="Number of jobs that it was trained on, the newest ones.")
    first_end = models.DateTimeField(help_text="End of the oldest of them.")
    last_end = models.DateTimeField(help_text="End of the newest of them.")
    document = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "version"], name="one_document_per_trees_version")]

    def __str__(self) -> str:
        return f"{self.cluster_id}: trees of version {self.version}"


def usable_trees(cluster: Cluster) -> RunTimeTrees | None:
    """Return the newest trees that can be loaded; None without any, or without LightGBM."""
    newest = TrainedTrees.objects.filter(cluster=cluster).order_by("-version").values_list("pk", flat=True)
    return next((trees for pk in newest[:KEPT_VERSIONS] if (trees := _loaded_trees(pk))), None)


@lru_cache(maxsize=CACHED_TREES)
def _loaded_trees(pk: int) -> RunTimeTrees | None:
    document = TrainedTrees.objects.filter(pk=pk).values_list("document", flat=True).first()
    try:
        return RunTimeTrees.loads(bytes(document)) if document else None
    except (ValueError, MissingLibrary) as error:
        log.error("trees %s cannot be used: %s", pk, error)
        return None
