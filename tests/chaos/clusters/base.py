"""What a storm does with a cluster of any kind: kill its server, damage its responses, and read what it really ran."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from pathlib import Path
from random import Random
from typing import ClassVar, Self

from tests.acceptance.instance import Instance
from tests.chaos.effects import FILE_NAME, Effect, read_effects
from tests.chaos.people import Caller
from tests.chaos.proxy import Proxy


class StormCluster(ABC):
    """One simulated cluster. The installations reach it through `proxy` or directly; the storm only directly."""

    name: ClassVar[str]  # of its row
    proxy: Proxy
    # Keys of attempts that the storm has stopped in the name of somebody else
    stopped_by_others: Collection[str] = ()
    # Keys of attempts on nodes that went on running while the cluster could not see them
    out_of_sight: Collection[str] = ()

    @classmethod
    @abstractmethod
    def start(cls, instance: Instance, seed: int, home: Path) -> Self:
        """Start the cluster, unless the instance has done that. `home` is empty and readable by all programs."""

    @property
    @abstractmethod
    def state(self) -> Path:
        """The directory in which its server stores its state and its effects."""

    @abstractmethod
    def join(self, instance: Instance, caller: Caller, over: threading.Event, *, direct: bool) -> None:
        """Make an installation drive this cluster, through the proxy or directly."""

    @abstractmethod
    def kill(self, dice: Random) -> bool:
        """kill -9 of its server, which is started again. False if it does not run at the moment."""

    def act_until(self, over: threading.Event) -> None:  # noqa: B027 - most clusters have no other users
        """Do what other users of the cluster do, until the storm is over."""

    def violations(self) -> Iterable[str]:
        """What only this kind of cluster can say about itself after the storm."""
        return ()

    def effects(self) -> list[Effect]:
        return read_effects(self.state / FILE_NAME)

    def close(self) -> None:
        self.proxy.close()


def all_effects(clusters: Iterable[StormCluster]) -> list[Effect]:
    """The effects of all clusters; each job runs on only one of them."""
    return [effect for cluster in clusters for effect in cluster.effects()]
