"""The launcher's report of the first failed rank: it restores a program error that other ranks' symptoms precede."""

from __future__ import annotations

import pytest

from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.following import LogFollower
from failures.diagnosis.values import FailureCategory, RestartAdvice

PEER = (
    "[rank6]:[E ProcessGroupNCCL.cpp:1182] [PG 0 Rank 6] NCCL watchdog thread terminated with exception: NCCL error: "
    "remote process exited or there was a network error\n"
)
BEFORE = (
    '[rank28]: Traceback (most recent call last):\n  File "/opt/app/step.py", line 97, in load\n    out.copy_(src)\n'
)
ERROR = "[rank28]: RuntimeError: The size of tensor a (1024) must match the size of tensor b (2048) at dimension 1\n"


def report(rank: int, node: str = "node-4") -> str:
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "train.py FAILED\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-01-01_00:00:00\n"
        f"  host      : {node}\n"
        f"  rank      : {rank} (local_rank: {rank % 8})\n"
        "  exitcode  : 1 (pid: 97)\n"
    )


def test_error_of_the_first_failed_rank_is_the_cause_although_a_peer_logged_first():
    found = diagnose_text(PEER + BEFORE + ERROR + report(28))

    assert (found.root_cause, found.category) == ("RuntimeError", FailureCategory.FRAMEWORK)
    assert found.restart_helps is RestartAdvice.NO


def test_error_of_the_first_failed_rank_is_the_cause_although_a_peer_logged_into_its_traceback():
    assert diagnose_text(BEFORE + PEER + ERROR + report(28)).root_cause == "RuntimeError"


def test_launcher_prefixes_do_not_hide_the_report():
    prefixed = "".join(f"3: {row}\n" for row in report(28).splitlines())

    assert diagnose_text(PEER + BEFORE + ERROR + prefixed).root_cause == "RuntimeError"


def test_bundle_keeps_the_verdict_of_the_first_failed_rank():
    text = PEER + BEFORE + ERROR + report(28)
    follower = LogFollower()
    follower.feed(text.encode())

    assert diagnose_text(follower.compressor.bundle().text).root_cause == diagnose_text(text).root_cause


@pytest.mark.parametrize(
    "reports",
    ["", report(6), report(28) + report(35, "node-5")],
    ids=["no report", "another rank", "two agents that disagree"],
)
def test_symptom_before_a_vague_error_counts_without_a_single_first_failed_rank(reports: str):
    assert diagnose_text(PEER + BEFORE + ERROR + reports).root_cause == "NCCLRemoteError"


def test_symptom_of_the_same_rank_still_explains_its_vague_error():
    own = PEER.replace("[rank6]", "[rank28]").replace("Rank 6", "Rank 28")

    assert diagnose_text(own + BEFORE + ERROR + report(28)).root_cause == "NCCLRemoteError"
