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

from jobs import node_actions
from jobs.journal import SCHEDULER
from jobs.models import Care, Mode, Node
from jobs.node_actions import NodeError
from jobs.wishes import want_turn
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)


def care_once(now: datetime) -> int:
    """How many steps were made."""
    done = 0
    for node in Node.objects.filter(care=Care.BURN_IN, cluster__mode=Mode.DRIVE).select_related("cluster"):
        with one_row(node):
            done += _burnt_on(node, now)
    return done


def _burnt_on(node: Node, now: datetime) -> bool:
    try:
        moved = node_actions.burn_on(node, author=SCHEDULER, now=now)
    except NodeError as error:
        log.info("%s stays in burn-in: %s", node, error)
        return False
    if moved:
        want_turn(node.cluster_id)
    return moved
