"""Pair tests of nodes: the nodes under test, the test jobs of the two rounds, and the results."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from failures.models import Decision
from jobs.models import Cluster


class NodeTestQuerySet(models.QuerySet["NodeTest"]):
    def open(self) -> Self:
        return self.filter(ended_at__isnull=True)


class NodeTest(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="node_tests")
    decision = models.OneToOneField(Decision, null=True, on_delete=models.PROTECT, related_name="node_test")
    nodes = models.JSONField(help_text="Names of those under test.")
    partners = models.JSONField(default=list, help_text="Known good, and closed for the test as well.")
    closed = models.JSONField(default=list, help_text="Those that the test itself closed, and opens again.")
    round = models.PositiveSmallIntegerField(default=1)
    began_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    good = models.JSONField(default=list)
    faulty = models.JSONField(default=list)
    unjudged = models.JSONField(default=dict, help_text="Name and why.")
    sentence = models.TextField(blank=True)

    objects = NodeTestQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["cluster"], name="node_test_open", condition=models.Q(ended_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"test {self.pk} of {', '.join(self.nodes)}"


class PairTestJob(models.Model):
    """A test job: some nodes that run an all-gather together."""

    __test__ = False  # keeps pytest from collecting the class

    test = models.ForeignKey(NodeTest, on_delete=models.CASCADE, related_name="pair_tests")
    round = models.PositiveSmallIntegerField()
    wave = models.PositiveSmallIntegerField(default=0, help_text="Of round two: no node is in two jobs of a wave.")
    nodes = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    passed = models.BooleanField(null=True, help_text="Empty: nobody knows.")
    why = models.TextField(blank=True)

    class Meta:
        ordering = ["round", "wave", "id"]
        constraints = [models.UniqueConstraint(fields=["test", "round", "nodes"], name="one_pair_test_per_round")]

    def __str__(self) -> str:
        return " + ".join(self.nodes)

    @property
    def key(self) -> str:
        return f"world.{self.pk}.{int(self.created_at.timestamp())}"
