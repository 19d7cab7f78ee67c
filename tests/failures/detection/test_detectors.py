"""The detectors as pure functions. Half of the cases are healthy jobs and nodes that only look faulty."""

import importlib.util
import math
from pathlib import Path
from random import Random

import pytest

from failures.detection import loss, slow_steps
from failures.detection.findings import Severity, SymptomType
from failures.detection.hang import SectionInterval, TimedLine, detect_hang, detect_hang_in_log, step_times
from failures.detection.node_health import (
    NodeHistoryEntry,
    NodeTelemetryWindow,
    is_lemon,
    lemon_score,
    node_health_findings,
    reports_fault,
)
from failures.detection.slow_ranks import RankTimings, detect_slow_ranks

# --- hang

EVEN = [10.0 * n for n in range(50)]  # the last at 490


@pytest.mark.parametrize(("silent_s", "found"), [(29, False), (31, True), (600, True)])
def test_hang_limit_is_three_times_the_usual_step_interval(silent_s, found):
    assert bool(detect_hang(EVEN, 490 + silent_s)) is found


def test_slow_steps_have_a_higher_hang_limit():
    steps = [60.0 * n for n in range(50)]

    assert detect_hang(steps, steps[-1] + 179) is None
    assert detect_hang(steps, steps[-1] + 181).expected == 180


def test_hang_limit_is_at_least_half_a_minute():
    steps = [0.1 * n for n in range(100)]

    assert detect_hang(steps, steps[-1] + 29) is None
    assert detect_hang(steps, steps[-1] + 31)


def test_first_steps_do_not_count_for_the_hang_limit():
    compiled = [0.0, 600, 1200, 1210, 1220, *(1220 + 10 * n for n in range(1, 20))]

    assert detect_hang(compiled, compiled[-1] + 31).expected == 30
    assert detect_hang(compiled[:8], compiled[7] + 3000) is None  # too few intervals


def test_declared_section_is_not_a_hang_and_does_not_count_for_the_limit():
    save = SectionInterval(name="checkpoint", begin=491)

    assert detect_hang(EVEN, 491 + 900, [save]) is None
    assert detect_hang(EVEN, 1000 + 29, [SectionInterval(name="checkpoint", begin=491, end=1000)]) is None
    assert detect_hang(EVEN, 1000 + 31, [SectionInterval(name="checkpoint", begin=491, end=1000)]).since == 1000


def test_pause_in_a_section_does_not_raise_the_hang_limit():
    steps = [*EVEN, *(1000.0 + 10 * n for n in range(20))]

    found = detect_hang(steps, steps[-1] + 31, [SectionInterval(name="evaluation", begin=495, end=995)])

    assert found.expected == 30


def test_endless_section_is_a_hang_of_its_own():
    found = detect_hang(EVEN, 491 + 1801, [SectionInterval(name="checkpoint", begin=491)])

    assert (found.subject, found.since) == ("checkpoint", 491)


def test_job_without_reports_hangs_when_its_log_counts_no_more_steps():
    log = [TimedLine(at=10.0 * n, text=f"iteration {n:>5}/ 90000 | loss 2.1") for n in range(40)]
    complaints = [TimedLine(at=390 + 5.0 * n, text="watchdog: still at iteration 39") for n in range(20)]

    assert detect_hang_in_log(log, 415) is None
    assert detect_hang_in_log(log + complaints, 421 + 60).since == 390


def test_log_without_steps_is_judged_by_its_silence():
    log = [TimedLine(at=10.0 * n, text="still reading shards") for n in range(40)]

    assert detect_hang_in_log(log, 390 + 290) is None
    assert detect_hang_in_log(log, 390 + 310)


def test_step_numbers_are_read_in_the_formats_of_common_trainers():
    text = ["step: 1", "Iteration 2/10", "[global_step=3] loss", "iter 4", "stepping down at 9", "steps 5"]
    text.append(" iteration        6/   90000 | consumed samples:         1536")

    assert len(step_times(TimedLine(at=n, text=line) for n, line in enumerate(text))) == 6


# --- slow steps


def steps(count=200, slow_from=None, factor=1.5, noise=0.01, seed=1):
    dice, made = Random(seed), []
    for n in range(count):
        tokens, squares = dice.uniform(5e4, 5e5), dice.uniform(1e8, 4e9)
        took = (8e-6 * tokens + 6e-10 * squares) * math.exp(dice.gauss(0, noise))
        took *= factor if slow_from is not None and n >= slow_from else 1
        made.append(slow_steps.StepTiming(at=float(n), seconds=took, tokens=tokens, squares=squares))
    return made


def slow_step_findings(series):
    detector = slow_steps.SlowStepDetector()
    return [finding for step in series if (finding := detector.see(step))]


def test_long_sequences_are_not_a_slowdown():
    assert slow_step_findings(steps()) == []


@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0])
def test_lasting_slowdown_is_reported_once(factor):
    found = slow_step_findings(steps(400, slow_from=150, factor=factor))

    assert [one.symptom for one in found] == [SymptomType.SLOW]
    assert 150 <= found[0].since < 150 + slow_steps.SMALL_EXCESS_STEPS


def test_single_long_pause_is_not_a_slowdown():
    series = steps()
    series[100:103] = [slow_steps.StepTiming(at=one.at, seconds=60, tokens=one.tokens) for one in series[100:103]]

    assert slow_step_findings(series) == []


def test_fit_is_correct_with_a_fifth_of_the_steps_as_outliers():
    series = steps(100)
    series[::5] = [
        slow_steps.StepTiming(at=s.at, seconds=9 * s.seconds, tokens=s.tokens, squares=s.squares) for s in series[::5]
    ]

    found = slow_steps.fit(series)

    assert found.alpha == pytest.approx(8e-6, rel=0.03)
    assert found.beta == pytest.approx(6e-10, rel=0.03)


def test_job_without_batch_sizes_is_compared_to_its_median_step():
    even = [slow_steps.StepTiming(at=float(n), seconds=2.0 if n < 100 else 3.0) for n in range(140)]

    assert [one.expected for one in slow_step_findings(even)] == [pytest.approx(2.0)]


def uneven(kind, count=300, slow_from=200):
    """Steps that become 50% slower, with batches whose size is partly unreported."""
    dice = Random(5)
    for n in range(count):
        tokens = dice.uniform(5e4, 5e5) if kind != "equal" else 2e5
        seconds = (8e-6 * tokens + 6e-10 * tokens * dice.uniform(1e3, 9e3)) * (1.5 if n >= slow_from else 1.0)
        if kind == "equal":
            seconds = 2.0 * math.exp(dice.gauss(0, 0.02)) * (1.5 if n >= slow_from else 1.0)
        yield slow_steps.StepTiming(at=float(n), seconds=seconds, tokens=tokens if kind == "tokens" else 1.0)


@pytest.mark.parametrize(("kind", "can_tell"), [("equal", True), ("tokens", False), ("times", False)])
def test_job_with_unreported_batch_differences_is_not_judged_by_its_steps(kind, can_tell):
    found = slow_steps.evaluate_steps(uneven(kind))

    assert (found.can_tell, found.finding is not None) == (can_tell, can_tell)


def test_second_slowdown_is_reported_after_the_first_has_ended():
    fast, slow = steps(400), steps(400, slow_from=0, factor=2)

    assert len(slow_step_findings(fast[:100] + slow[100:150] + fast[150:250] + slow[250:])) == 2


# --- ranks


def ranks(slow=(), factor=1.4, group=lambda number: str(number // 8)):
    return [
        RankTimings(number=n, group=group(n), node=f"n{n // 4}",
             seconds=[(1 + n // 8) * (factor if n in slow else 1.0) * (1 + 0.01 * (n + k) % 0.02) for k in range(6)])
        for n in range(16)
    ]  # fmt: skip


def test_ranks_are_compared_within_their_group_only():
    assert detect_slow_ranks(ranks(), 0) == []


def test_single_slow_rank_is_named():
    found = detect_slow_ranks(ranks(slow=[5]), 0)

    assert [(one.symptom, one.subject) for one in found] == [(SymptomType.SLOW_RANK, "rank 5")]


def test_several_slow_ranks_of_a_node_name_the_node():
    found = detect_slow_ranks(ranks(slow=[4, 5, 6]), 0)

    assert [(one.symptom, one.subject) for one in found] == [(SymptomType.SLOW_NODE, "n1")]


def test_group_of_two_ranks_names_no_slow_rank():
    assert detect_slow_ranks(ranks(slow=[5], group=lambda number: str(number // 2)), 0) == []


# --- loss


def losses(values):
    return [loss.LossPoint(step=n, at=float(n), loss=value) for n, value in enumerate(values)]


def falling(count=200, seed=1):
    dice = Random(seed)
    return [2 + 3 * math.exp(-n / 80) + dice.gauss(0, 0.02) for n in range(count)]


def test_loss_spike_that_recovers_is_not_a_failure():
    assert loss.loss_findings(losses([*falling(), *[6.0] * 20, *falling()[150:]])) == []


def test_lasting_loss_spike_is_reported_once_with_its_first_step():
    found = loss.loss_findings(losses([*falling(), *[6.0] * 60]))

    assert [(one.symptom, one.since) for one in found] == [(SymptomType.LOSS_SPIKE, 200.0)]
    assert found[0].subject.startswith("200-")


def test_noisy_falling_loss_is_healthy():
    assert all(loss.loss_findings(losses(falling(600, seed))) == [] for seed in range(5))


def test_single_nan_loss_is_tolerated_and_two_are_reported():
    assert loss.loss_findings(losses([*falling(), math.nan, *falling()[150:]])) == []
    assert [one.symptom for one in loss.loss_findings(losses([*falling(), math.nan, math.nan, math.nan]))] == [
        SymptomType.NAN
    ]


def test_gradient_overflow_is_reported_only_if_it_lasts():
    def norms(count):
        return [loss.LossPoint(step=n, at=n, loss=2.0, grad_norm=math.inf if n < count else 1.0) for n in range(40)]

    assert loss.loss_findings(norms(10)) == []
    assert [one.symptom for one in loss.loss_findings(norms(25))] == [SymptomType.NAN]


# --- nodes


def reading(**fields):
    return NodeTelemetryWindow(node="n1", **{"last_sample_at": 1000.0, **fields})


def test_healthy_node_has_no_findings():
    assert node_health_findings(reading(hottest_c=70, throttled=0.05, xids=[0, 0]), 1010) == []


@pytest.mark.parametrize(
    ("fields", "severity", "word"),
    [
        ({"xids": [79]}, Severity.BAD, "Xid 79"),
        ({"xids": [13]}, Severity.NOTE, "Xid 13"),
        ({"xids": [4711]}, Severity.NOTE, "not in the catalogue"),
        ({"ecc_uncorrected": 2}, Severity.BAD, "memory"),
        ({"rows_pending": 1}, Severity.WARN, "reset"),
        ({"remap_failed": True}, Severity.BAD, "remapped"),
        ({"nvlink_errors": 900}, Severity.WARN, "NVLink"),
        ({"ecc_corrected": 5000}, Severity.WARN, "Corrected"),
        ({"nics_down": ["ib3"]}, Severity.BAD, "ib3"),
        ({"hottest_c": 90.0}, Severity.WARN, "90 °C"),
        ({"hottest_c": 95.0}, Severity.BAD, "95 °C"),
        ({"hottest_c": 127.0}, Severity.WARN, "sensor"),
        ({"throttled": 0.5}, Severity.WARN, "50%"),
        ({"last_sample_at": 900.0}, Severity.WARN, "110 s"),
        ({"last_sample_at": None}, Severity.WARN, "No telemetry"),
    ],
)
def test_each_node_fault_has_its_severity(fields, severity, word):
    (found,) = node_health_findings(reading(**fields), 1010)

    assert found.severity == severity
    assert word in found.why


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"xids": [79]}, True),
        ({"ecc_uncorrected": 1}, True),
        ({"nics_down": ["ib3"]}, True),
        ({"xids": [13]}, False),
        ({"nvlink_errors": 900}, False),
        ({"hottest_c": 95.0}, False),
        ({"throttled": 0.9}, False),
        ({"last_sample_at": None}, False),
    ],
)
def test_heat_and_missing_telemetry_are_not_faults_that_end_programs(fields, expected):
    assert reports_fault(reading(**fields)) is expected


def test_findings_are_sorted_by_severity():
    found = node_health_findings(reading(xids=[13, 79], hottest_c=90.0), 1010)

    assert [one.severity for one in found] == [Severity.BAD, Severity.WARN, Severity.NOTE]


def test_node_with_repeated_failures_is_a_lemon_until_they_are_old():
    day = 86400.0
    past = [NodeHistoryEntry(at=n * day, what="xid") for n in range(5)]

    assert is_lemon(past, 5 * day)
    assert not is_lemon(past[:2], 5 * day)
    assert lemon_score(past, 60 * day) == 0
    assert lemon_score([NodeHistoryEntry(at=0, what="rebooted for an upgrade")], day) == 0


# --- the bench on a small set

PATH = Path(__file__).resolve().parents[3] / "bench" / "detectors.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_detectors", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_predictor_beats_change_points_on_generated_series(bench):
    ours, by_tokens, by_time, points = bench.compare_detectors(20, seed=3)

    assert ours["precision"] >= 0.99
    assert ours["recall"] >= 0.95
    assert points["precision"] < ours["precision"]
    assert by_tokens["false_alarms"] == by_time["false_alarms"] == 0  # such jobs are not judged


def test_step_times_alone_are_enough_for_equal_batches(bench):
    _, by_tokens, by_time, _ = bench.compare_detectors(20, seed=3, packed=False)

    assert min(by_tokens["precision"], by_time["precision"]) >= 0.99
    assert min(by_tokens["recall"], by_time["recall"]) >= 0.95


def test_bench_counts_early_findings_as_false_alarms(bench):
    cases = [([None] * 10, 5, 1.2), ([None] * 10, None, 1), ([None] * 10, 5, 1.2)]
    answers = iter([[2, 7], [4], []])

    row = bench.score_detector("x", lambda _: next(answers), cases)

    assert (row["precision"], row["recall"], row["false_alarms"]) == (1 / 3, 0.5, 2)
    assert row["delay_steps"]["p50"] == 2


def test_change_points_find_a_slowdown_in_even_steps(bench):
    took = [2.0] * 100 + [3.0] * 60
    even = [
        slow_steps.StepTiming(at=float(n), seconds=seconds * (1 + 0.01 * (n % 3))) for n, seconds in enumerate(took)
    ]

    found = bench.detect_change_points(even)

    assert found and found[0] >= 100
