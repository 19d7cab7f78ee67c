"""The steps and pauses that are read from a log, look by look."""

import pytest

from failures.detection.hang import SectionInterval
from failures.detection.step_cadence import (
    MAX_MOMENTS,
    MAX_SECTIONS,
    MAX_SHAPES,
    MIN_SECTION_S,
    CadenceState,
    detect_silence,
    update_cadence,
)


def after(*looks, state=None):
    """The state after looks of (time, lines)."""
    state = state or CadenceState()
    for at, lines in looks:
        state = update_cadence(state, lines, at)
    return state


def test_only_higher_steps_of_the_same_line_count():
    state = after(
        (1, ["step 1 loss 2.0", "step 2 loss 1.9", "step 2 loss 1.8"]), (2, ["epoch 0, step 2"]), (3, ["step 1 loss"])
    )

    assert (state.moments, state.steps) == ((1, 2), (2, 1))


@pytest.mark.parametrize("line", ["loss 2.0", "iterate over it", "step one", ""])
def test_line_without_a_step_is_no_progress(line):
    assert after((1, [line])) == CadenceState()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Saving model checkpoint to /ckpt/100", "checkpoint"),
        ("Evaluating on the validation set", "evaluation"),
        ("begin validation", "evaluation"),
        ("torch.compile takes a while", "compile"),
    ],
)
def test_announced_pause_lasts_until_the_next_step(line, name):
    begun = after((5, [line, line]))

    assert begun.sections == (SectionInterval(name=name, begin=5),)
    assert after((9, ["step 4"]), (10, ["step 5"]), state=begun).sections == (
        SectionInterval(name=name, begin=5, end=9),
    )


def test_second_pause_begins_after_the_first_has_ended():
    state = after((1, ["saving checkpoint"]), (2, ["step 1"]), (3, ["saving checkpoint"]))

    assert [(section.begin, section.end) for section in state.sections] == [(1, 2), (3, None)]


def test_memory_of_a_log_is_bounded():
    looks = [(at, [f"{'x' * at} step {at}", "saving checkpoint", f"{'x' * at} step {at + 1}"]) for at in range(400)]

    state = after(*looks)

    assert (len(state.moments), len(state.steps), len(state.sections)) == (MAX_MOMENTS, MAX_MOMENTS, MAX_SECTIONS)
    assert len(state.furthest) == MAX_SHAPES and state.moments[-1] == 399


def blocks(gap, steps, count=4):
    return CadenceState(moments=tuple(gap * number for number in range(count)), steps=(steps,) * count)


@pytest.mark.parametrize(
    ("gap", "steps", "count", "is_buffered"),
    [(30.0, 8, 4, True), (30.0, 4, 4, True), (30.0, 3, 4, False), (20.0, 8, 4, False), (30.0, 8, 3, False)],
)
def test_even_blocks_of_many_steps_are_buffered_output(gap, steps, count, is_buffered):
    assert blocks(gap, steps, count).is_buffered is is_buffered


def test_missing_block_is_reported_after_its_time_and_a_pause():
    state = blocks(30.0, 8, 6)

    assert detect_silence(state, 150.0 + 30 + MIN_SECTION_S - 1) is None
    assert detect_silence(state, 150.0 + 30 + MIN_SECTION_S + 1) is not None


def test_silence_of_a_log_with_steps_is_reported():
    state = CadenceState(moments=tuple(float(at) for at in range(100)), steps=(1,) * 100)

    assert detect_silence(state, 110.0) is None
    assert detect_silence(state, 100_000.0) is not None
