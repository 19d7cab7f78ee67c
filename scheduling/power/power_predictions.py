"""The peak power per GPU that a job is expected to draw: the 99th percentile of what similar jobs drew. Pure.

Similar are jobs of the same user, name and kind, else of the same kind, if enough of them have ended. Without those it
is the limit of the GPU model. Watts are counted in classes, so a prediction is the upper end of a class.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from jobs.traces.trace import Floats, Ints
from scheduling.power.clock_curves import FULL_W

CLASS_W = 25
CLASSES = 40  # the last one contains everything above
MIN_SIMILAR = 20
PERCENTILE = 0.99
MAX_COUNTED = 2_000  # of a scope, in what is stored


def peak_scopes(user: str, name: str, kind: str) -> tuple[str, str]:
    """The keys of the jobs that are similar, the narrowest first."""
    return json.dumps([user, name, kind]), json.dumps([kind])


class PeakHistory:
    """The peaks of jobs that ended, by any key."""

    def __init__(self, counts: Mapping[str, Sequence[int]] | None = None) -> None:
        """`counts` are those of an earlier history."""
        self._counts: defaultdict[object, list[int]] = defaultdict(lambda: [0] * CLASSES)
        self._counts.update({key: list(found) for key, found in (counts or {}).items()})

    def add(self, keys: Iterable[object], watts: float) -> None:
        watts_class = min(CLASSES - 1, max(0, math.ceil(watts / CLASS_W) - 1))
        for key in keys:
            self._counts[key][watts_class] += 1

    def counts(self) -> dict[str, list[int]]:
        """The counts by key. With more than `MAX_COUNTED` jobs they are halved, so that newer jobs count more."""
        return {
            str(key): [(count + 1) // 2 for count in counts] if sum(counts) > MAX_COUNTED else counts
            for key, counts in self._counts.items()
        }

    def predicted_w(self, keys: Iterable[object], limit_w: float = FULL_W) -> float:
        """The percentile of the first key with enough jobs."""
        for key in keys:
            counts = self._counts.get(key)
            if counts is not None and (total := sum(counts)) >= MIN_SIMILAR:
                return _percentile_w(counts, math.ceil(PERCENTILE * total))
        return limit_w


def class_end_w(watts: float) -> float:
    """The upper end of the class of these watts."""
    return float(CLASS_W * max(1, math.ceil(watts / CLASS_W)))


def _percentile_w(counts: list[int], rank: int) -> float:
    watts_class = bisect_left(list(accumulate(counts)), rank)
    return float(CLASS_W * (watts_class + 1))


def predicted_peaks_w(peak_w: Floats, submit_s: Floats, runtime_s: Floats, similar: Ints, kinds: Ints) -> Floats:
    """A prediction per job at its submission, from jobs that had ended then if they did not wait. `similar` and `kinds`
    are codes; the jobs are in order of submission.
    """
    history, ended_s = PeakHistory(), submit_s + runtime_s
    order = np.argsort(ended_s, kind="stable").tolist()
    keys = [(("similar", one), ("kind", kind)) for one, kind in zip(similar.tolist(), kinds.tolist(), strict=True)]
    found, ended = np.empty(len(submit_s)), 0
    for row, now_s in enumerate(submit_s.tolist()):
        while ended_s[order[ended]] <= now_s and order[ended] != row:
            history.add(keys[order[ended]], float(peak_w[order[ended]]))
            ended += 1
        found[row] = history.predicted_w(keys[row])
    return found
