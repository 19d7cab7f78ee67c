"""Several replays side by side: which rows there are, which value is best, and how values are written."""

import pytest

from scheduling.whatif.comparison.table import comparison_row, csv_rows, format_figure, sections

TIMES = {"mean": 60.0, "p50": 30.0, "p90": 120.0, "p99": 600.0}


def run(**fields):
    usual = {
        "queue_s": TIMES,
        "jct_s": TIMES,
        "by_kind": {"debug": {"queue_s": {"mean": 5.0}}},
        "utilisation": 0.5,
        "fragmentation": 0.1,
        "makespan_s": 3600.0,
        "preemptions": 0,
        "jobs": 1200,
        "gpu_hours": {"productive": 12.0, "lost_work": 0.004},
        "fairness": {"jain": 0.9, "mean_slowdown": 2.0, "worst_user_slowdown": 30.0, "finish_time_ratio_mean": 1.0},
        "faults": {"nodes": 0, "jobs": 0},
    }
    return usual | fields


def rows(*runs):
    return {(section.name, row.name): row for section in sections(runs) for row in section.rows}


POWER = {"kwh": 41_210.5, "peak_kw": 88.4, "cost": 8242.1, "budget_kw": None, "above_budget_s": None}
SLEEP = {"kwh": 30_000.0, "cost": 6000.0, "node_wakes": 1200, "unplanned_wakes": 3}


def words(*runs):
    found = rows(*runs)
    return {name: [cell.words for cell in row.cells] for (section, name), row in found.items() if section == "Power"}


def test_power_has_a_section_if_a_run_has_figures_of_it():
    assert words(run(), run()) == {}
    assert words(run(), run(power=POWER)) == {
        "energy": ["–", "41,210 kWh"],
        "energy cost": ["–", "8,242.10"],
        "peak power": ["–", "88.4 kW"],
    }


def test_power_has_rows_of_the_budget_and_of_sleep():
    limited = POWER | {"budget_kw": 500.0, "above_budget_s": 61.0, "sleep": SLEEP}
    found = words(run(power=POWER), run(power=limited))

    assert found["power budget"] == ["–", "500 kW"] and found["time above the budget"] == ["–", "00:01:01"]
    assert found["energy with sleeping nodes"] == ["–", "30,000 kWh"]
    assert found["energy cost with sleeping nodes"] == ["–", "6,000.00"]
    assert (found["node wake-ups"], found["unplanned wake-ups"]) == (["–", "1,200"], ["–", "3"])


def marked(values, **how):
    return [cell.best for cell in comparison_row("x", "", values, **how).cells]


def test_section_without_rows_is_left_out():
    assert {name for name, _ in rows(run(), run())} == {
        "Queue delay",
        "Completion time",
        "Cluster",
        "GPU-hours",
        "Fairness",
    }
    assert ("Faults", "interrupted jobs") in rows(run(), run(faults={"nodes": 2, "jobs": 1}))


def test_no_runs_have_no_gpu_hours():
    assert not any(section.name == "GPU-hours" for section in sections([]))


def test_kinds_are_compared_if_there_are_several():
    both = run(by_kind={"debug": {"queue_s": {"mean": 5.0}}, "sft": {"queue_s": {"mean": 7.0}}})

    assert ("Queue delay", "mean, debug") not in rows(run(), run())
    assert [cell.value for cell in rows(run(), both)["Queue delay", "mean, sft"].cells] == [None, 7.0]


def test_gpu_hours_that_round_to_zero_in_all_runs_are_left_out():
    assert ("GPU-hours", "lost work") not in rows(run(), run())
    assert ("GPU-hours", "lost work") in rows(run(), run(gpu_hours={"lost_work": 0.005}))


def test_fractions_are_shown_in_percent_and_more_utilization_is_better():
    row = rows(run(), run(utilisation=0.75))["Cluster", "utilization"]

    assert [(cell.words, cell.best) for cell in row.cells] == [("50.0%", False), ("75.0%", True)]
    assert [cell.share for cell in row.cells] == [pytest.approx(100 * 2 / 3), 100]


def test_best_value_is_the_least_unless_more_is_better():
    assert marked([3, 1, 2, None, 1]) == [False, True, False, False, True]
    assert marked([3, 1, 2], least=False) == [True, False, False]
    assert marked([3, 1, 2], least=None) == [False] * 3
    assert marked([2, 2, None]) == [False] * 3


def test_bars_begin_at_zero_and_rounding_errors_get_none():
    shares = [[cell.share for cell in comparison_row("x", "", values).cells] for values in ([-1, 4, None], [1e-12, 0])]

    assert shares == [[0, 100, 0], [pytest.approx(0, abs=1e-9), 0]]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (89.6, "s", "00:01:30"),
        (12.345, "%", "12.3%"),
        (9.9994, "ratio", "9.999"),
        (10, "ratio", "10"),
        (1234.5, "ratio", "1,234"),
        (1234.5, "h", "1,234"),
        (1234, "", "1,234"),
    ],
)
def test_figure_is_written_with_its_unit(value, unit, text):
    assert format_figure(value, unit) == text


def test_csv_has_bare_numbers_and_empty_fields_for_missing_ones():
    both = run(by_kind={"debug": {"queue_s": {"mean": 5.0}}, "sft": {"queue_s": {"mean": 7.5}}})

    lines = list(csv_rows(["one", "two"], sections([run(), both])))

    assert lines[0] == ["section", "figure", "unit", "one", "two"]
    assert lines[1] == ["Queue delay", "mean", "s", "60", "60"]
    assert ["Queue delay", "mean, sft", "s", "", "7.5"] in lines


def test_missed_deadlines_are_compared_if_jobs_have_some():
    late = run(deadlines={"jobs": 10, "missed": 3})

    assert ("Cluster", "deadlines missed") not in rows(run(), run(deadlines={"jobs": 0, "missed": 0}))
    assert [cell.value for cell in rows(run(), late)["Cluster", "deadlines missed"].cells] == [None, 3]
