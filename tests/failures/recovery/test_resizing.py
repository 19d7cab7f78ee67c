"""Changed requests of jobs that ran out of memory: batch size, accumulation, workers and memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import StateConflict
from failures.recovery.rules.resizing import (
    JobRequest,
    applicable_request,
    apply_changes,
    build_memory_request,
    propose_changes,
    reverse_changes,
)

GIB = 1024
MEGATRON = "torchrun pretrain_gpt.py --micro-batch-size 8 --global-batch-size 1024 --num-layers 32"


def asked(command="python train.py", memory_mb=0, **environment):
    return JobRequest(command=command, environment=environment, memory_mb=memory_mb)


def changes(cause, given, *, most=512 * GIB, whole=False):
    return propose_changes(cause, build_memory_request(given, most_memory_mb=most, whole_nodes=whole))


def instead(cause, given, **room):
    return apply_changes(changes(cause, given, **room), given)


# --- a smaller batch


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        (MEGATRON, MEGATRON.replace("size 8", "size 4")),
        ("lit.py --batch_size 64 --micro_batch_size 4", "lit.py --batch_size 64 --micro_batch_size 2"),
        (
            "run.py --micro-batch-size=9 --global-batch-size=1008",
            "run.py --micro-batch-size=3 --global-batch-size=1008",
        ),
        (
            "run_clm.py --per_device_train_batch_size 8 --gradient_accumulation_steps 2",
            "run_clm.py --per_device_train_batch_size 4 --gradient_accumulation_steps 4",
        ),
        (
            "run_clm.py --per_device_train_batch_size 8 --bf16",
            "run_clm.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --bf16",
        ),
        (
            "tune run full --config c.yaml batch_size=6 gradient_accumulation_steps=5",
            "tune run full --config c.yaml batch_size=3 gradient_accumulation_steps=10",
        ),
        (
            "python t.py data.micro_batch_size=2 trainer.accumulate_grad_batches=8",
            "python t.py data.micro_batch_size=1 trainer.accumulate_grad_batches=16",
        ),
        ("#!/bin/sh\nexport MBS=4\nexport GAS=8\nsh run.sh\n", "#!/bin/sh\nexport MBS=2\nexport GAS=16\nsh run.sh\n"),
    ],
)
def test_batch_per_gpu_shrinks_and_the_global_batch_stays(command, becomes):
    assert instead("OutOfMemoryError", asked(command)).command == becomes
    assert all(one.keeps_batch for one in changes("OutOfMemoryError", asked(command)))


def test_option_in_the_environment_is_changed_there():
    given = asked("sh run.sh", MICRO_BATCH_SIZE="8", GRADIENT_ACCUMULATION_STEPS="1", HF_TOKEN="abc")

    new = instead("OutOfMemoryError", given)

    assert new.environment == {"MICRO_BATCH_SIZE": "4", "GRADIENT_ACCUMULATION_STEPS": "2", "HF_TOKEN": "abc"}
    assert new.command == given.command


@pytest.mark.parametrize("value", ["--lr 1 --micro-batch-size 8 --gas 2", "--micro-batch-size 8 --gas 2"])
def test_option_inside_a_variable_is_changed_and_restored(value):
    given = asked("sh run.sh $ARGS", ARGS=value, OTHER="--lr 2")
    made = changes("OutOfMemoryError", given)

    new = apply_changes(made, given)

    assert new.environment == {"ARGS": value.replace("size 8", "size 4").replace("gas 2", "gas 4"), "OTHER": "--lr 2"}
    assert apply_changes(reverse_changes(made), new) == given


def test_number_with_leading_zeros_is_found_again():
    given = asked("train.py --micro-batch-size 08 --gbs 64")
    made = changes("OutOfMemoryError", given)

    assert apply_changes(made, given).command == "train.py --micro-batch-size 4 --gbs 64"
    assert apply_changes(reverse_changes(made), apply_changes(made, given)) == given


def test_change_that_could_not_be_applied_is_not_proposed():
    given = asked("train.py --mbs 8 --gbs 64")
    named = build_memory_request(given, most_memory_mb=0, whole_nodes=False)

    assert applicable_request("OutOfMemoryError", named, given) == named
    assert applicable_request("OutOfMemoryError", named, asked("other.py")) is None


@pytest.mark.parametrize(
    "steps",
    [
        "--gradient_accumulation_steps $ACCUM",
        "--gradient_accumulation_steps=$ACCUM",
        "--gradient-accumulation-steps auto",
        "--gradient_accumulation_steps 0",
        "--gradient_accumulation_steps 2 --gradient_accumulation_steps 4",
        "--gradient_accumulation_steps",
        "--trainer-gradient-accumulation-steps 4",
    ],
)
def test_unreadable_accumulation_steps_are_not_added_again(steps):
    given = asked(f"run_clm.py --per_device_train_batch_size 8 {steps}", ACCUM="4")

    (only,) = changes("OutOfMemoryError", given)

    assert only.after == "--per_device_train_batch_size 4" and not only.keeps_batch


def test_accumulation_steps_in_the_environment_are_not_added_to_the_command():
    given = asked("run_clm.py --per_device_train_batch_size 8", GRADIENT_ACCUMULATION_STEPS="auto")

    (only,) = changes("OutOfMemoryError", given)

    assert only.after == "--per_device_train_batch_size 4" and not only.keeps_batch


def test_option_that_refers_to_a_readable_variable_is_understood():
    given = asked("t.py --micro-batch-size $MBS --gradient_accumulation_steps ${GAS}", MBS="8", GAS="2")

    new = instead("OutOfMemoryError", given)

    assert new == asked(given.command, MBS="4", GAS="4")
    assert all(one.keeps_batch for one in changes("OutOfMemoryError", given))


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        ("# was --mbs 8\nt.py --mbs 4 --gbs 64", "# was --mbs 8\nt.py --mbs 2 --gbs 64"),
        ("t.py --mbs 8 --gbs 64  # don't: --mbs 8", "t.py --mbs 4 --gbs 64  # don't: --mbs 8"),
        ("t.py --name '# 1' \"a # b\" --mbs 8 --gbs 64", "t.py --name '# 1' \"a # b\" --mbs 4 --gbs 64"),
        ("t.py # --mbs 8 --gbs 64", "t.py # --mbs 8 --gbs 64"),
    ],
)
def test_options_in_comments_do_not_count(command, becomes):
    assert instead("OutOfMemoryError", asked(command)).command == becomes


def test_program_without_accumulation_gets_a_smaller_global_batch_and_says_so():
    (only,) = changes("OutOfMemoryError", asked("train.py --batch-size 64"))

    assert only.after == "--batch-size 32" and not only.keeps_batch


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "train.py --micro-batch-size 1 --global-batch-size 64",
        "train.py --micro-batch-size $MBS --global-batch-size 64",
        "train.py --micro-batch-size 8 && train.py --micro-batch-size 4",
        "train.py --eval-batch-size 64 --batch-size-schedule 8",
        "train.py --micro-batch-size 8x2",
        "train.py --micro-batch-size 11 --global-batch-size 64",
        "train.py --batch-size 1000003",
        "train.py --micro-batch-size 8 --mbs 4 --batch-size 64",
    ],
)
def test_unreadable_option_is_left_to_the_owner(command):
    assert changes("OutOfMemoryError", asked(command)) == ()


def test_only_relevant_numbers_of_a_command_are_stored():
    kept = build_memory_request(
        asked("t.py --api-key 12345 --port 6000 --mbs 2", PIN="777"), most_memory_mb=0, whole_nodes=False
    )

    assert [one.text for one in kept.options] == ["--mbs 2"]


# --- more memory


@pytest.mark.parametrize(
    ("memory_gib", "most_gib", "whole", "becomes"),
    [
        (64, 512, False, "96G"),
        (400, 512, False, "512G"),
        (1, 512, False, "1536M"),
        (6, 512, False, "9G"),
        (0, 512, True, "512G"),
    ],
)
def test_host_memory_grows_by_half_and_never_beyond_the_nodes(memory_gib, most_gib, whole, becomes):
    (only,) = changes("HostOOMKilled", asked(memory_mb=memory_gib * GIB), most=most_gib * GIB, whole=whole)

    assert (only.field, only.after) == ("memory_per_node", becomes)


@pytest.mark.parametrize(
    ("memory_mb", "becomes", "why"),
    [
        (100, "150M", "50M more"),
        (101, "152M", "51M more"),
        (9 * GIB + 1, "14G", "5119M more"),
        (64 * GIB, "96G", "32G more"),
    ],
)
def test_additional_memory_is_stated_exactly(memory_mb, becomes, why):
    (only,) = changes("HostOOMKilled", asked(memory_mb=memory_mb))

    assert (only.after, only.why) == (becomes, why)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: unable to open shared memory object </torch_1> in read-write mode",
        "It is possible that dataloader's workers are out of shared memory.",
        "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
        "DataLoader worker (pid 7) is killed by signal: Bus error.",
    ],
)
def test_data_loader_without_shared_memory_gets_fewer_workers_and_no_more_memory(line):
    given = asked("t.py --num-workers 8", memory_mb=64 * GIB)
    room = {"most_memory_mb": 512 * GIB, "whole_nodes": False}

    (only,) = propose_changes("DataloaderKilled", build_memory_request(given, evidence=[line], **room))
    (other,) = propose_changes(
        "DataloaderKilled",
        build_memory_request(given, evidence=["worker (pid 7) is killed by signal: Killed."], **room),
    )

    assert only.after == "--num-workers 4" and other.after == "96G"


def test_memory_that_is_not_a_whole_number_of_gib_is_restored_exactly():
    given = asked(memory_mb=1000)
    made = changes("HostOOMKilled", given, most=1500)

    assert apply_changes(made, given).memory_mb == 1500
    assert apply_changes(reverse_changes(made), apply_changes(made, given)) == given


@pytest.mark.parametrize("cause", ["HostOOMKilled", "DataloaderKilled"])
def test_data_loader_gets_fewer_workers_if_no_more_memory_is_available(cause):
    full = asked("train.py --dataloader_num_workers 12", memory_mb=512 * GIB)

    assert instead(cause, full).command == "train.py --dataloader_num_workers 6"


def test_job_on_part_of_a_node_without_a_memory_request_is_left_to_its_owner():
    assert changes("HostOOMKilled", asked(memory_mb=0)) == ()


# --- applied and reversed


@pytest.mark.parametrize(
    "by_now",
    [asked(MEGATRON.replace("size 8", "size 2")), asked(MEGATRON.replace("size 8", "size 80")), asked("other.py")],
)
def test_change_does_not_apply_to_a_request_changed_meanwhile(by_now):
    with pytest.raises(StateConflict, match="--micro-batch-size 8"):
        apply_changes(changes("OutOfMemoryError", asked(MEGATRON)), by_now)


@given(st.text(max_size=80), st.integers(0, 2**20), st.sampled_from(["OutOfMemoryError", "HostOOMKilled"]))
def test_change_of_any_command_can_be_applied_and_reversed(text, memory_mb, cause):
    given_ = asked(f"{text} --micro-batch-size 8 --num-workers 4", memory_mb=memory_mb)
    made = changes(cause, given_)

    try:
        there = apply_changes(made, given_)
    except StateConflict:
        return  # it says the same twice
    assert apply_changes(reverse_changes(made), there) == given_
    assert there != given_ or not made
