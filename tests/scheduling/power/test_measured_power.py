"""The power of nodes from their newest readings, and clocks by GPU model."""

import pytest

from scheduling.power.rules.clock_curves import model_mhz, model_power_w, model_speed
from scheduling.power.rules.measured_power import NodeReading, measured_power

READ = {"gpus": 8, "model": "a100", "at_s": 1000.0, "gpu_power_w": [400.0] * 8}
FULL_W = 920 + 1.25 * 3200


@pytest.mark.parametrize(
    ("node", "watts"),
    [
        (NodeReading(**READ), FULL_W),
        (NodeReading(**READ, node_power_w=5000.0), 5000.0),
        (NodeReading(**{**READ, "at_s": 900.0}), FULL_W),  # the last reading
        (NodeReading(**{**READ, "at_s": 100.0}, has_jobs=True), FULL_W),  # too old: the estimate of a busy node
        (NodeReading(**{**READ, "at_s": 100.0}), 920 + 1.25 * 8 * 60),  # of an idle one
        (NodeReading(**{**READ, "at_s": 900.0}, is_asleep=True), 0.0),
        (NodeReading(**{**READ, "gpu_power_w": [None] * 8, "gpu_util": [100.0] * 8}), FULL_W),
        (NodeReading(**{**READ, "gpu_power_w": [400.0] * 4}), 920 + 1.25 * (1600 + 4 * 60)),  # GPUs off the bus
        (NodeReading(**{**READ, "gpu_power_w": [1e12] * 8}, has_jobs=True), FULL_W),  # not believed
    ],
)
def test_power_of_a_node(node, watts):
    newest = NodeReading(gpus=0, at_s=1000.0)

    assert measured_power([newest, node]).watts == pytest.approx(watts)


def test_nodes_without_fresh_readings_make_the_sum_uncertain():
    rows = [NodeReading(**READ)] * 8
    stale = NodeReading(**{**READ, "at_s": 950.0})

    assert measured_power(rows).is_certain
    assert measured_power([*rows, NodeReading(gpus=8, is_asleep=True)]).unread == 0
    assert not measured_power([*rows, stale]).is_certain


def test_no_reading_is_no_power():
    assert measured_power([NodeReading(gpus=8, has_jobs=True)]) is None
    assert measured_power([]) is None


@pytest.mark.parametrize(
    ("mhz", "model", "scaled"),
    [(1110, "a100", 1110), (1410, "NVIDIA H100 80GB", 1980), (705, "h100", 990), (288, "", 288)],
)
def test_clock_is_the_same_share_of_the_highest_of_each_model(mhz, model, scaled):
    assert model_mhz(mhz, model) == scaled


def test_speed_of_a_model_is_that_of_the_share_of_its_clock():
    assert model_speed(1110, "a100") == pytest.approx(0.93)
    assert model_speed(model_mhz(1110, "h100"), "h100") == pytest.approx(0.93, abs=1e-3)
    assert model_speed(1980, "h100") == model_speed(5000, "h100") == model_speed(None, "h100") == 1.0


def test_power_of_a_model_falls_faster_than_its_speed():
    assert model_power_w(400.0, 1110, "a100") == pytest.approx(320.0)
    assert model_power_w(700.0, None, "h100") == 700.0
    assert model_power_w(50.0, 288, "a100") == 50.0, "an idle GPU draws the same"
