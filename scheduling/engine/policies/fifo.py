"""First in, first out, strict and skipping.

`fifo` is the baseline of every paper: the first job that does not fit holds back all behind it. `fifo-skip` looks
further down the queue, as Alibaba's PAI simulator does, and reserves nothing: a wide job waits until enough GPUs
happen to be free.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine
from scheduling.engine.rules import Rules
from scheduling.engine.turns.skipping import skipping
from scheduling.engine.turns.strict import strict


class Fifo(Rules):
    name = "fifo"
    one_line = True

    def turn(self, engine: Engine, now: float) -> None:
        strict(engine, now)


class FifoSkip(Rules):
    name = "fifo-skip"

    def turn(self, engine: Engine, now: float) -> None:
        skipping(engine, now)
