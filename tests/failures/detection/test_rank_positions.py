"""What the stacks of the ranks show: where each rank is, and which ranks the others wait for."""

import pytest

from failures.detection.stacks import (
    Frame,
    RankActivity,
    RankPosition,
    Stack,
    expected_world_size,
    format_rank_ranges,
    parse_stacks,
    rank_positions,
    summarize_stacks,
)

TRAIN = Frame(name="train_step", file="/job/train.py", line="88")
MAIN = Frame(name="main", file="/job/main.py", line="9")
C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = Frame(name="all_reduce", file=C10D, line="2501")
GATHER = Frame(name="all_gather", file=C10D, line="2601")
LOADER = Frame(name="_next_data", file="/env/site-packages/torch/utils/data/dataloader.py", line="7")


def stack(rank, *frames):
    return Stack(rank=rank, frames=(*frames, TRAIN, MAIN))


def summary(*stacks, world=0):
    return summarize_stacks(rank_positions(stacks), world)


@pytest.mark.parametrize(
    ("frame", "activity"),
    [
        (REDUCE, RankActivity.COLLECTIVE),
        (Frame(name="wait", file=C10D, line="1"), RankActivity.COLLECTIVE),
        (Frame(name="send", file="/job/mail.py", line="1"), RankActivity.OTHER),
        (LOADER, RankActivity.LOADER),
        (Frame(name="save", file="/env/site-packages/torch/serialization.py", line="1"), RankActivity.CHECKPOINT),
        (Frame(name="compile", file="/env/site-packages/triton/compiler/code.py", line="1"), RankActivity.COMPILE),
        (Frame(name="synchronize", file="/env/site-packages/torch/cuda/__init__.py", line="1"), RankActivity.DEVICE),
        (Frame(name="memory", file="/env/site-packages/torch/cuda/__init__.py", line="1"), RankActivity.OTHER),
    ],
)
def test_innermost_known_frame_tells_what_a_rank_does(frame, activity):
    assert rank_positions([stack(0, frame)])[0].doing is activity


def test_position_names_the_call_in_the_program():
    wrapper = Frame(name="wrapper", file="/env/site-packages/torch/util.py", line="3")

    position = rank_positions([stack(0, Frame(name="_reduce", file=C10D, line="5"), wrapper)])[0]

    assert (position.name, position.caller) == ("reduce", TRAIN)
    assert position.words(many=False) == "waits in reduce, train_step (job/train.py:88)"
    assert position.words(many=True) == "wait in reduce, train_step (job/train.py:88)"


def test_stack_in_libraries_only_is_named_by_its_innermost_frame():
    frames = tuple(Frame(name=name, file="/usr/lib/python3.11/threading.py", line="1") for name in ("poll", "run"))

    position = rank_positions([Stack(rank=0, frames=frames)])[0]

    assert position.words(many=False) == "is in poll, poll (python3.11/threading.py:1)"


def test_helper_threads_do_not_count_and_a_collective_counts_before_a_later_stack():
    helper = Stack(rank=0, frames=(LOADER, Frame(name="_bootstrap", file="threading.py", line="1")))

    assert rank_positions([helper]) == {}
    assert rank_positions([stack(0, LOADER), stack(0, REDUCE), stack(0), helper])[0].doing is RankActivity.COLLECTIVE
    assert rank_positions([stack(0, LOADER), stack(0)])[0].name == "train_step"


def test_minority_outside_the_collective_is_awaited():
    found = summary(stack(0, REDUCE), stack(1, LOADER), stack(2, REDUCE), stack(3, REDUCE), world=4)

    assert found.awaited_ranks == (1,)
    assert found.sentences == (
        "Ranks 0,2-3 wait in all_reduce, train_step (job/train.py:88).",
        "Rank 1 is in its data loader, train_step (job/train.py:88).",
        "The others wait for rank 1.",
    )


def test_half_of_the_ranks_is_not_a_minority():
    assert summary(stack(0, REDUCE), stack(1, LOADER)).awaited_ranks == ()


def test_all_ranks_in_one_collective_point_to_the_network():
    found = summary(stack(0, REDUCE), stack(1, REDUCE), world=2)

    assert found.sentences == (
        "All 2 ranks wait in all_reduce, train_step (job/train.py:88).",
        "All ranks are in the same collective: the fault is in a GPU, a link or the network.",
    )
    assert len(summary(stack(0, REDUCE), world=1).sentences) == 1


def test_different_collectives_point_to_the_order_of_calls():
    found = summary(stack(0, REDUCE), stack(1, GATHER), stack(2, GATHER))

    assert found.sentences[-1] == "Ranks wait in different collectives: the program calls them in a different order."
    assert found.sentences[0].startswith("Ranks 1-2 wait in all_gather")


def test_ranks_without_a_stack_are_named():
    found = summary(stack(0, REDUCE), stack(1, REDUCE), stack(3, REDUCE), world=5)

    assert found.silent == (2, 4)
    assert found.sentences[-1] == "Ranks 2,4 reported no stack."
    assert not any("same collective" in sentence for sentence in found.sentences)


def test_stacks_of_unknown_ranks_give_one_sentence():
    assert summary(stack(-1, REDUCE)).sentences == ("One rank waits in all_reduce, train_step (job/train.py:88).",)
    assert summarize_stacks({}, 8).sentences == ("No stack was found in the log.",)


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([8, 0, 1, 2, 5, 9], "0-2,5,8-9")]
)
def test_ranks_are_written_as_ranges(numbers, text):
    assert format_rank_ranges(numbers) == text


@pytest.mark.parametrize(("ranks", "world"), [([0, 1, 2], 4), ([0, 1], 0), ([0, 1, -1], 0), ([], 0)])
def test_world_is_expected_only_if_most_gpus_reported(ranks, world):
    position = RankPosition(doing=RankActivity.OTHER, name="f", frame=TRAIN)

    assert expected_world_size(dict.fromkeys(ranks, position), 4) == world


def test_interleaved_stacks_are_separated_by_their_prefix():
    text = "\n".join(
        [
            "[rank0]: Thread 0x00007f (most recent call first):",
            "[rank1]: Thread 0x00007f (most recent call first):",
            '[rank0]:   File "/job/a.py", line 1 in first',
            '[rank1]:   File "/job/b.py", line 2 in second',
            '[rank0]:   File "/job/a.py", line 3 in main',
            "[rank0]: done",
            '[rank1]:   File "/job/b.py", line 4 in main',
        ]
    )

    assert [(one.rank, [frame.name for frame in one.frames]) for one in parse_stacks(text)] == [
        (0, ["first", "main"]),
        (1, ["second", "main"]),
    ]
