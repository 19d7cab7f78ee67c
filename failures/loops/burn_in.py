"""Burn-in: tests repaired nodes until they may accept jobs again.

Eligible rows     Nodes in burn-in on clusters that Acme controls.
What a turn does  Takes the next step of each node that is due: another test, or the return to service when the burn-in
                  time is over and the last test passed. Failed tests and anomalies are handled where they are recorded.
Failure story     Each step is one transaction that reads the node again under a lock, so a kill or a second run leaves
                  at most one open test and one return. If an operator resumes the node, the burn-in ends. While a
                  cluster is unreachable, the test waits and the node stays drained.
"""

from __future__ import annotations

import logging
from datetime import datetime

from acmeweb.common.errors import StateConflict
from jobs.actions import nodes as node_actions
from jobs.actions.journal import SCHEDULER
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.models import ClusterMode, Node, RepairStage

log = logging.getLogger(__name__)


def burn_in_once(now: datetime) -> int:
    """Take the next step of each node in burn-in that is due. Returns the number of steps."""
    done = 0
    for node in Node.objects.filter(repair_stage=RepairStage.BURN_IN, cluster__mode=ClusterMode.DRIVE).select_related(
        "cluster"
    ):
        with skip_row_on_error(node):
            done += _advance_burn_in(node, now)
    return done


def _advance_burn_in(node: Node, now: datetime) -> bool:
    try:
        moved = node_actions.continue_burn_in(node, author=SCHEDULER, now=now)
    except StateConflict as error:
        log.info("Node %s stays in burn-in: %s", node, error)
        return False
    if moved:
        request_turn(node.cluster_id)
    return moved
