"""`manage.py simulate_power`: which series it reads, what its figures mean, and that it never looks ahead."""

from __future__ import annotations

import csv
import json
from io import StringIO

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from acmeweb.common.errors import InvalidInput
from scheduling.power.rules.awake_nodes import NodeSeries, ReserveSettings, nodes_needed, recent_maximum
from scheduling.whatif.replay.power.node_series import read_series
from scheduling.whatif.replay.power.sleep_study import StudySettings, simple_rule, sleep_study
from scheduling.whatif.replay.power.sleeping_nodes import SleepLimits, run_fleet

DAY = 144


def series(active, total=100, first_step=0):
    active = np.asarray(active, dtype=np.int64)
    return NodeSeries(
        steps=np.arange(first_step, first_step + len(active)),
        active=active,
        total=np.full(len(active), total, dtype=np.int64),
        rows=len(active),
    )


def daily_load(days, nodes=100, seed=0):
    """Few nodes at night, many in the afternoon, and jumps."""
    dice = np.random.default_rng(seed)
    at = np.arange(days * DAY)
    wave = 0.5 + 0.25 * np.sin(2 * np.pi * at / DAY) + np.cumsum(dice.normal(0, 0.002, len(at)))
    jumps = (dice.random(len(at)) < 0.01) * dice.uniform(0, 0.1, len(at))
    return np.clip((wave + jumps) * nodes, 0, nodes).astype(int)


def write(path, rows, header="time,active,total"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def run(*words):
    out = StringIO()
    call_command("simulate_power", *words, stdout=out)
    return out.getvalue()


# --- reading


def test_series_is_reduced_to_the_maximum_of_ten_minutes():
    rows = ["2017-10-03 00:00:00,3,10", "2017-10-03 00:09:59,7,10", "2017-10-03 00:10:00,5,10"]

    found = read_series(["time,active,total", *rows], "nodes.csv")

    assert (found.active.tolist(), found.total.tolist(), found.rows) == ([7, 5], [10, 10], 3)


def test_columns_may_have_any_order_and_times_may_be_unix_seconds():
    found = read_series(["total,pool,time,active", "10,a,600,4", "10,a,1200.5,6"], "nodes.csv")

    assert (found.steps.tolist(), found.active.tolist()) == ([1, 2], [4, 6])


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "f.csv must be a CSV with the columns time,active,total."),
        (
            ["time,used,total", "0,1,2"],
            "f.csv must be a CSV with the columns time,active,total.",
        ),
        (["time,active,total"], "f.csv: the file has no rows below its header."),
        (["time,active,total", "0,1,2", "600,3,2"], "f.csv line 3: active 3 is more than total 2."),
        (["time,active,total", "600,1,2", "0,1,2"], "f.csv line 3: time '0' is before the time of the line above."),
        (["time,active,total", "0,-1,2"], "f.csv line 2: active '-1' is not a whole number from 0 to 1,000,000."),
        (["time,active,total", "0,nan,2"], "f.csv line 2: active 'nan' is not a whole number from 0 to 1,000,000."),
        (["time,active,total", "0,1,inf"], "f.csv line 2: total 'inf' is not a whole number from 0 to 1,000,000."),
        (["time,active,total", "0,1.5,2"], "f.csv line 2: active '1.5' is not a whole number from 0 to 1,000,000."),
        (["time,active,total", "0,1"], "f.csv line 2: expected 3 values, found 2."),
        (["time,active,total", "0,1,"], "f.csv line 2: total '' is not a whole number from 0 to 1,000,000."),
        (
            ["time,active,total", "never,1,2"],
            "f.csv line 2: time 'never' is neither a date and time nor seconds since 1970.",
        ),
        (
            ["time,active,total", "²,1,2"],
            "f.csv line 2: time '²' is neither a date and time nor seconds since 1970.",
        ),
        (
            ["time,active,total", "9" * 400 + ",1,2"],
            f"f.csv line 2: time '{'9' * 40}' is neither a date and time nor seconds since 1970.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unreadable_series_is_refused_with_file_and_line(lines, sentence):
    with pytest.raises(InvalidInput) as refused:
        read_series(lines, "f.csv")

    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe\x00", r"series: .*nodes\.csv is not a text file in UTF-8\."),
        (b"time,active,total\n\xc3\x28,1,2\n", r"series: .*nodes\.csv is not a text file in UTF-8\."),
        (b'time,active,total\n"' + b"x" * 200_000, r".*nodes\.csv line 2: field larger than field limit \(131072\)\."),
    ],
)
def test_bytes_that_are_no_csv_are_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "nodes.csv"
    path.write_bytes(content)

    with pytest.raises(CommandError, match=f"^{sentence}$"):
        run(str(path))


def test_missing_file_and_folder_are_refused(tmp_path):
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(CommandError, match=r"^series: "):
            run(str(path))


# --- deciding


def test_decision_for_a_step_does_not_depend_on_that_step_or_later_ones():
    past, changed = daily_load(4), daily_load(4)
    changed[300:] = 99
    settings = ReserveSettings(lead_steps=1)

    needed = [nodes_needed(series(active), recent_maximum(series(active)), settings) for active in (past, changed)]

    assert needed[0][:301].tolist() == needed[1][:301].tolist()
    assert needed[0][301:].tolist() != needed[1][301:].tolist()


def test_reserve_grows_with_fewer_accepted_wake_ups():
    load = series(daily_load(10))

    sizes = [
        nodes_needed(load, recent_maximum(load), ReserveSettings(unplanned_per_day=often)).mean()
        for often in (5, 1, 0.1)
    ]

    assert sizes[0] < sizes[1] < sizes[2]


def test_simple_rule_keeps_the_maximum_of_six_hours_and_a_fixed_reserve_awake():
    load = series([50] + [20] * 60, total=420)

    assert simple_rule(load)[[1, 36, 37, 60]].tolist() == [60, 60, 30, 30]


# --- sleeping and waking up


def test_demand_above_the_awake_nodes_is_one_unplanned_wake_up():
    load = series([2, 2, 8, 8], total=10)

    fleet = run_fleet(load, np.array([3.0, 3, 3, 9]), SleepLimits(min_awake=0, min_asleep=0))

    assert fleet.unplanned.tolist() == [False, False, True, False]
    assert fleet.awake.tolist() == [3, 3, 8, 9]
    assert fleet.woken.tolist() == [0, 0, 5, 1]


def test_node_that_woke_up_stays_awake_for_the_minimum_time():
    load = series([0] * 8, total=10)

    fleet = run_fleet(load, np.array([0.0, 5, 0, 0, 0, 0, 0, 0]), SleepLimits(min_awake=3, min_asleep=0))

    assert fleet.awake.tolist() == [0, 5, 5, 5, 0, 0, 0, 0]


def test_sleeping_node_does_not_wake_up_as_planned_before_the_minimum_time_but_does_for_demand():
    limits = SleepLimits(min_awake=0, min_asleep=3)

    planned = run_fleet(series([0] * 6, total=10), np.array([0.0, 10, 10, 10, 10, 10]), limits)
    demanded = run_fleet(series([0, 10], total=10), np.array([0.0, 10]), limits)

    assert planned.awake.tolist() == [0, 0, 0, 10, 10, 10]
    assert demanded.awake.tolist() == [0, 10]


def test_node_that_woke_up_often_stays_awake_until_a_day_has_passed():
    needed = np.array([0.0, 1] * 5 + [0.0] * DAY)

    fleet = run_fleet(
        series([0] * len(needed), total=1), needed, SleepLimits(min_awake=0, min_asleep=0, max_wakes_per_day=2)
    )

    assert fleet.awake[:10].tolist() == [0, 1, 0, 1, 1, 1, 1, 1, 1, 1]
    assert fleet.awake[DAY:].tolist() == [1] + [0] * 9  # the first wake-up, of step 1, is a day old


def test_node_that_boots_is_awake_but_not_ready():
    load = series([0, 0, 4, 4], total=4)

    fleet = run_fleet(load, np.array([0.0, 4, 4, 4]), SleepLimits(min_awake=0, min_asleep=0, boot=2))

    assert fleet.awake.tolist() == [0, 4, 4, 4]
    assert fleet.unplanned.tolist() == [False, False, True, False]


def test_nodes_that_are_added_and_removed_stay_within_the_total():
    load = NodeSeries(steps=np.arange(4), active=np.array([1, 1, 1, 1]), total=np.array([4, 8, 2, 4]), rows=4)

    fleet = run_fleet(load, np.array([4.0, 2, 2, 2]), SleepLimits(min_awake=0, min_asleep=0))

    assert all(fleet.awake <= load.total)
    assert not fleet.unplanned.any()


# --- the report


def test_report_counts_only_the_test_days_and_says_which_they_are():
    load = series(daily_load(10), first_step=17_000 * DAY)

    report, fleet = sleep_study(load, StudySettings(test_days=2))

    cut = slice(8 * DAY, None)
    assert report["days"]["test"] == ["2016-07-26", "2016-07-27"]
    assert report["in_use"] == pytest.approx(load.active[cut].sum() / fleet.awake[cut].sum())
    assert report["unplanned_wakes_per_day"] == fleet.unplanned[cut].sum() / 2
    assert report["none"] == pytest.approx(
        report["none"] | {"in_use": load.active[cut].mean() / 100, "asleep_mean": 0, "unplanned_wakes_per_day": 0}
    )
    assert report["none"]["in_use"] < report["rule"]["in_use"] < report["in_use"]


def test_trees_are_trained_before_the_days_they_are_chosen_and_tested_on():
    pytest.importorskip("lightgbm")
    load = series(daily_load(40), first_step=17_000 * DAY)

    report, _ = sleep_study(load, StudySettings(test_days=5))

    days = report["days"]
    assert days["trained"]["trees_for_choice"][1] < days["choice"][0]
    assert days["trained"]["trees_for_test"][1] < days["test"][0]
    losses = {name: found["quantile_loss_on_choice_days"] for name, found in report["forecasts"].items()}
    assert report["forecast"] == min(losses, key=losses.get)


def test_what_happens_on_test_days_changes_neither_the_choice_nor_the_days_before():
    calm, restless = daily_load(30), daily_load(30)
    restless[-5 * DAY :] = np.random.default_rng(1).integers(0, 100, 5 * DAY)

    reports = [sleep_study(series(load), StudySettings(test_days=5))[0] for load in (calm, restless)]

    assert reports[0]["forecast"] == reports[1]["forecast"]
    assert reports[0]["before_test"] == reports[1]["before_test"]
    assert reports[0]["in_use"] != reports[1]["in_use"]


@pytest.mark.parametrize("steps", [1, 2, DAY, DAY + 1])
def test_short_series_is_measured_as_far_as_it_goes(tmp_path, steps):
    path = write(tmp_path / "nodes.csv", [f"{600 * at},4,10" for at in range(steps)])

    report = json.loads(run(path, "--json", "-"))

    assert 0.4 <= report["in_use"] <= 1
    assert report["days"]["count"] == (steps + DAY - 1) // DAY


def test_series_without_any_active_node_has_no_misleading_share(tmp_path):
    path = write(tmp_path / "nodes.csv", [f"{600 * at},0,0" for at in range(5)])

    assert json.loads(run(path, "--json", "-"))["in_use"] is None
    assert "-" in run(path)


def test_steps_file_has_what_the_figures_are_computed_from(tmp_path):
    rows = [f"{600 * at},{active},100" for at, active in enumerate(daily_load(6).tolist())]
    path, steps = write(tmp_path / "nodes.csv", rows), tmp_path / "steps.csv"

    report = json.loads(run(path, "--json", "-", "--steps", str(steps), "--test-days", "2"))

    with steps.open() as lines:
        found = list(csv.DictReader(lines))[-2 * DAY :]
    awake, active = (sum(int(row[name]) for row in found) for name in ("awake", "active"))
    assert report["in_use"] == pytest.approx(active / awake)
    assert report["unplanned_wakes_per_day"] == sum(int(row["unplanned"]) for row in found) / 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--test-days", "9"], "test-days: 9 is more than the 1 days of the series."),
        (["--test-days", "0"], "test-days: 0 is not between 1 and 100000"),
        (["--boot-minutes", "5"], "boot-minutes: 5 is not a multiple of 10"),
        (["--unplanned-per-day", "nan"], "unplanned-per-day: nan is not between 0.01 and 100"),
        (["--max-wakes", "0"], "max-wakes: 0 is not between 1 and 144"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_setting_that_makes_no_sense_is_refused(tmp_path, words, sentence):
    path = write(tmp_path / "nodes.csv", ["0,1,2", "600,1,2"])

    with pytest.raises(CommandError) as refused:
        run(path, *words)

    assert str(refused.value) == sentence
