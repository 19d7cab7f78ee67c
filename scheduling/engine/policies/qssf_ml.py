"""Quasi-shortest service first with the full predictor of Helios (SC'21): the rolling estimate, blended with trees.

The trees are trained on jobs that have ended, as in the paper; `blending` lists the differences from it. On a live
cluster a loop trains them (`scheduling.loops.run_time_trees`); until then, the order is that of `qssf`.
"""

from __future__ import annotations

from scheduling.engine.blending import BlendedPredictor, check_lightgbm
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.predicting import Predictor


class QssfMlRules(QssfRules):
    """`qssf` with the blended predictor."""

    name = "qssf-ml"
    uses_trees = True

    @classmethod
    def check_libraries(cls) -> None:
        check_lightgbm()

    def new_predictor(self) -> Predictor:
        return BlendedPredictor()
