"""Logs of the simulated cluster read by the diagnosis: a fair test of both, because neither knows the other.

The texts of `failure_messages.py` must never be tuned to signatures, nor the other way round. Misses are listed by
`python -m tests.scheduling.simulation.machines.test_diagnosis_of_simulated_logs`; the floor below is slightly less than
the measured result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

import pytest

from failures.diagnosis.engine import diagnose_text
from scheduling.simulation.machines.failure_reasons import REASON_NAMES
from scheduling.simulation.machines.scripts.job_output import lines_until, plan_log
from scheduling.simulation.machines.scripts.play import simulate_run
from scheduling.simulation.machines.values import SimulatedJob

from .make import NODES, NOW, request

SEEDS = range(4)
# Labels of reasons that are not the reason's name in another spelling
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
    job_request = request(
        *NODES[:nodes], environment=hints, comment=f"acme:{reason}-{seed}", gpus_per_node=8 if nodes > 1 else 1
    )
    gpus = {node: tuple(range(job_request.gpus_per_node)) for node in NODES[:nodes]}
    job = SimulatedJob(
        id=7, request=job_request, submitted_at=NOW, started_at=NOW, began_at=NOW, nodes=NODES[:nodes], gpus=gpus
    )
    return "\n".join(lines_until(plan_log(job, simulate_run(job, seed=seed, speed=1.0)), 0, inf)) + "\n"


def diagnosed_logs() -> Iterator[tuple[str, str, int]]:
    """(reason, label of the diagnosis, number of nodes) for all reasons."""
    for reason in sorted(REASON_NAMES):
        for nodes in (1, 4):
            for seed in SEEDS:
                yield reason, diagnose_text(log_of(reason, seed=seed, nodes=nodes)).root_cause, nodes


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[str, str, int]]:
    return list(diagnosed_logs())


def test_most_failures_get_the_right_label(verdicts):
    right = sum(EXPECTED[reason] == label for reason, label, _ in verdicts)

    assert right / len(verdicts) >= FLOOR, Counter((r, label) for r, label, _ in verdicts if EXPECTED[r] != label)


def test_no_failure_is_diagnosed_as_success(verdicts):
    assert not [reason for reason, label, _ in verdicts if label == "None"]


def test_successful_run_with_noise_is_diagnosed_as_success():
    hints = {"ACME_KIND": "pretrain", "SIM_DURATION_S": "3000", "SIM_END": "COMPLETED"}
    for seed in SEEDS:
        job_request = request(*NODES, environment=hints, comment=f"acme:{seed}", gpus_per_node=8)
        job = SimulatedJob(id=7, request=job_request, submitted_at=NOW, started_at=NOW, began_at=NOW, nodes=NODES)

        text = "\n".join(lines_until(plan_log(job, simulate_run(job, seed=seed, speed=1.0)), 0, inf))

        assert diagnose_text(text).root_cause == "None"


FLOOR = 0.9

if __name__ == "__main__":
    results = list(diagnosed_logs())
    for (reason, label), count in sorted(
        Counter((r, label) for r, label, _ in results if EXPECTED[r] != label).items()
    ):
        print(f"{reason:24} diagnosed as {label:20} {count} of {2 * len(SEEDS)}")
    right = sum(EXPECTED[reason] == label for reason, label, _ in results)
    print(f"{right} of {len(results)} = {right / len(results):.1%}")
