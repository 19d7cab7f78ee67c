"""What Kubernetes says about pods: the cause that it shows, and similar lines that show another one or none."""

from __future__ import annotations

import pytest

from failures.diagnosis.engine import diagnose_text

ENDED = "acme: pod acme-q7-1-0 on node fen-2 ended: "
EVENT = "Warning  {}  pod/acme-q7-1-0  {}"
LINES = (
    ("OOMKilled", "HostOOMKilled", f"{ENDED}OOMKilled, exit code 137"),
    (
        "evicted for its own memory",
        "HostOOMKilled",
        EVENT.format(
            "Evicted",
            "The node was low on resource: memory. Container job was using 870Gi, which exceeds its request of 600Gi.",
        ),
    ),
    (
        "evicted for the memory of others",
        "Preempted/TimeLimit",
        EVENT.format("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."),
    ),
    (
        "evicted from a full node",
        "Preempted/TimeLimit",
        EVENT.format("Evicted", "The node was low on resource: ephemeral-storage. Container job was using 90Gi."),
    ),
    (
        "evicted for its volume",
        "DiskFull",
        EVENT.format("Evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".'),
    ),
    (
        "volume within its limit",
        "None",
        'INFO data: EmptyDir volume "tmp" has 12Gi, the limit is "40Gi"',
    ),
    (
        "image that does not exist",
        "ArgumentError",
        EVENT.format("Failed", 'Failed to pull image "hub.example/lm:v9": code = NotFound desc = hub.example/lm:v9'),
    ),
    (
        "image without permission",
        "PermissionError",
        'acme: pod acme-q7-1-0 waits: ErrImagePull: failed to fetch anonymous token: 401 Unauthorized for "lm:v9"',
    ),
    (
        "registry that does not answer",
        "ConnectionError",
        'acme: pod acme-q7-1-0 waits: ImagePullBackOff: Back-off pulling image "hub.example/lm:v9"',
    ),
    ("data that is not found", "None", "INFO notes.txt: not found, no notes are shown"),
    (
        "secret that does not exist",
        "FileNotFoundError",
        'acme: pod acme-q7-1-0 waits: CreateContainerConfigError: secret "wandb" not found',
    ),
    (
        "crash loop",
        "Unknown",
        "acme: pod acme-q7-1-0 waits: CrashLoopBackOff: back-off 40s restarting failed container=job",
    ),
    (
        "mount that failed",
        "OSError",
        EVENT.format("FailedMount", 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32'),
    ),
    (
        "volume on two nodes",
        "OSError",
        EVENT.format(
            "FailedAttachVolume", 'Multi-Attach error for volume "pvc-7" Volume is already used by pod(s) e-4'
        ),
    ),
    ("node not ready", "NodeFailure", EVENT.format("NodeNotReady", "Node is not ready")),
    ("lost node", "NodeFailure", f"{ENDED}NodeLost: node fen-2 does not respond"),
    ("deleted with its node", "NodeFailure", f"{ENDED}deleted after node fen-2 was lost"),
    ("taint", "NodeFailure", f"{ENDED}DeletionByTaintManager: Taint manager: deleting due to NoExecute taint"),
    ("service that does not respond", "None", "INFO node cache: key fen-2 does not respond to eviction hints"),
    (
        "no healthy devices",
        "NodeFailure",
        f"{ENDED}UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        " devices nvidia.com/gpu, which is unexpected",
    ),
    (
        "too few devices",
        "NodeFailure",
        EVENT.format(
            "UnexpectedAdmissionError",
            "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8,"
            " Available: 7, which is unexpected",
        ),
    ),
    (
        "GPUs taken by others",
        "NodeFailure",
        f"{ENDED}OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu, requested: 8, used: 4,"
        " capacity: 8",
    ),
    ("memory of a GPU", "OutOfMemoryError", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("preempted", "Preempted/TimeLimit", EVENT.format("Preempted", "Preempted by research/big-0 on node fen-2")),
    (
        "preempted by condition",
        "Preempted/TimeLimit",
        f"{ENDED}PreemptionByScheduler: preempting to accommodate a higher priority pod",
    ),
    ("drained", "Preempted/TimeLimit", f"{ENDED}EvictionByEvictionAPI: Eviction API: evicting"),
    (
        "time limit",
        "Preempted/TimeLimit",
        f"{ENDED}DeadlineExceeded: Pod was active on the node longer than the specified deadline",
    ),
    (
        "deadline of one call",
        "ConnectionError",
        "grpc: rpc error: code = DeadlineExceeded desc = context deadline exceeded while dialing 10.0.0.1:443",
    ),
    ("exit code alone", "Unknown", f"{ENDED}exit code 1"),
    ("success", "None", f"{ENDED}succeeded"),
    ("end after a node failure", "None", "acme: end of the log of 4 pods: NODE_FAIL"),
    ("end after a failed start", "None", "acme: end of the log of 1 pod: BOOT_FAIL"),
    (
        "log of another kubelet",
        "None",
        "acme: the log of pod acme-q7-1-2 is not complete: HTTP 500: dial tcp 10.0.0.9:10250: connect: connection"
        " refused",
    ),
)


@pytest.mark.parametrize(("label", "line"), [entry[1:] for entry in LINES], ids=[entry[0] for entry in LINES])
def test_line_has_its_cause(label, line):
    assert diagnose_text(f"step 1 loss 2.0\n{line}\n").root_cause == label


@pytest.mark.parametrize("rank", ["", "3: "])
def test_error_of_the_program_is_the_cause_and_its_end_is_not(rank):
    log = f"""\
{rank}Traceback (most recent call last):
{rank}  File "/opt/run9/pretrain.py", line 88, in <module>
{rank}    rate = settings["lr"]
{rank}KeyError: 'lr'
{ENDED}exit code 1
acme: pod acme-q7-1-1 on node fen-3 ended: deleted
acme: end of the log of 2 pods: FAILED
"""

    assert diagnose_text(log).root_cause == "KeyError"


def test_memory_kill_of_one_pod_is_the_cause_of_what_the_others_print():
    log = f"""\
0: iteration 10 | loss 2.1
0: [rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
0: [rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
acme: pod acme-q7-1-1 on node fen-3 ended: OOMKilled, exit code 137
{ENDED}exit code 1
acme: end of the log of 2 pods: OUT_OF_MEMORY
"""

    assert diagnose_text(log).root_cause == "HostOOMKilled"
