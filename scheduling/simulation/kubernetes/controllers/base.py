"""What all controllers share: a queue of objects to look at, and access to the API. Pure.

Controllers are level-triggered: a change only names an object, and the controller compares what is with what should be.
Looking twice changes nothing, and after a restart every object is looked at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.event_queue import EventQueue
from scheduling.simulation.kubernetes.api.served import ServedApi
from scheduling.simulation.kubernetes.api.writing import ObjectWriter
from scheduling.simulation.kubernetes.objects import ObjectKey
from scheduling.simulation.kubernetes.store import ObjectChange, ObjectStore
from scheduling.simulation.kubernetes.values import ClusterTiming

from .event_recorder import EventRecorder
from .indexes import PodIndex


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """What a controller works with."""

    store: ObjectStore
    writer: ObjectWriter
    agenda: EventQueue
    events: EventRecorder
    pods: PodIndex
    timing: ClusterTiming
    api: ServedApi


class Controller:
    """One control loop. Subclasses say which changes concern them and how to bring one object into order."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._queue: dict[ObjectKey, None] = {}

    def observe(self, change: ObjectChange) -> None:
        """Queue the objects that a change concerns."""
        raise NotImplementedError

    def reconcile(self, key: ObjectKey, now: float) -> None:
        """Bring one object into order."""
        raise NotImplementedError

    def enqueue(self, key: ObjectKey) -> None:
        self._queue[key] = None

    @property
    def has_work(self) -> bool:
        return bool(self._queue)

    def work(self, now: float) -> None:
        queue, self._queue = self._queue, {}
        for key in queue:
            self.reconcile(key, now)

    def schedule(self, at: float, key: ObjectKey) -> None:
        """Look at the object again at this time."""
        self.plane.agenda.at(at, lambda key, now: self.enqueue(key), key)
