"""Care: carry repaired nodes through their burn-in and back to work.

Who is eligible   nodes in burn-in, on clusters Acme drives.
What a turn does  the next step of each that is due: another test, or, when its time is over and its last test passed,
                  its return. What a test or a sign says of it is heard where that is written down.
Failure story     Each step is one transaction that reads the node again under its lock: killed anywhere or run twice,
                  there is one open test and one return. Who resumes the node meanwhile has decided, and the burn-in is
                  over. A cluster that is away keeps the test waiting, and the node closed.
"""

from __future__ import annotations

import logging
from datetime import datetime

from jobs.actions import nodes as node_actions
from jobs.actions.journal import SCHEDULER
from jobs.actions.nodes import NodeError
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.models import ClusterMode, Node, RepairStage

log = logging.getLogger(__name__)


def burn_in_once(now: datetime) -> int:
    """How many steps were made."""
    done = 0
    for node in Node.objects.filter(care=RepairStage.BURN_IN, cluster__mode=ClusterMode.DRIVE).select_related(
        "cluster"
    ):
        with skip_row_on_error(node):
            done += _advance_burn_in(node, now)
    return done


def _advance_burn_in(node: Node, now: datetime) -> bool:
    try:
        moved = node_actions.continue_burn_in(node, author=SCHEDULER, now=now)
    except NodeError as error:
        log.info("%s stays in burn-in: %s", node, error)
        return False
    if moved:
        request_turn(node.cluster_id)
    return moved
