"""First in, first out: strict, and with skipping.

`fifo` is the baseline of every paper: the first job that does not fit blocks all jobs behind it. `fifo-skip` looks
further down the queue, like Alibaba's PAI simulator, and reserves nothing: a wide job waits until enough GPUs happen to
be free.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.turns.skipping import skipping_turn
from scheduling.engine.turns.strict import strict_turn


class FifoRules(PolicyRules):
    """Strict order of submission."""

    name = "fifo"
    single_queue = True

    def turn(self, engine: Engine, now: float) -> None:
        strict_turn(engine, now)


class FifoSkipRules(PolicyRules):
    """Order of submission; jobs that do not fit are skipped."""

    name = "fifo-skip"

    def turn(self, engine: Engine, now: float) -> None:
        skipping_turn(engine, now)
