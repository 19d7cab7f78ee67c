"""What a campaign is expected to do: its line played forward with the priors as if they were true.

The plan is never followed to the letter. A free GPU asks the line, which knows what really happened; the plan is what a
person sees before, and what the outcome is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from scheduling.evaluation.line import Line, Slice, Task
from scheduling.evaluation.play import Outcome, Piece, Play, Trial
from scheduling.evaluation.work import Phases, Site

PieceOf = Callable[[Slice, Task], Piece]


class Pulled:
    """Trials that take from the line until nothing is left of their checkpoint."""

    def __init__(self, tasks: Sequence[Task], site: Site, piece_of: PieceOf) -> None:
        self._tasks = tasks
        self._line = Line(tasks, site)
        self._piece_of = piece_of

    def trial(self, node: int) -> Trial | None:
        checkpoint = self._line.checkpoint_for(node)
        if checkpoint is None:
            return None
        return Trial(checkpoint=checkpoint, more=partial(self._more, checkpoint))

    def learn(self, piece: Piece) -> None:
        assert isinstance(piece.handle, Slice)
        self._line.learn(piece.handle, piece.cost)

    def _more(self, checkpoint: int) -> Piece | None:
        taken = self._line.take(checkpoint)
        return self._piece_of(taken, self._tasks[taken.task]) if taken else None


def foresee(tasks: Sequence[Task], names: Sequence[str], site: Site, phases: Phases, *, chart: bool = False) -> Outcome:
    """`names` are those of the datasets. 500 checkpoints of 63 datasets take a few seconds."""

    def as_expected(taken: Slice, task: Task) -> Piece:
        cost = task.prior.times(taken.samples / task.samples)
        return Piece(name=names[task.dataset], cost=cost, handle=taken)

    return Play(site, phases, Pulled(tasks, site, as_expected), staged=True, off_gpu=True, chart=chart).run()
