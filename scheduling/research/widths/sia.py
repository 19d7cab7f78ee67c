"""Sia (SOSP'23): the GPU type and the width of each job together, for the highest goodput of all jobs.

A job may get a power of two up to a whole node, or whole nodes, of one type. Its value there is its forecast goodput,
divided by its lowest one, to the power -0.5, so that small jobs count more. A job that would restart counts less, as in
Pollux, and a waiting job counts as 1.1. An integer program finds the smallest sum for the GPUs of each type; HiGHS
solves it. A job that is restarting keeps its GPUs. Jobs that keep type and width keep their places, if the others find
places beside them.

Differences: the authors' simulator rounds values to two digits, and moves a job between nodes of one type for free;
here that is a restart. Jobs with a width of their own or with pipelines are not built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.engine.settings import check_scipy
from scheduling.research.widths.placing import pack_places
from scheduling.research.widths.values import Floats, Ints, Places, WidthJob, WidthPolicy, WidthView, width

FAIRNESS = -0.5
WAITING_COST = 1.1
TOLERANCE = 1e-4  # of the smallest sum


class GoodputByType(WidthPolicy):
    name = "sia"

    def places(self, view: WidthView) -> dict[int, Places]:
        return self.places_by_type([view])[0]

    def places_by_type(self, views: Sequence[WidthView]) -> list[dict[int, Places]]:
        options = [option for number, view in enumerate(views) for option in options_of(number, view)]
        jobs = list(zip(*(view.jobs for view in views), strict=True))
        choices = [choice for at, job in enumerate(jobs) for choice in choices_of(at, job, views, options)]
        widths: list[dict[int, int]] = [{} for _ in views]
        for choice in cheapest(choices, [view.gpus for view in views]):
            widths[choice.option.gpu_type][jobs[choice.job][0].number] = choice.option.gpus
        return [pack_places(view, wide) for view, wide in zip(views, widths, strict=True)]


@dataclass(frozen=True)
class Option:
    """GPUs of one type that a job could get."""

    gpu_type: int
    gpus: int
    nodes: int


@dataclass(frozen=True)
class Choice:
    job: int  # position
    option: Option
    cost: float
    is_fixed: bool  # the job keeps it


def options_of(gpu_type: int, view: WidthView) -> list[Option]:
    parts = [2**power for power in range(view.node_gpus.bit_length()) if 2**power < view.node_gpus]
    whole = range(view.node_gpus, view.gpus + 1, view.node_gpus)
    return [Option(gpu_type, gpus, view.fewest_nodes(gpus)) for gpus in (*parts, *whole)]


def choices_of(
    at: int, by_type: tuple[WidthJob, ...], views: Sequence[WidthView], options: list[Option]
) -> list[Choice]:
    """The options that cost less than waiting. A job that is restarting has only one."""
    present = next(((number, width(job.places)) for number, job in enumerate(by_type) if job.places), None)
    is_present = [(option.gpu_type, option.gpus) == present for option in options]
    speeds = np.concatenate([_speeds(job, options, number) for number, job in enumerate(by_type)])
    costs = _costs(speeds, is_present, by_type[0] if present else None)
    if by_type[0].is_restarting:
        return [Choice(at, option, 0.0, True) for option, keeps in zip(options, is_present, strict=True) if keeps]
    found = zip(options, costs.tolist(), strict=True)
    return [Choice(at, option, cost, False) for option, cost in found if cost < WAITING_COST]


def _speeds(job: WidthJob, options: list[Option], gpu_type: int) -> Floats:
    """The forecast goodput of each option of this type; 0 where the job is too narrow."""
    own = [option for option in options if option.gpu_type == gpu_type]
    gpus: Ints = np.array([option.gpus for option in own])
    nodes: Ints = np.array([option.nodes for option in own])
    return np.where(gpus <= job.widest, job.forecast.speeds(gpus, nodes), 0.0)


def _costs(speeds: Floats, is_present: list[bool], running: WidthJob | None) -> Floats:
    lowest = speeds[speeds > 0].min(initial=np.inf)
    values = speeds / lowest
    if running and running.age_s >= running.restart_s:
        values = np.where(is_present, values, values * running.useful_part)
    with np.errstate(divide="ignore"):
        costs: Floats = values**FAIRNESS
    return costs


def cheapest(choices: list[Choice], gpus: list[int]) -> list[Choice]:
    """At most one choice for each job, with at most so many GPUs of each type, at the smallest sum of costs."""
    if not choices:
        return []
    check_scipy("Policies with integer programs")
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    columns = np.arange(len(choices))
    jobs = np.unique([choice.job for choice in choices], return_inverse=True)[1]
    types = np.array([choice.option.gpu_type for choice in choices])
    taken = np.array([choice.option.gpus for choice in choices], float)
    once = csr_array((np.ones(len(choices)), (jobs, columns)))
    by_type = csr_array((taken, (types, columns)), shape=(len(gpus), len(choices)))
    solution = milp(
        np.array([choice.cost - WAITING_COST for choice in choices]),
        constraints=[LinearConstraint(once, ub=1.0), LinearConstraint(by_type, ub=np.array(gpus, float))],
        integrality=np.ones(len(choices)),
        bounds=Bounds(np.array([float(choice.is_fixed) for choice in choices]), 1.0),
        options={"mip_rel_gap": TOLERANCE},
    )
    if solution.x is None:
        raise ArithmeticError(f"HiGHS found no widths: {solution.message}")
    return [choice for choice, chosen in zip(choices, solution.x, strict=True) if chosen > 0.5]
