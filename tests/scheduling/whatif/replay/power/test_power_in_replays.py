"""Power in replays: the budget that jobs start under, predictions, and what the report says."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from hypothesis import given

from jobs.traces.trace import trace_from_columns
from scheduling.engine.cluster import PowerBudget, ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.explain import missing_resources
from scheduling.engine.placements import PLACEMENTS_WITHOUT_POWER
from scheduling.engine.policies import rules_factory
from scheduling.engine.resources import NodeResources
from scheduling.power.rules.predictions import MIN_SIMILAR, PeakHistory
from scheduling.whatif.replay.acme_trace import PUBLISHED_CLUSTERS, draw_trace
from scheduling.whatif.replay.power.report import active_node_series
from scheduling.whatif.replay.power.setting import PowerSetting, predicted_peaks_w
from scheduling.whatif.replay.requests import PLACEMENT_NAMES
from scheduling.whatif.replay.run import ReplaySetting, replay_nodes, run_policy
from scheduling.whatif.replay.timed_runs import measure_run
from tests.properties import examples
from tests.scheduling.whatif.replay.replaying import COUNT, job_lists, outcome, trace

POLICIES = ("fifo", "fifo-skip", "sjf", "easy", "conservative", "fair", "drf")
BARE = ReplaySetting(nodes=371, load=130, best_effort=())
WIDE = replace(COUNT, nodes=3 * COUNT.nodes)
TIGHT = replace(BARE, power=PowerSetting(budget_kw=1100.0))
NO_BUDGET = (*PLACEMENTS_WITHOUT_POWER, "cells")  # cells needs virtual clusters


@pytest.fixture(scope="module")
def seren():
    return draw_trace(PUBLISHED_CLUSTERS["seren"], "seren", jobs=1500, seed=2)


def trace_of(rows):
    """Jobs of unknown users, so their predictions are 400 W: 340 W above idle, 425 W with the power supply."""
    submit, runtime, gpus = zip(*rows, strict=True)
    return trace_from_columns("test", submit_s=submit, runtime_s=runtime, gpus=gpus, kinds=["pretrain"] * len(rows))


def setting_for_gpus(gpus, nodes=4):
    """A budget for as many GPUs at 400 W."""
    bare = ReplaySetting(nodes=nodes, best_effort=())
    idle_w = bare.power_fleet.power_w(0, 0)
    return replace(bare, power=PowerSetting(budget_kw=(idle_w + gpus * 425 + 1) / 1000))


def most_watts(run):
    """The highest sum of the predictions of running jobs."""
    times = np.concatenate([run.ended_s, run.started_s])
    changes = np.concatenate([-run.power.watts, run.power.watts])[np.argsort(times, kind="stable")]
    return np.cumsum(changes).max()


# --- The budget ---


@pytest.mark.parametrize("policy", POLICIES)
def test_predicted_power_of_running_jobs_never_exceeds_the_budget(seren, policy):
    run = run_policy(seren, policy, TIGHT)

    assert len(run.trace) == len(seren) and np.isfinite(run.ended_s).all()
    assert 0.8 * TIGHT.power_budget.watts < most_watts(run) <= TIGHT.power_budget.watts


@pytest.mark.parametrize("placement", [name for name in PLACEMENT_NAMES if name not in NO_BUDGET])
@pytest.mark.parametrize("gpus", [1, 8, 12])
def test_every_placement_keeps_within_the_budget(placement, gpus):
    setting = replace(setting_for_gpus(2 * gpus), placement=placement)

    assert run_policy(trace_of([(0, 100, gpus)] * 3), "fifo-skip", setting).started_s.tolist() == [0, 0, 100]


@pytest.mark.parametrize("policy", POLICIES)
def test_budget_that_is_never_reached_changes_no_start(seren, policy):
    ample = replace(BARE, power=PowerSetting(budget_kw=1e6))

    assert np.array_equal(run_policy(seren, policy, ample).started_s, run_policy(seren, policy, BARE).started_s)


STARTS = {
    "the budget has room for two": ("fifo", [(0, 100, 8), (0, 100, 8), (0, 100, 8)], [0, 0, 100]),
    "fifo: a job that lacks power blocks": ("fifo", [(0, 100, 12), (1, 100, 8), (2, 100, 1)], [0, 100, 100]),
    "fifo-skip: smaller ones pass": ("fifo-skip", [(0, 100, 12), (1, 100, 8), (2, 100, 1)], [0, 100, 2]),
    "easy: short jobs pass the reservation": ("easy", [(0, 100, 12), (1, 100, 16), (2, 98, 4)], [0, 100, 2]),
    "easy: long ones would delay it": ("easy", [(0, 100, 12), (1, 100, 16), (2, 99, 4)], [0, 100, 200]),
    "easy: long ones pass on spare power": ("easy", [(0, 100, 12), (1, 100, 12), (2, 500, 4)], [0, 100, 2]),
    "easy: spare power is used once": (
        "easy",
        [(0, 100, 11), (1, 100, 12), (2, 500, 3), (3, 500, 2)],
        [0, 100, 2, 200],
    ),
    "conservative: short jobs pass": ("conservative", [(0, 100, 12), (1, 100, 16), (2, 98, 4)], [0, 100, 2]),
    "conservative: long ones do not": ("conservative", [(0, 100, 12), (1, 100, 16), (2, 99, 4)], [0, 100, 200]),
}


@pytest.mark.parametrize(("policy", "rows", "starts"), STARTS.values(), ids=STARTS)
def test_jobs_wait_for_power_as_for_gpus(policy, rows, starts):
    assert run_policy(trace_of(rows), policy, setting_for_gpus(16)).started_s.tolist() == starts


@pytest.mark.parametrize("policy", POLICIES)
@given(jobs=job_lists)
@examples(40)
def test_budget_for_some_gpus_decides_like_a_pool_with_so_many(policy, jobs):
    """Fewer jobs than a prediction needs, so all are predicted to draw the power limit."""
    history = trace(*jobs[: MIN_SIMILAR - 1])
    idle_w = WIDE.power_fleet.power_w(0, 0)
    limited = replace(WIDE, power=PowerSetting(budget_kw=(idle_w + COUNT.gpus * 425 + 1) / 1000))

    assert outcome(history, policy, limited) == outcome(history, policy, COUNT)


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative"])
def test_job_above_the_whole_budget_is_set_aside_and_blocks_nothing(policy):
    run = run_policy(trace_of([(0, 100, 32), (1, 100, 8)]), policy, setting_for_gpus(16))

    assert run.too_wide == 1
    assert run.started_s.tolist() == [1]


def test_power_of_a_job_does_not_depend_on_what_the_budget_sets_aside(seren):
    tight = replace(BARE, power=PowerSetting(budget_kw=650.0))
    few, many = run_policy(seren, "fifo-skip", tight), run_policy(seren, "fifo-skip", TIGHT)
    kept = np.isin(many.trace.ids, few.trace.ids)

    assert few.too_wide > 0 and len(few.trace) == kept.sum()
    assert np.array_equal(few.power.profiles.high_w, many.power.profiles.high_w[kept])
    assert np.array_equal(few.power.watts, many.power.watts[kept])


def test_budget_that_no_job_fits_in_sets_all_aside():
    summary = measure_run(trace_of([(0, 100, 8), (0, 100, 4)]), "fifo", setting_for_gpus(1))[1]

    assert (summary["set_aside"]["wider_than_the_pool"], summary["power"]["kwh"]) == (2, 0)


def test_trace_without_jobs_is_replayed():
    assert len(run_policy(trace_of([(0, 100, 8)]).rows(np.arange(0)), "fifo", setting_for_gpus(1)).trace) == 0


def test_prediction_of_the_widest_job_is_no_overflow():
    wide = replace(ReplaySetting(nodes=20_000, gpus_per_node=1024, best_effort=()), power=PowerSetting(budget_kw=9e8))

    assert run_policy(trace_of([(0, 100, wide.gpus)]), "fifo", wide).power.watts.tolist() == [wide.gpus * 425]


def test_share_of_a_gpu_draws_its_part():
    whole, half = (
        trace_from_columns("test", submit_s=[0], runtime_s=[3600], kinds=["pretrain"], **{name: [count]})
        for name, count in (("gpus", 1), ("gpu_milli", 500))
    )
    setting = replace(ReplaySetting(nodes=2, best_effort=()), power=PowerSetting())
    idle_kwh = setting.power_fleet.power_w(0, 0) / 1000
    kwh = [measure_run(one, "fifo", setting)[1]["power"]["kwh"] - idle_kwh for one in (whole, half)]

    assert kwh[1] == pytest.approx(kwh[0] / 2) and kwh[1] > 0


def engine_with(budget):
    setting = ReplaySetting(nodes=4)
    return Engine(NodeResources(replay_nodes(setting, 4), budget), rules_factory("fifo", {})())


@pytest.mark.parametrize(
    ("watts", "why"),
    [
        (7000, "It is predicted to need 7.0 kW; of power budget row 3, 5.0 of 20.0 kW for jobs are left."),
        (
            21_000,
            "It is predicted to need 21.0 kW; of power budget row 3, 5.0 of 20.0 kW for jobs are left."
            " The whole budget is too small for it.",
        ),
    ],
    ids=["waits", "never"],
)
def test_wait_reason_names_the_power_budget(watts, why):
    engine = engine_with(PowerBudget(name="row 3", watts=20_000))
    engine.resources.take(((0, 8),), ResourceRequest(gpus=8, cpus=0, watts=15_000))
    blocker = missing_resources(engine.resources, engine.request_group(ResourceRequest(gpus=8, cpus=0, watts=watts)))

    assert (blocker.reason, blocker.why) == ("Power", why)


def test_copies_of_resources_count_power_separately():
    resources = engine_with(PowerBudget(name="row 3", watts=20_000)).resources
    other, need = resources.copy(), ResourceRequest(gpus=8, cpus=0, watts=15_000)

    assert other.take_if_free(((0, 8),), need) and not other.take_if_free(((1, 8),), need)
    assert (resources.watts_left, other.watts_left) == (20_000, 5_000)


# --- Predictions ---


def test_prediction_is_the_percentile_of_similar_jobs_then_of_the_kind_then_the_limit():
    history = PeakHistory()
    for number in range(200):
        history.add(["user", "kind"], 180.0 if number < 198 else 430.0)
    history.add(["few", "kind"], 900.0)

    assert history.predicted_w(["user", "kind"]) == 200
    assert history.predicted_w(["few", "kind"]) == 450
    assert history.predicted_w(["new", "other"]) == 400


@pytest.mark.parametrize(("count", "watts"), [(MIN_SIMILAR - 1, 400), (MIN_SIMILAR, 250)])
def test_prediction_needs_enough_jobs_that_have_ended(count, watts):
    size = count + 1
    submit, codes = np.arange(size) * 100.0, np.zeros(size, dtype=np.int32)

    assert predicted_peaks_w(np.full(size, 230.0), submit, np.full(size, 10.0), codes, codes)[-1] == watts
    assert (predicted_peaks_w(np.full(size, 230.0), submit, np.full(size, 1e6), codes, codes) == 400).all()


def test_prediction_does_not_look_ahead():
    dice = np.random.default_rng(0)
    submit, runtime = np.sort(dice.uniform(0, 1000, 300)), dice.uniform(1, 50, 300)
    peaks, codes = dice.uniform(100, 400, 300), dice.integers(0, 3, 300).astype(np.int32)
    later = np.where(submit + runtime > 500, 999.0, peaks)
    first, second = (predicted_peaks_w(one, submit, runtime, codes, codes) for one in (peaks, later))

    assert np.array_equal(first[submit < 500], second[submit < 500])
    assert not np.array_equal(first, second)


# --- The report ---


def test_report_has_energy_cost_peak_and_wakes_beside_waiting_times(seren):
    asked = PowerSetting(budget_kw=1100.0, price_per_kwh=0.2, has_sleep=True)
    figures = measure_run(seren, "easy", replace(BARE, power=asked))[1]["power"]

    assert figures["cost"] == pytest.approx(0.2 * figures["kwh"])
    assert figures["peak_kw"] < figures["budget_kw"] == 1100
    assert 0 < figures["sleep"]["kwh"] < figures["kwh"]
    assert figures["sleep"]["cost"] == pytest.approx(0.2 * figures["sleep"]["kwh"])
    assert figures["sleep"]["node_wakes"] > 0 and figures["sleep"]["asleep_node_hours"] > 0


def test_energy_of_a_replay_is_that_of_its_idle_nodes_and_its_jobs():
    setting = replace(ReplaySetting(nodes=2, best_effort=()), power=PowerSetting())
    figures = measure_run(trace_of([(0, 3600, 8)]), "fifo", setting)[1]["power"]
    idle_kw = setting.power_fleet.power_w(0, 0) / 1000

    assert idle_kw + 8 * 1.25 * 0.1 < figures["kwh"] < idle_kw + 8 * 1.25 * 0.377
    assert figures["kwh"] <= figures["peak_kw"] <= idle_kw + 8 * 1.25 * 0.377
    assert (figures["budget_kw"], figures["cost"], figures.get("sleep")) == (None, None, None)


def test_active_nodes_are_the_maximum_of_each_ten_minutes():
    changes = np.array([(0, 1), (100, 5), (500, 2), (1300, 3), (1790, 0), (2500, 1)], dtype=float)

    assert active_node_series(changes, 9).active.tolist() == [5, 2, 3, 0, 1]


# --- The command ---


def simulated(*options):
    out = StringIO()
    call_command("simulate", "acme:seren", "--jobs", "200", *options, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_command_reports_power_only_if_asked():
    asked = json.loads(simulated("--policy", "easy", "--power-budget-kw", "900", "--sleep", "--json", "-"))
    bare = json.loads(simulated("--policy", "easy", "--json", "-"))

    assert asked["runs"][0]["power"]["budget_kw"] == 900
    assert "power" not in bare["runs"][0]


def test_table_has_rows_of_power():
    table = simulated("--policy", "fifo,easy", "--price-per-kwh", "0.1", "--sleep")

    for row in ("MWh", "peak kW", "energy cost", "MWh with sleep", "node wake-ups", "unplanned wake-ups"):
        assert f"\n{row} " in table
    assert "above the budget" not in table


ERRORS = {
    "below idle nodes": (("--power-budget-kw", "300"), "power_budget_kw: 300 is not above the 435 kW"),
    "not a number": (("--power-budget-kw", "nan"), "power_budget_kw: nan is not a number"),
    "negative price": (("--price-per-kwh", "-1"), "price_per_kwh: -1.0 is not a number"),
    "preemption": (("--policy", "srtf", "--energy"), "policies: srtf preempts jobs, which energy does not cover"),
    "borrowers": (("--policy", "acme", "--energy"), "best_effort: must be empty for acme with energy"),
    "faults": (("--energy", "--faults", "rates"), "faults: cannot be combined with energy"),
    "placement": (("--power-budget-kw", "900", "--placement", "exact"), "placement exact does not support power"),
    "sleep without nodes": (("--sleep", "--placement", "count"), "sleep: needs a placement on nodes"),
}


@pytest.mark.parametrize(("options", "error"), ERRORS.values(), ids=ERRORS)
def test_settings_that_power_does_not_cover_are_rejected(options, error):
    with pytest.raises(CommandError, match=error):
        simulated(*options)
