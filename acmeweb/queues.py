"""The worker queues, the tasks of each, and how many processes serve each.

Each queue has its own processes, so work of one kind never waits for another kind: a ten-minute replay, a slow model
and a mail server that hangs each block only their own processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerQueue:
    name: str
    role: str  # which database timeouts apply, see acmeweb.common.env.ROLE_TIMEOUTS
    processes: int
    niceness: int = 0  # if the CPU is short, pages and turns come first
    tasks: tuple[str, ...]


WORKER_QUEUES = (
    # A cluster that hangs blocks one process until the call times out, so there are several
    WorkerQueue(name="turns", role="loops", processes=4, tasks=("scheduling.turns", "scheduling.turn")),
    WorkerQueue(
        name="watching",
        role="loops",
        processes=2,
        niceness=5,
        tasks=(
            "scheduling.accounts",
            "scheduling.campaigns",
            "scheduling.energy",
            "failures.burn_in",
            "scheduling.estimate",
            "scheduling.estimates",
            "scheduling.evaluation_rules",
            "failures.node_health",
            "scheduling.histories",
            "scheduling.history",
            "scheduling.ledger_periods",
            "scheduling.minutes",
            "scheduling.outcomes",
            "scheduling.unknown_outcomes",
            "scheduling.unknown_outcomes_of",
            "scheduling.outcomes_of",
            "scheduling.pod_logs",
            "scheduling.recover",
            "scheduling.sample",
            "scheduling.samples",
            "scheduling.simulations",
            "scheduling.sleep",
            "scheduling.sleeps",
            "failures.slow_steps",
            "scheduling.sweep",
            "scheduling.trainings",
            "failures.watch",
        ),
    ),
    WorkerQueue(
        name="diagnosis",
        role="loops",
        processes=2,
        niceness=5,
        tasks=("failures.diagnose", "scheduling.follow", "failures.sweep"),
    ),
    # A cluster whose logs hang blocks one process
    WorkerQueue(name="logs", role="loops", processes=2, niceness=5, tasks=("scheduling.pod_logs_of",)),
    # Telemetry or a site's command that hangs blocks one process, and tasks expire after 2 s
    WorkerQueue(name="power", role="loops", processes=4, tasks=("scheduling.power_cap", "scheduling.power_caps")),
    # Takes minutes, and no other work depends on it
    WorkerQueue(
        name="long",
        role="long",
        processes=2,
        niceness=10,
        tasks=("failures.consult", "failures.learn", "jobs.bulk_actions", "scheduling.simulation", "scheduling.train"),
    ),
    WorkerQueue(
        name="mail", role="loops", processes=1, niceness=5, tasks=("failures.notify", "scheduling.sleep_webhooks")
    ),
)

TASK_ROUTES = {task: {"queue": queue.name} for queue in WORKER_QUEUES for task in queue.tasks}
