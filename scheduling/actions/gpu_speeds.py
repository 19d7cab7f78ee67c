"""All changes to given speeds of GPU models, with their Events. They take effect in the next turn, for waiting jobs."""

from __future__ import annotations

from django.db import IntegrityError, transaction

from acmeweb.common import live
from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import Cluster, Node
from scheduling.engine.gpu_speeds import MAX_SPEED, MIN_SPEED
from scheduling.models import GpuSpeed
from scheduling.models.gpu_speed import MAX_PATTERN_LENGTH

MAX_ROWS = 2_000  # of one cluster: a turn reads all of them
MAX_NAMED_MODELS = 10


@transaction.atomic
def add(cluster: Cluster, *, pattern: str, gpu_model: str, speed: float, author: Author, why: str = "") -> GpuSpeed:
    """Add a speed. Raise InvalidField, or StateConflict if the pattern has one on this model."""
    rows = GpuSpeed.objects.filter(cluster=cluster)
    if rows.count() >= MAX_ROWS:
        raise StateConflict(f"{cluster} has {MAX_ROWS:,} speeds already. Remove some, or use patterns.")
    _check_pattern(pattern)
    _check_model(cluster, gpu_model)
    row = GpuSpeed(cluster=cluster, pattern=pattern, gpu_model=gpu_model, speed=_checked_speed(speed))
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:
        raise StateConflict(f"{pattern} already has a speed on {gpu_model}. Change that one.") from None
    _record(row, None, row.speed, author, why)
    return row


@transaction.atomic
def change(row: GpuSpeed, *, speed: float, author: Author, why: str = "") -> None:
    """Change the speed, unless it was changed since `row` was read."""
    before, row.speed = row.speed, _checked_speed(speed)
    if row.speed == before:
        raise StateConflict(f"The speed of {row.pattern} on {row.gpu_model} is {before:g} already.")
    if not GpuSpeed.objects.filter(pk=row.pk, speed=before).update(speed=row.speed):
        raise StateConflict(f"The speed of {row.pattern} on {row.gpu_model} was changed in the meantime. Try again.")
    _record(row, before, row.speed, author, why)


@transaction.atomic
def remove(row: GpuSpeed, *, author: Author, why: str = "") -> None:
    deleted, _ = GpuSpeed.objects.filter(pk=row.pk).delete()
    if not deleted:
        raise StateConflict(f"The speed of {row.pattern} on {row.gpu_model} was removed already.")
    _record(row, row.speed, None, author, why)


def _check_pattern(pattern: str) -> None:
    if not pattern or len(pattern) > MAX_PATTERN_LENGTH or not pattern.isprintable():
        raise InvalidField("pattern", f"must be a job name of 1 to {MAX_PATTERN_LENGTH} characters, such as llama-*")
    if "[" in pattern:
        raise InvalidField("pattern", "must not contain [; use * for any text and ? for one character")


def _check_model(cluster: Cluster, gpu_model: str) -> None:
    """Refuse a model that no node has, which is most likely a typing error."""
    nodes = Node.objects.filter(cluster=cluster).exclude(gpu_model="").order_by("gpu_model")
    models = list(nodes.values_list("gpu_model", flat=True).distinct()[: MAX_NAMED_MODELS + 1])
    if gpu_model in models or nodes.filter(gpu_model=gpu_model).exists():
        return
    more = " and more" if len(models) > MAX_NAMED_MODELS else ""
    known = f"there are {', '.join(models[:MAX_NAMED_MODELS])}{more}" if models else "its nodes have no GPU model"
    raise InvalidField("gpu_model", f"no node of {cluster} has {gpu_model[:40]!r}; {known}")


def _checked_speed(speed: float) -> float:
    if not MIN_SPEED <= speed <= MAX_SPEED:  # false for NaN too
        raise InvalidField("speed", f"{speed:g} is not between {MIN_SPEED:g} and {MAX_SPEED:g}")
    return speed


def _record(row: GpuSpeed, before: float | None, after: float | None, author: Author, why: str) -> None:
    texts = [None if speed is None else f"{speed:g}" for speed in (before, after)]
    detail = {"changes": [[f"speed of {row.pattern} on {row.gpu_model}", *texts]]}
    journal.cluster_event("cluster.changed", author, row.cluster, why=why, detail=detail).save()
    request_turn(row.cluster_id)
    live.publish_on_commit("queue")
