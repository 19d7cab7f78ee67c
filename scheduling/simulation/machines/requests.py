"""Requests that simulated clusters of all kinds accept beside the API that they simulate. Pure.

Bodies are not trusted: what cannot be parsed raises `InvalidSimulatorRequest`, never another exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmeweb.common.errors import InvalidInput

from .clocks import MAX_CLOCK_MHZ, MIN_CLOCK_MHZ
from .faults import ClusterFault
from .scripts.play import check_hints

MAX_PLANS = 1000
PLAN_VARIABLES = frozenset({"SIM_DURATION_S", "SIM_END", "SIM_LOSS"})


class InvalidSimulatorRequest(Exception):
    """A request that cannot be parsed: a sentence, and the location."""

    def __init__(self, words: str, where: str) -> None:
        super().__init__(f"{words}: {where}")
        self.words, self.where = words, where


def parse_clocks(body: object) -> dict[str, int | None]:
    """Parse `{"clocks": {"seren-003": 1110, "seren-004": null}}`: MHz by node; null is the highest clock."""
    clocks = _object_field(body, "clocks")
    for name, mhz in clocks.items():
        if mhz is not None and not (type(mhz) is int and MIN_CLOCK_MHZ <= mhz <= MAX_CLOCK_MHZ):
            words = f"clocks: {mhz!r:.40} of {name:.80} is not a clock from {MIN_CLOCK_MHZ} to {MAX_CLOCK_MHZ} MHz"
            raise InvalidSimulatorRequest(words, "#/clocks/")
    return dict(clocks)


def parse_job_plans(body: object) -> dict[str, dict[str, str]]:
    """Parse `{"plans": {"KEY": {"SIM_DURATION_S": "600"}}}`; KEY is that of an attempt without its number."""
    plans = _object_field(body, "plans")
    if not 0 < len(plans) <= MAX_PLANS:
        raise InvalidSimulatorRequest(f"plans: {len(plans)} plans, not 1 to {MAX_PLANS}", "#/plans/")
    return {key: _parse_job_plan(plan, f"#/plans/{key:.40}/") for key, plan in plans.items()}


def _parse_job_plan(plan: object, where: str) -> dict[str, str]:
    if not isinstance(plan, Mapping) or not all(isinstance(value, str) for value in plan.values()):
        raise InvalidSimulatorRequest("a plan is an object with texts", where)
    if unknown := sorted(set(plan) - PLAN_VARIABLES):
        words = f"{unknown[0]!r:.40} is not one of {', '.join(sorted(PLAN_VARIABLES))}"
        raise InvalidSimulatorRequest(words, where)
    try:
        check_hints(plan)
    except InvalidInput as error:
        raise InvalidSimulatorRequest(str(error), where) from None
    return dict(plan)


def fault_body(fault: ClusterFault) -> dict[str, Any]:
    place = {"node": fault.node, "gpu": fault.gpu if fault.gpu >= 0 else None}
    return {
        "number": fault.number,
        "kind": str(fault.kind),
        "at": fault.at,
        "until": fault.until,
        **place,
        "jobs": list(fault.jobs),
    }


def _object_field(body: object, name: str) -> Mapping[str, Any]:
    value = body.get(name) if isinstance(body, Mapping) else None
    if not isinstance(value, Mapping):
        raise InvalidSimulatorRequest(f"{name}: an object is required", f"#/{name}/")
    return value
