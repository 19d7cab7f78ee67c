"""Disruption budgets: how many pods may be evicted now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    condition_of,
    is_being_deleted,
    labels_of,
    name_of,
    namespace_of,
    timestamp,
    value_at,
)
from scheduling.simulation.kubernetes.store import ObjectStore

from .errors import ApiError, too_many_requests
from .resources import BUDGETS
from .selectors import matches_all, parse_label_selector

FINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class BudgetCounts:
    healthy: int
    desired: int
    expected: int

    @property
    def allowed(self) -> int:
        return max(self.healthy - self.desired, 0)


def selects(budget: JsonObject, pod: JsonObject) -> bool:
    requirements = parse_label_selector(value_at(budget, "spec", "selector"))
    return namespace_of(budget) == namespace_of(pod) and matches_all(requirements, labels_of(pod))


def budget_counts(budget: JsonObject, pods: Iterable[JsonObject], expected: int) -> BudgetCounts:
    """Healthy and needed pods. `expected` is what the controllers of the pods want to run."""
    healthy = sum(is_ready(pod) and not is_being_deleted(pod) for pod in pods)
    spec = budget.get("spec") or {}
    if (most := spec.get("maxUnavailable")) is not None:
        desired = max(expected - _scaled(most, expected), 0)
    else:
        desired = _scaled(spec.get("minAvailable", 1), expected)
    return BudgetCounts(healthy=healthy, desired=desired, expected=expected)


def needs_expected_pods(budget: JsonObject) -> bool:
    spec = budget.get("spec") or {}
    return spec.get("maxUnavailable") is not None or isinstance(spec.get("minAvailable"), str)


def _scaled(value: Any, total: int) -> int:
    """A count, or a percentage of the total, rounded up."""
    return ceil(total * int(value[:-1]) / 100) if isinstance(value, str) else int(value)


def is_ready(pod: JsonObject) -> bool:
    return (condition_of(pod, "Ready") or {}).get("status") == "True"


def check_eviction(store: ObjectStore, pod: JsonObject, now: float) -> dict[ObjectKey, JsonObject]:
    """The budgets with one disruption less. Raises ApiError if one has none left, or more than one covers the pod."""
    if value_at(pod, "status", "phase") in (*FINAL_PHASES, "Pending") or is_being_deleted(pod):
        return {}
    budgets = [found.object for found in store.objects(BUDGETS, namespace_of(pod)) if selects(found.object, pod)]
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(500, "InternalError", message)
    return {_key(budget): _with_disruption(budget, pod, now) for budget in budgets}


def _with_disruption(budget: JsonObject, pod: JsonObject, now: float) -> JsonObject:
    status = budget.get("status") or {}
    allowed = status.get("disruptionsAllowed", 0)
    if not is_ready(pod) and status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0:
        return budget  # a pod that is not healthy does not count
    if allowed <= 0:
        raise too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            [{"reason": "DisruptionBudget", "message": _budget_text(budget)}],
        )
    disrupted = {**status.get("disruptedPods", {}), name_of(pod): timestamp(now)}
    return {**budget, "status": {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}


def _budget_text(budget: JsonObject) -> str:
    status = budget.get("status") or {}
    return (
        f"The disruption budget {name_of(budget)} needs {status.get('desiredHealthy', 0)} healthy pods and has"
        f" {status.get('currentHealthy', 0)} currently"
    )


def _key(budget: JsonObject) -> ObjectKey:
    return ObjectKey(BUDGETS, namespace_of(budget), name_of(budget))
