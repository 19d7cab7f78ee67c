"""The data of the GPU map: who holds which GPU, what it measures, and the racks."""

import math

from jobs.core.charts.gpu_map import (
    FOREIGN_JOB,
    FREE_GPU,
    HIDDEN_JOB,
    GpuReadings,
    MapNode,
    RackSummary,
    VisibleJob,
    gpu_map_payload,
    rack_summaries,
)


def spot(number, name="n1", gpus=2, **fields):
    usual = {"rack": "r1", "leaf": "l1", "word": "idle", "tone": "good", "is_schedulable": True}
    return MapNode(id=number, name=name, gpus=gpus, **(usual | fields))


def payload(*spots, holders=(), known=None, readings=None):
    return gpu_map_payload(spots, holders, known or {}, readings or {})


def test_gpus_are_listed_node_after_node_in_the_order_of_the_network():
    nodes = [spot(1, "n1", leaf="l2"), spot(2, "n2", rack="r2"), spot(3, "n3"), spot(4, "n0", is_schedulable=False)]
    holders = [(1, 0, 70, 1000), (2, 1, 71, 1000), (3, 1, 99, 1000)]
    known = {
        70: VisibleJob(public_id="j70", name="a", team="t", user="u"),
        71: VisibleJob(public_id="j71", name="b", team="t", user="u"),
    }

    made = payload(*nodes, holders=holders, known=known)

    assert [row[0] for row in made["nodes"]] == ["n0", "n3", "n2", "n1"]
    assert made["who"] == [FREE_GPU, FREE_GPU, FREE_GPU, HIDDEN_JOB, FREE_GPU, 1, 0, FREE_GPU]
    assert made["jobs"] == [["j70", "a", "t", "u"], ["j71", "b", "t", "u"]]
    assert made["nodes"][0] == ["n0", "r1", "l1", 2, "idle", "good", 0]


def test_gpu_of_a_foreign_job_is_marked_unless_a_job_of_ours_holds_it():
    made = payload(spot(1, gpus=3, foreign=(0, 1)), holders=[(1, 0, 70, 1000)])

    assert made["who"] == [HIDDEN_JOB, FOREIGN_JOB, FREE_GPU]


def test_each_gpu_has_one_reading_however_many_were_reported():
    readings = {
        1: GpuReadings(busy=(99.6, None), hot=(math.nan, 41.2, 50), xid=(0, 79)),
        2: GpuReadings(busy=(1, 2, 3, 4), xid=(31, None)),
    }

    made = payload(spot(1, "n1", gpus=3), spot(2, "n2", gpus=2), readings=readings)

    assert made["busy"] == [100, -1, -1, 1, 2]
    assert made["hot"] == [-1, 41, 50, -1, -1]
    assert made["xid"] == [(1, 79), (3, 31)]


def test_racks_are_summed_and_foreign_jobs_hold_gpus_too():
    nodes = [
        spot(1, gpus=8, foreign=(6, 7)),
        spot(2, gpus=8, is_schedulable=False),
        spot(3, gpus=8, rack="r0"),
        spot(4, gpus=2, rack="r0", is_schedulable=False, foreign=(0, 1)),
    ]

    summaries = rack_summaries(nodes, {1: 3, 2: 5, 4: 2})

    assert summaries == [
        RackSummary(leaf="l1", rack="r0", nodes=2, gpus=10, held=4, closed=0),
        RackSummary(leaf="l1", rack="r1", nodes=2, gpus=16, held=10, closed=3),
    ]
    assert summaries[1].free == 3


def test_jobs_that_share_a_gpu_are_listed_with_their_parts():
    holders = [(1, 0, 99, 250), (1, 0, 70, 500), (1, 1, 99, 1000)]
    known = {70: VisibleJob(public_id="j70", name="a", team="t", user="u")}

    made = payload(spot(1, gpus=3), holders=holders, known=known)

    assert made["who"] == [0, HIDDEN_JOB, FREE_GPU]
    assert made["shares"] == [[0, [0, 500], [HIDDEN_JOB, 250]]]
