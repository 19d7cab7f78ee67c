"""First in, first out, strict and skipping.

`fifo` is the baseline of every paper: the first job that does not fit holds back all behind it. `fifo-skip` looks
further down the queue, as Alibaba's PAI simulator does, and reserves nothing: a wide job waits until enough GPUs
happen to be free.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.skipping import skipping_turn
from scheduling.engine.turns.strict import strict_turn


class FifoRules(PolicyRules):
    name = "fifo"
    one_line = True

    def turn(self, engine: Engine, now: float) -> None:
        strict_turn(engine, now)


class FifoSkipRules(PolicyRules):
    name = "fifo-skip"

    def turn(self, engine: Engine, now: float) -> None:
        skipping_turn(engine, now)
