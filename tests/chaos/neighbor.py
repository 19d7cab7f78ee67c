"""A second installation of Acme that uses the same clusters.

It has its own database, workers and web server, and connects to the clusters directly. Both installations submit jobs;
neither may cancel jobs of the other, nor allocate GPUs on which a job of the other runs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from tests.acceptance.instance import Instance
from tests.chaos import judge
from tests.chaos.clusters.base import StormCluster, all_effects
from tests.chaos.people import Caller, People
from tests.chaos.record import Record
from tests.chaos.submitter import Submitter, neighbor
from tests.patience import until

MOST_UNFINISHED = 40
BATCH = 10
UNENDED = "SELECT public_id FROM jobs_job WHERE ended_at IS NULL"


def clear(caller: Caller, instance: Instance, over: threading.Event) -> None:
    """Stop the demo's submissions and cancel its campaigns and jobs, which would occupy the cluster for minutes."""
    instance.halt("demo")
    # Before its first poll of the cluster an instance rejects jobs, because it knows no node sizes
    until(lambda: instance.sql("SELECT 1 FROM jobs_node LIMIT 1").fetchone(), 120, "no node was reported")
    for (campaign,) in instance.sql("SELECT public_id FROM scheduling_campaign WHERE ended_at IS NULL").fetchall():
        caller.ask(f"campaigns/{campaign}/cancel/", {}, key=f"clear-{campaign}", over=over)
    if demo_jobs := [job for (job,) in instance.sql(UNENDED).fetchall()]:
        caller.ask("jobs/actions/", {"action": "cancel", "ids": demo_jobs}, key=f"clear-{instance.port}", over=over)


def all_clusters_have_nodes(instance: Instance) -> bool:
    """Whether Acme accepts jobs for each cluster: it refuses them until the cluster has reported a node."""
    empty = "SELECT 1 FROM jobs_cluster c WHERE NOT EXISTS (SELECT FROM jobs_node n WHERE n.cluster_id = c.id)"
    return instance.sql(empty).rowcount == 0


class Neighbor:
    def __init__(self, clusters: Sequence[StormCluster], var: Path, seed: int) -> None:
        self.clusters, self.seed = clusters, seed
        self.instance = Instance(var)
        self.record = Record(self.instance)
        self.submitter: Submitter | None = None
        self.people: People | None = None

    def run_until(self, over: threading.Event) -> None:
        """Start, join the cluster, and submit jobs until the storm is over."""
        access = self.instance.place.var.parent.parent / "access"
        self.instance.start(ACME_WEB_PROCESSES="1", ACME_TOKEN_DIRS=str(access)).ready()
        caller = Caller(self.instance)
        clear(caller, self.instance, over)
        until(lambda: over.is_set() or not self.instance.sql(UNENDED).fetchone(), what="jobs of the demo do not end")
        for cluster in self.clusters:
            cluster.join(self.instance, caller, over, direct=True)
        until(lambda: over.is_set() or all_clusters_have_nodes(self.instance), what="every cluster has reported nodes")
        self.submitter = Submitter(
            caller,
            self.record,
            clusters=[cluster.name for cluster in self.clusters],
            draw=neighbor,
            seed=f"{self.seed}",
            most_unfinished=MOST_UNFINISHED,
            batch=BATCH,
        )
        effects, dice = partial(all_effects, self.clusters), Random(f"neighbors:{self.seed}")
        self.people = People(caller, self.record, effects, dice, recovery=False)
        watching = threading.Thread(target=self.submitter.watch_until, args=(over,))
        deciding = threading.Thread(target=self.people.decide_until, args=(over,))
        watching.start(), deciding.start()
        self.submitter.submit_until(over, most=2_500)
        watching.join(), deciding.join()

    @property
    def took_part(self) -> bool:
        return bool(self.submitter and self.submitter.accepted)

    def unfinished(self) -> set[str]:
        return self.record.unfinished(set(self.submitter.accepted)) if self.submitter else set()

    def violations(self, ours: judge.Evidence) -> Sequence[str]:
        """Violations in its own database, and of each installation against the other."""
        if self.submitter is None:
            return []
        theirs = self.record.evidence(
            self.submitter.accepted, self.submitter.final_once, self.submitter.withdrawn, list
        )
        own = {row.job for row in theirs.rows}
        theirs = replace(
            theirs,
            effects=[effect for effect in ours.effects if effect.job in own],
            stopped_by_others=ours.stopped_by_others,
            out_of_sight=ours.out_of_sight,
        )
        sentences = [*judge.violations(theirs), *judge.promised_to_both(theirs, ours, ours.effects)]
        sentences += judge.promised_to_both(ours, theirs, ours.effects)
        return [f"second installation: {sentence}" for sentence in sentences]

    def end(self) -> None:
        with suppress(OSError):
            self.instance.end()
