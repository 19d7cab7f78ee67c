"""Failures of the simulated cluster are diagnosed correctly, end to end: log, diagnosis, incident."""

from __future__ import annotations

import pytest

from failures.diagnosis.labels import LABELS
from scheduling.simulation.machines.failure_reasons import REASON_NAMES
from scheduling.simulation.machines.scripts.failure_output import FailureContext, failure_lines
from tests.failures import make

pytestmark = pytest.mark.django_db

OTHERWISE = {
    "nvlink_error": "NVLinkError", "cuda_error": "CUDAError", "ecc_error": "ECCError", "gpu_off_bus": "GPUFallenOffBus",
    "s3_storage_error": "S3StorageError", "nccl_timeout_error": "NCCLTimeoutError", "host_oom": "HostOOMKilled",
    "nccl_remote_error": "NCCLRemoteError", "os_error": "OSError", "loss_nan": "LossNaNOrSpike",
}  # fmt: skip


def label_of(reason):
    return OTHERWISE.get(reason) or "".join(word.title() for word in reason.split("_"))


def test_every_simulated_failure_is_a_diagnosis_label():
    assert {label_of(reason) for reason in REASON_NAMES} <= set(LABELS)


@pytest.mark.parametrize("reason", sorted(REASON_NAMES))
def test_simulated_failure_is_diagnosed_correctly(tmp_path, reason):
    scene = FailureContext(
        job=7, reason=reason, exit_code=1, nodes=("seren-001", "seren-002"), gpus_per_node=8, rank=3, step=40, dice="x"
    )
    before = "".join(f"step {n:>7} | loss 2.{n:04d} | 0.500 s/step\n" for n in range(30))

    row = make.diagnosed(tmp_path, before + "\n".join(failure_lines(scene)) + "\n", on=("seren-001", "seren-002"))

    assert row.root_cause == label_of(reason), row.evidence
    assert row.incident
