"""A collective timeout in which one rank is behind the others, or runs another operation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis import lines
from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.parsers.collectives import find_desync, parse_position
from failures.diagnosis.values import CollectivePosition, ExitStatus

LOCATION = "heron-{host}:71:90 [0] NCCL INFO comm 0x7f rank {rank} nranks 4 cudaDev 0 busId 1b000 - Init COMPLETE"
TIMEOUT = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn=1, Timeout(ms)=600000) ran for 600123 milliseconds before "
    "timing out."
)


def position(rank, sequence=90, operation="ALLREDUCE", group=""):
    return CollectivePosition(rank=rank, group=group, sequence=sequence, operation=operation)


def log(*positions):
    places = [LOCATION.format(host=rank, rank=rank) for rank in range(4)]
    return "\n".join([*places, *(TIMEOUT.format(**vars(one)) for one in positions)])


def diagnosis(*positions):
    return diagnose_text(log(*positions), ExitStatus(exit_code=1))


def test_rank_behind_the_others_is_named_and_its_node_suspected():
    found = diagnosis(position(0), position(1), position(3, 89, "ALLGATHER"), position(2))

    assert found.root_cause == "NCCLTimeoutError"
    assert found.notes == (
        "Rank 3 stood at operation 89 (ALLGATHER) while ranks 0, 1 and 2 waited at operation 90 (ALLREDUCE).",
    )
    assert [(node.host, node.why) for node in found.suspect_nodes] == [("heron-3", found.notes[0].removesuffix("."))]


def test_rank_with_another_operation_is_named_without_a_suspect():
    found = diagnosis(position(0), position(1), position(3, operation="BROADCAST"), position(2))

    assert "Rank 3 called operation 90 (BROADCAST)" in found.notes[0]
    assert found.suspect_nodes == ()


def test_equal_positions_name_no_rank():
    assert diagnosis(position(0), position(1), position(2)).notes == ()


@pytest.mark.parametrize(
    "positions",
    [
        [position(0, 89), position(1)],  # neither is the minority
        [position(0, 91), position(1), position(2)],  # the minority is ahead
        [position(0, 20), position(1), position(2)],  # too far apart for one process group
        [position(0, 88), position(1, 89), position(2), position(3)],
        [position(0, 89, group="1"), position(1), position(2)],
    ],
)
def test_unclear_positions_name_no_rank(positions):
    assert find_desync(positions) is None


def test_groups_are_compared_separately():
    tensor = [position(0, 7, group="tp"), position(1, 7, group="tp")]
    data = [position(0, 90, group="dp"), position(2, 90, group="dp"), position(4, 89, group="dp")]

    assert [late.rank for late in find_desync([*tensor, *data]).few] == [4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TIMEOUT.format(rank=5, sequence=7, operation="ALLREDUCE"), position(5, 7)),
        (
            "[rank12]:[E1016 ProcessGroupNCCL.cpp:616] [PG ID 2 PG GUID 7(DATA_PARALLEL_GROUP) Rank 1] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=482193, OpType=ALLREDUCE, NumelIn=1)",
            position(12, 482193, group="7"),
        ),
        ("[E P.cpp:475] [Rank 1] Watchdog: WorkNCCL(SeqNum=3, OpType=BROADCAST)", position(1, 3, "BROADCAST")),
        ("[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", None),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)", None),
    ],
)
def test_position_is_read_from_a_line(text, expected):
    assert parse_position(lines.parse(1, text)) == expected


@given(
    st.lists(st.builds(position, st.integers(0, 9), st.integers(0, 5), st.sampled_from("AB"), st.sampled_from("xy")))
)
def test_named_ranks_are_always_a_minority_at_an_earlier_or_the_same_operation(positions):
    if found := find_desync(positions):
        assert len(found.few) < len(found.many) and found.few[0].sequence <= found.many[0].sequence
        assert found.sentence.endswith(".")
