import pytest

from scheduling.engine.throughputs import MeasuredSteps, ThroughputSource, ThroughputTable


def attempt(model="a100", *, steps=600.0, seconds=300.0, name="llm-7b"):
    return MeasuredSteps(name=name, gpu_model=model, steps=steps, seconds=seconds)


def test_given_speed_takes_precedence_over_a_measured_one():
    table = ThroughputTable.of({("llm-7b", "a100"): 5.0}, [attempt(), attempt("h100")])

    found = [
        (table.speed("llm-7b", model).steps_per_s, table.speed("llm-7b", model).source) for model in ("a100", "h100")
    ]

    assert found == [(5.0, ThroughputSource.GIVEN), (2.0, ThroughputSource.MEASURED)]


def test_measured_speed_is_that_of_all_attempts_together():
    table = ThroughputTable.of({}, [attempt(steps=100, seconds=100), attempt(steps=900, seconds=300)])

    assert table.speed("llm-7b", "a100").steps_per_s == 2.5


@pytest.mark.parametrize(
    "missing",
    [attempt("h100"), attempt(name="llm-13b"), attempt(seconds=59), attempt(steps=0)],
    ids=["other-model", "other-name", "too-short", "no-step"],
)
def test_speed_without_a_usable_attempt_is_unknown(missing):
    found = ThroughputTable.of({}, [missing]).speed("llm-7b", "a100")

    assert (found.source, found.steps_per_s) == (ThroughputSource.UNKNOWN, 0.0)
