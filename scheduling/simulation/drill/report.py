"""A drill's results as a JSON document and as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from scheduling.simulation.drill import figures
from scheduling.simulation.drill.run import STRATEGIES, DrillResult
from scheduling.simulation.drill.values import DrillPlan

RunsByScenario = Mapping[str, Mapping[str, DrillResult]]  # scenario -> strategy -> run
HEADLINE_SCENARIO = "llama3"  # its ETTR is the headline figure
GOALS = (
    ("recovered without an operator", ">= 95 %"),
    ("wrong stops of healthy jobs", "0"),
    ("false cordons per node-day", "<= 0.001"),
    ("fault to first step beyond the restart, median", "<= 120 s"),
    ("ETTR at the Llama 3 rate", ">= 0.95"),
)


def drill_document(plan: DrillPlan, runs: RunsByScenario) -> dict[str, Any]:
    first = HEADLINE_SCENARIO if HEADLINE_SCENARIO in runs else next(iter(runs))
    whole = figures.drill_summary([by["acme"] for by in runs.values()])
    return {
        **whole,
        "ettr": _ettr_by_answer(runs[first]),
        "ettr_of": first,
        "scenarios": {name: _scenario_document(by) for name, by in runs.items()},
        "plan": asdict(plan),
    }


def _scenario_document(by: Mapping[str, DrillResult]) -> dict[str, Any]:
    first_run = next(iter(by.values()))
    return {
        **figures.drill_summary([by["acme"]]),
        "ettr": _ettr_by_answer(by),
        "failures_per_node_day": first_run.scenario.per_node_day,
        "hours_between_interruptions_of_the_gang": first_run.scenario.hours_between(first_run.plan.gang_nodes),
        "checkpoint_every_s": first_run.save_every_s,
        "jobs": first_run.tally.jobs,
        "gpu_hours": {name: _gpu_hours_by_bucket(run) for name, run in by.items()},
        "answers": {
            name: {key: value for key, value in figures.drill_summary([run]).items() if key != "by_kind"}
            for name, run in by.items()
        },
    }


def _ettr_by_answer(by: Mapping[str, DrillResult]) -> dict[str, float]:
    return {name: round(figures.gang_ettr(run), 4) for name, run in by.items()}


def _gpu_hours_by_bucket(run: DrillResult) -> dict[str, float]:
    return {str(bucket): round(us / 3.6e9, 2) for bucket, us in sorted(figures.buckets_us(run).items())}


def report_lines(document: Mapping[str, Any]) -> Iterator[str]:
    plan = document["plan"]
    yield (
        f"{plan['nodes']} nodes of {plan['gpus_per_node']} GPUs, a gang on {plan['gang_nodes']} of them, the mix of "
        f"Kalos on the other nodes; {plan['hours']:g} h, seed {plan['seed']}"
    )
    for name, scenario in document["scenarios"].items():
        yield ""
        yield from _scenario_lines(name, scenario)
    yield ""
    yield from _kind_lines(document["by_kind"])
    yield ""
    yield from _goal_lines(document)


def _scenario_lines(name: str, scenario: Mapping[str, Any]) -> Iterator[str]:
    between = scenario["hours_between_interruptions_of_the_gang"]
    yield (
        f"{name}: the gang is interrupted every {between:.1f} h on average and saves every "
        f"{scenario['checkpoint_every_s']:.0f} s; {scenario['jobs']} jobs"
    )
    yield f"  {'':10}{'ETTR':>8}{'recov.':>9}{'wrong':>8}{'wrong':>10}{'false':>9}{'found s':>14}{'to step s':>16}"
    yield f"  {'':10}{'':>8}{'auto':>9}{'stops':>8}{'restarts':>10}{'cordons':>9}{'p50 / p95':>14}{'p50 / p95':>16}"
    for answer in STRATEGIES:
        if answer in scenario["answers"]:
            yield _answer_line(answer, scenario["ettr"][answer], scenario["answers"][answer])


def _answer_line(name: str, ettr: float, row: Mapping[str, Any]) -> str:
    recovered = f"{row['recovered_without_human']}/{row['recoverable']}"
    return (
        f"  {name:10}{ettr:>8.4f}{recovered:>9}{row['wrong_stops']:>8}{row['wrong_restarts']:>10}"
        f"{row['false_cordons']:>9}{_percentile_pair(row['detection_s']):>14}{_percentile_pair(row['fault_to_first_step_s']):>16}"
    )


def _kind_lines(by_kind: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    heads = ("injected", "no job", "found", "right", "curable", "recov.", "found s", "to step s")
    widths = (9, 8, 7, 7, 9, 7, 14, 16)
    yield f"{'faults, all scenarios':28}" + "".join(f"{head:>{w}}" for head, w in zip(heads, widths, strict=True))
    for kind, row in by_kind.items():
        yield (
            f"{kind:28}{row['injected']:>9}{row['hit_nobody']:>8}{row['detected']:>7}{row['diagnosed_right']:>7}"
            f"{row['recoverable']:>9}{row['recovered_without_human']:>7}{_percentile_pair(row['detection_s']):>14}"
            f"{_percentile_pair(row['fault_to_first_step_s']):>16}"
        )


def _goal_lines(drill: Mapping[str, Any]) -> Iterator[str]:
    part = f"{drill['recovered_without_human'] / drill['recoverable']:.1%}" if drill["recoverable"] else "no fault"
    beyond = drill["beyond_restart_s"]["p50"]
    reached = (
        part,
        str(drill["wrong_stops"]),
        f"{drill['false_cordons_per_node_day']:.5f}",
        "-" if beyond is None else f"{beyond:.0f} s",
        f"{drill['ettr']['acme']:.4f}",
    )
    for (what, goal), value in zip(GOALS, reached, strict=True):
        yield f"{what:50}{value:>10}   goal {goal}"


def _percentile_pair(percentiles: Mapping[str, float | None]) -> str:
    return "-" if percentiles["p50"] is None else f"{percentiles['p50']:.0f} / {percentiles['p95']:.0f}"
