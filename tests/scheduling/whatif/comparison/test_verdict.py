"""The sentence that sums up a comparison, and the differences to its baseline."""

import pytest

from scheduling.whatif.comparison.table import _with_changes, comparison_row
from scheduling.whatif.comparison.verdict import limits, percent_text, power_limits, verdict


def run(mean=600.0, p50=720.0, most=12_000.0, jobs=10, **more):
    return {"jobs": jobs, "queue_s": {"mean": mean, "p50": p50, "p99": most, "max": most}, **more}


def power(cost, budget_kw=None, interval_s=1.0):
    return {"cost": cost, "budget_kw": budget_kw, "interval_s": interval_s}


def test_verdict_names_the_best_policy_and_both_values():
    names, runs = ["as it really was", "easy", "fair"], [run(), run(p50=700), run(p50=420, most=7200)]

    assert verdict(names, runs, 0) == (
        "Under fair, the median wait falls from 12 min as it really was to 7 min (−42%); no job waits longer than 2 h"
        " (before: 3 h 20 min)."
    )


def test_verdict_uses_the_mean_if_half_of_the_jobs_do_not_wait():
    assert verdict(["easy", "fair"], [run(p50=0, mean=60), run(p50=0, mean=30)], 0).startswith(
        "Under fair, the mean wait falls from 1 min under easy to 30 s (−50%)"
    )


def test_verdict_says_if_no_policy_helps_or_nothing_changes():
    assert verdict(["easy", "fair"], [run(p50=60), run(p50=90)], 0) == (
        "No policy shortens the median wait: it is 1 min under easy and 1 min 30 s under fair, the shortest of the"
        " others (+50%)."
    )
    assert verdict(["easy", "fair"], [run(), run()], 0).startswith("The median wait does not change: 12 min under easy")


@pytest.mark.parametrize(
    ("before", "after", "clause"),
    [
        ({}, {}, "(before: 3 h 20 min)."),
        ({}, {"power": power(None)}, "(before: 3 h 20 min)."),
        ({}, {"power": power(1234.5)}, "(before: 3 h 20 min); energy costs 1,234.50."),
        ({"power": power(2469)}, {"power": power(1234.5)}, "; energy costs 1,234.50 (before: 2,469.00, −50%)."),
        ({"power": power(100)}, {"power": power(100.1)}, "; energy costs 100.10 (before: 100.00)."),
    ],
    ids=["without power", "without price", "record", "cheaper", "same"],
)
@pytest.mark.parametrize("p50", [420, 720])
def test_verdict_adds_the_cost_of_energy_where_there_is_a_price(before, after, clause, p50):
    said = verdict(["easy", "fair"], [run(**before), run(p50=p50, **after)], 0)

    assert said.endswith(clause) and said.count(".") == clause.count(".")


def test_verdict_says_what_a_budget_costs_in_queueing():
    runs = [run(power=power(200.0)), run(p50=1440, power=power(150.0, budget_kw=500.0))]

    assert verdict(["easy", "easy at 500 kW"], runs, 0) == (
        "No policy shortens the median wait: it is 12 min under easy and 24 min under easy at 500 kW, the shortest of"
        " the others (+100%); energy costs 150.00 (before: 200.00, −25%)."
    )


@pytest.mark.parametrize(
    ("before", "after", "warning"),
    [
        (0, 17, " 17 jobs run only under easy; under easy at 500 kW they need more GPUs or power than there is."),
        (1, 0, " 1 job runs only under easy at 500 kW; under easy it needs more GPUs or power than there is."),
    ],
)
def test_verdict_warns_if_a_budget_excludes_jobs(before, after, warning):
    runs = [run(power=power(None), set_aside={"wider_than_the_pool": count}) for count in (before, after)]

    assert verdict(["easy", "easy at 500 kW"], runs, 0).endswith(f"These are not the same jobs:{warning}")


def test_cheapest_of_equal_waits_is_the_best():
    runs = [run(), run(p50=60, power=power(9.0)), run(p50=60, power=power(5.0)), run(p50=60, power=power(5.0))]

    assert verdict(["fifo", "easy", "fair", "drf"], runs, 0).startswith("Under fair and drf, the median wait falls")


def test_limits_of_power_name_the_interval_and_the_jobs_left_out():
    aside = {"set_aside": {"wider_than_the_pool": 1200}}
    runs = [run(**aside), run(power=power(1.0, interval_s=90.0), **aside)]

    assert power_limits(runs[:1]) == []
    assert "the highest mean of 1 min 30 s. 1,200 jobs are left out" in power_limits(runs)[0]


@pytest.mark.parametrize("runs", [[run()], [run(jobs=0), run()], [run(), run(jobs=0)]])
def test_nothing_to_compare_has_no_verdict(runs):
    assert verdict(["a", "b"][: len(runs)], runs, 0) == ""


def test_changes_are_in_percent_of_the_baseline_and_say_which_direction_is_better():
    delay = _with_changes(comparison_row("mean", "s", [100.0, 50.0, 150.0, 100.2, None]), 0)
    use = _with_changes(comparison_row("utilisation", "%", [50.0, 60.0], least=False), 0)
    jobs = _with_changes(comparison_row("jobs", "", [50, 60], least=None), 0)

    assert [(cell.change, cell.trend) for cell in delay.cells] == [
        ("", ""),
        ("−50%", "better"),
        ("+50%", "worse"),
        ("0%", "same"),
        ("", ""),
    ]
    assert (use.cells[1].change, use.cells[1].trend) == ("+20%", "better")
    assert (jobs.cells[1].change, jobs.cells[1].trend) == ("+20%", "")


def test_change_from_zero_has_a_direction_but_no_percentage():
    row = _with_changes(comparison_row("preemptions", "", [0, 3]), 0)

    assert (row.cells[1].change, row.cells[1].trend) == ("", "worse")
    assert percent_text(1900) == "×20"


def test_limits_mention_a_changed_load_and_size_only_beside_the_record():
    assert limits([150], has_record=False, has_changed_nodes=True) == []
    said = limits([150, 150], has_record=True, has_changed_nodes=True)
    assert len(said) == 3 and "150% of the recorded load" in said[1]
