"""The only code that enters a cluster and changes how it is reached, with its Event. How it decides: policy_actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from acmeweb import live
from jobs import journal
from jobs.journal import Author
from jobs.models import Cluster
from jobs.wishes import want_turn


class ClusterError(Exception):
    """Nothing was changed; the message is a sentence without its full stop."""


@transaction.atomic
def add(name: str, columns: Mapping[str, Any], *, author: Author, why: str = "") -> Cluster:
    try:
        with transaction.atomic():
            row = Cluster.objects.create(name=name, **columns)
    except IntegrityError:
        raise ClusterError(f"there is a cluster {name} already") from None
    told = {column: value for column, value in columns.items() if value}
    journal.of_cluster("cluster.added", author, row, why=why, detail={"columns": told}).save()
    _told(row)
    return row


@transaction.atomic
def change(row: Cluster, columns: Mapping[str, Any], *, author: Author, why: str = "") -> list[str]:
    """The names of the columns that are another now. Those read before are expected to stand still."""
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if not changed:
        raise ClusterError(f"{row} is reached so already")
    before = {name: getattr(row, name) for name in changed}
    if not Cluster.objects.filter(pk=row.pk, **before).update(**changed):
        raise ClusterError(f"somebody changed {row} in the meantime; look again")
    detail = {"changes": [[name, before[name], value] for name, value in changed.items()]}
    journal.of_cluster("cluster.changed", author, row, why=why, detail=detail).save()
    _told(row)
    return sorted(changed)


def _told(row: Cluster) -> None:
    want_turn(row.pk)
    live.changed("queue")
    live.changed("nodes")
