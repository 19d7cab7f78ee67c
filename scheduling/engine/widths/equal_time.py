"""Gandiva-Fair (EuroSys'20) on GPUs of one type: all jobs get the same time, whatever their width."""

from __future__ import annotations

from scheduling.engine.widths.turns import TakeTurns, equal_part
from scheduling.engine.widths.values import WidthView


class EqualTime(TakeTurns):
    name = "gandiva-fair"

    def fractions(self, view: WidthView) -> dict[int, float]:
        return {job.number: equal_part(view) for job in view.jobs}
