"""What the simulated cluster writes, read by the diagnosis: an honest check of both, for neither knows the other.

The sentences of endings.py are never to be tuned to signatures, nor the other way round. What is missed is listed by
`python -m tests.cluster.test_told_and_found`, and the floor below is what was measured less a little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

import pytest

from failures.diagnosis.engine import diagnose_text
from scheduling.slurmsim.failure_reasons import REASON_NAMES
from scheduling.slurmsim.scripts.job_output import lines_until, plan_log
from scheduling.slurmsim.scripts.play import simulate_run
from scheduling.slurmsim.values import SlurmJob

from .make import NODES, NOW, request

SEEDS = range(4)
# The label of a reason that is not its name in another spelling
LABELS = {
    "nvlink_error": "NVLinkError",
    "cuda_error": "CUDAError",
    "ecc_error": "ECCError",
    "gpu_off_bus": "GPUFallenOffBus",
    "s3_storage_error": "S3StorageError",
    "nccl_timeout_error": "NCCLTimeoutError",
    "nccl_remote_error": "NCCLRemoteError",
    "os_error": "OSError",
    "host_oom": "HostOOMKilled",
    "loss_nan": "LossNaNOrSpike",
}
EXPECTED = {name: LABELS.get(name, name.title().replace("_", "")) for name in REASON_NAMES}


def log_of(reason: str, *, seed: int, nodes: int) -> str:
    hints = {"ACME_KIND": "pretrain", "SIM_DURATION_S": "300"}
    hints["SIM_END"] = "OUT_OF_MEMORY" if reason == "host_oom" else f"FAILED:1:{reason}"
    asked = request(
        *NODES[:nodes], environment=hints, comment=f"acme:{reason}-{seed}", gpus_per_node=8 if nodes > 1 else 1
    )
    gpus = {node: tuple(range(asked.gpus_per_node)) for node in NODES[:nodes]}
    job = SlurmJob(id=7, request=asked, submitted_at=NOW, started_at=NOW, began_at=NOW, nodes=NODES[:nodes], gpus=gpus)
    return "\n".join(lines_until(plan_log(job, simulate_run(job, seed=seed, speed=1.0)), 0, inf)) + "\n"


def found() -> Iterator[tuple[str, str, int]]:
    """Reason, the label that was found, nodes."""
    for reason in sorted(REASON_NAMES):
        for nodes in (1, 4):
            for seed in SEEDS:
                yield reason, diagnose_text(log_of(reason, seed=seed, nodes=nodes)).root_cause, nodes


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[str, str, int]]:
    return list(found())


def test_most_of_what_is_told_is_found(verdicts):
    right = sum(EXPECTED[reason] == label for reason, label, _ in verdicts)

    assert right / len(verdicts) >= FLOOR, Counter((r, label) for r, label, _ in verdicts if EXPECTED[r] != label)


def test_no_failure_is_taken_for_a_good_end(verdicts):
    assert not [reason for reason, label, _ in verdicts if label == "None"]


def test_a_good_run_with_all_its_noise_is_taken_for_one():
    hints = {"ACME_KIND": "pretrain", "SIM_DURATION_S": "3000", "SIM_END": "COMPLETED"}
    for seed in SEEDS:
        asked = request(*NODES, environment=hints, comment=f"acme:{seed}", gpus_per_node=8)
        job = SlurmJob(id=7, request=asked, submitted_at=NOW, started_at=NOW, began_at=NOW, nodes=NODES)

        text = "\n".join(lines_until(plan_log(job, simulate_run(job, seed=seed, speed=1.0)), 0, inf))

        assert diagnose_text(text).root_cause == "None"


FLOOR = 0.9

if __name__ == "__main__":
    said = list(found())
    for (reason, label), count in sorted(Counter((r, label) for r, label, _ in said if EXPECTED[r] != label).items()):
        print(f"{reason:24} taken for {label:20} {count} of {2 * len(SEEDS)}")
    right = sum(EXPECTED[reason] == label for reason, label, _ in said)
    print(f"{right} of {len(said)} = {right / len(said):.1%}")
