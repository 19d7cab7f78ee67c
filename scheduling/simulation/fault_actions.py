"""Injects faults into a simulated cluster, and writes an Event so that nobody takes the failure for a real one."""

from __future__ import annotations

from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.models import Cluster, Job, Node
from scheduling.simulation import client
from scheduling.simulation.client import SimulatorError


def inject_node_fault(node: Node, kind: str, *, author: Author) -> None:
    """Inject a fault into a node. Raises SimulatorError."""
    _require_simulated(node.cluster)
    client.inject_node_fault(node.cluster, kind, node.name)
    journal.node_event("node.fault_injected", author, node, why=_why(kind), detail={"kind": kind}).save()


def inject_job_fault(job: Job, kind: str, *, author: Author) -> None:
    """Inject a fault into the running attempt of a job. Raises SimulatorError."""
    _require_simulated(job.cluster)
    attempt = job.attempts.order_by("-number").first()
    if attempt is None or not attempt.backend_id:
        raise SimulatorError(f"The job {job.public_id} does not run.")
    client.inject_job_fault(job.cluster, kind, attempt)
    why, detail = _why(kind), {"kind": kind}
    journal.job_event("job.fault_injected", author, job, attempt=attempt, why=why, detail=detail).save()


def _require_simulated(cluster: Cluster) -> None:
    if not cluster.is_simulated:
        raise SimulatorError(f"The cluster {cluster} is not simulated.")


def _why(kind: str) -> str:
    return f"Fault injected on request: {kind}."
