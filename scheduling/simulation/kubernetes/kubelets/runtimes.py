"""All pods that kubelets know, by object, uid, node and gang. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

from scheduling.simulation.kubernetes.api.quantities import requests_of
from scheduling.simulation.kubernetes.objects import JsonObject, ObjectKey
from scheduling.simulation.kubernetes.values import PodRuntime, PodStep

from .gangs import Gang

NOTHING = Decimal(0)


class PodRuntimes:
    def __init__(
        self,
        runtimes: Iterable[PodRuntime],
        pod_of: Callable[[ObjectKey], JsonObject | None],
        gang_of: Callable[[JsonObject], Gang],
    ) -> None:
        self._pod_of, self.gang_of = pod_of, gang_of
        self._of_key: dict[ObjectKey, PodRuntime] = {}
        self._key_of_uid: dict[str, ObjectKey] = {}
        self._on_node: dict[str, dict[ObjectKey, None]] = {}
        self._in_gang: dict[str, dict[ObjectKey, None]] = {}
        self._gang_of: dict[str, str] = {}  # by uid
        self._requests: dict[str, Mapping[str, Decimal]] = {}  # by uid, of pods that hold resources
        self._used: dict[str, dict[str, Decimal]] = {}
        self._changed: dict[str, None] = {}
        for runtime in runtimes:
            self.set(runtime)
        self._changed.clear()

    def get(self, key: ObjectKey) -> PodRuntime | None:
        return self._of_key.get(key)

    def of_uid(self, uid: str) -> PodRuntime | None:
        key = self._key_of_uid.get(uid)
        return None if key is None else self._of_key[key]

    def all(self) -> Iterable[PodRuntime]:
        return self._of_key.values()

    def on_node(self, node: str) -> list[PodRuntime]:
        return [self._of_key[key] for key in self._on_node.get(node, ())]

    def used(self, node: str) -> Mapping[str, Decimal]:
        """What the pods on a node hold."""
        return self._used.get(node, {})

    def waiting_in(self, gang: str) -> list[PodRuntime]:
        """The pods of a gang whose containers run and whose program has not begun."""
        members = (self._of_key[key] for key in self._in_gang.get(gang, ()))
        return [one for one in members if one.step == PodStep.RUNNING and not one.execution and not one.next_at]

    def set(self, runtime: PodRuntime) -> PodRuntime:
        if runtime.uid not in self._key_of_uid:
            self._add(runtime)
        self._of_key[runtime.key] = runtime
        self._changed[runtime.uid] = None
        self._use(runtime)
        return runtime

    def drop(self, runtime: PodRuntime) -> None:
        self._release(runtime)
        del self._of_key[runtime.key], self._key_of_uid[runtime.uid]
        self._on_node[runtime.node].pop(runtime.key)
        if gang := self._gang_of.pop(runtime.uid, ""):
            self._in_gang[gang].pop(runtime.key, None)
            if not self._in_gang[gang]:
                del self._in_gang[gang]
        self._changed[runtime.uid] = None

    def take_changes(self) -> dict[str, PodRuntime | None]:
        changed, self._changed = self._changed, {}
        return {uid: self.of_uid(uid) for uid in changed}

    def _add(self, runtime: PodRuntime) -> None:
        self._key_of_uid[runtime.uid] = runtime.key
        self._on_node.setdefault(runtime.node, {})[runtime.key] = None
        if (pod := self._pod_of(runtime.key)) is not None:
            self._gang_of[runtime.uid] = gang = self.gang_of(pod).key
            self._in_gang.setdefault(gang, {})[runtime.key] = None

    def _use(self, runtime: PodRuntime) -> None:
        if not runtime.holds_resources:
            self._release(runtime)
        elif runtime.uid not in self._requests and (pod := self._pod_of(runtime.key)) is not None:
            self._requests[runtime.uid] = requests_of(pod)
            self._count(runtime.node, self._requests[runtime.uid], 1)

    def _release(self, runtime: PodRuntime) -> None:
        if (amounts := self._requests.pop(runtime.uid, None)) is not None:
            self._count(runtime.node, amounts, -1)

    def _count(self, node: str, amounts: Mapping[str, Decimal], sign: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, NOTHING) + sign * amount
