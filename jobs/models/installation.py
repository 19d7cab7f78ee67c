"""The identity of this installation.

Several installations may use one cluster, and each must recognize its own jobs there.
"""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models.functions import Now

from jobs.core.public_id import ALPHABET

ID_LENGTH = 8


def new_installation_id() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))


class Installation(models.Model):
    """A single row. Its id is part of every key that is sent to a cluster, so it must not change while jobs run."""

    # With the check constraint below, this key allows only one row
    only = models.BooleanField(primary_key=True, default=True, editable=False)
    id_on_clusters = models.CharField(max_length=16, default=new_installation_id)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(only=True), name="one_installation")]

    def __str__(self) -> str:
        return self.id_on_clusters

    @classmethod
    def current_id(cls) -> str:
        """Return the id of this installation and create it on first use."""
        stored_id = cls.objects.values_list("id_on_clusters", flat=True).first()
        return stored_id or cls.objects.get_or_create(only=True)[0].id_on_clusters
