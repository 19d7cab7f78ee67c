"""Keeps the status of pod disruption budgets: healthy pods, needed pods, and evictions that are allowed. Pure.

`maxUnavailable` and percentages need the number of pods that the owners want. For an owner without a scale, such as a
ConfigMap, this is not known, and no eviction is allowed.
"""

from __future__ import annotations

from scheduling.simulation.kubernetes.api.eviction import budget_counts, needs_expected_pods, selects
from scheduling.simulation.kubernetes.api.resources import BUDGETS, PODS
from scheduling.simulation.kubernetes.api.writing import FINAL_PHASES
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    controller_of,
    is_being_deleted,
    name_of,
    uid_of,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.store import ObjectChange

from .base import Controller

WITHOUT_SCALE = frozenset({"configmaps"})


class BudgetController(Controller):
    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == BUDGETS:
            self.enqueue(change.key)
        elif change.key.resource == PODS:
            for found in self.plane.store.objects(BUDGETS, change.key.namespace):
                if selects(found.object, change.stored.object):
                    self.enqueue(ObjectKey(BUDGETS, change.key.namespace, name_of(found.object)))

    def reconcile(self, key: ObjectKey, now: float) -> None:
        budget = self.plane.store.get(key)
        if budget is None:
            return
        pods = [
            found.object
            for found in self.plane.store.objects(PODS, key.namespace)
            if selects(budget, found.object) and value_at(found.object, "status", "phase") not in FINAL_PHASES
        ]
        expected = self._expected(pods)
        counts = budget_counts(budget, pods, expected or 0)
        gone = {name_of(pod) for pod in pods if is_being_deleted(pod)}
        present = {name_of(pod) for pod in pods} - gone
        disrupted = {
            name: at for name, at in value_at(budget, "status", "disruptedPods", default={}).items() if name in present
        }
        is_known = expected is not None or not needs_expected_pods(budget)
        allowed = max(counts.allowed - len(disrupted), 0) if is_known else 0
        self.plane.writer.patch_status(
            key,
            {
                "currentHealthy": counts.healthy,
                "desiredHealthy": counts.desired,
                "expectedPods": counts.expected,
                "disruptionsAllowed": allowed,
                "disruptedPods": disrupted or None,
                "observedGeneration": budget["metadata"].get("generation", 1),
                "conditions": self._conditions(budget, allowed, now, is_known=is_known),
            },
        )

    def _conditions(self, budget: JsonObject, allowed: int, now: float, *, is_known: bool) -> list[JsonObject]:
        reason = ("SufficientPods" if allowed else "InsufficientPods") if is_known else "SyncFailed"
        known = value_at(budget, "status", "conditions", default=[])
        return with_condition(
            known, "DisruptionAllowed", "True" if allowed else "False", now, reason=reason, message=""
        )

    def _expected(self, pods: list[JsonObject]) -> int | None:
        """What the owners of the pods want to run; pods without an owner count themselves. None if it is not known."""
        owners: dict[str, int] = {}
        alone = 0
        for pod in pods:
            owner = controller_of(pod)
            if owner is None:
                alone += 1
            elif (scale := self._scale(owner, pod)) is None:
                return None
            else:
                owners[str(owner.get("uid"))] = max(scale, owners.get(str(owner.get("uid")), 0))
        return alone + sum(owners.values())

    def _scale(self, owner: JsonObject, pod: JsonObject) -> int | None:
        resource = self.plane.api.of_kind(owner.get("apiVersion"), owner.get("kind"))
        if resource is None:
            return None
        found = self.plane.store.get(ObjectKey(resource.id, str(pod["metadata"]["namespace"]), str(owner.get("name"))))
        if found is None or not uid_of(found) or resource.id in WITHOUT_SCALE:
            return None
        return int(value_at(found, "spec", "parallelism", default=1))
