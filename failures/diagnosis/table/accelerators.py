"""Errors of other accelerators and runtimes: Ascend, AMD, TPU, and the coordination service of JAX. Pure."""

from __future__ import annotations

from ..signatures import Signature, cause, symptom
from ..values import Blame

ROWS: tuple[Signature, ...] = (
    cause(
        "npu-fault",
        "CUDAError",
        82,
        (
            r"\baicore (?:exception|timeout|trap exception)",
            r"NPU (?:function )?error: ?\S*[Aa]clrt\w+",
            r"\bacl(?:rt)?(?:\w+)?\(.{0,80}\) failed ?:",
            r"(?i:acl stream synchronize failed)",
            r"NPU \w+, error code is 50[0-9]{4}",
            r"\bEZ9999: Inner Error",
            r"reason=\[(?:stream sync timeout|aicore\w* \w+|vector core \w+|device \w+ error)",
        ),
        "rtStreamSynchronize execute failed, reason=[aicore exception][FUNC:Wait]",
        blame=Blame.GPU,
    ),
    symptom(  # the runtime reports any failed call like this: a code, then function and file in brackets
        "npu-runtime",
        "CUDAError",
        48,
        (
            r"\bEH9999:|\bEE[19][0-9]{3}: 20[0-9]{2}-",
            r"\[FUNC:\w+\]\[FILE:",
            r"\bNPU .{0,40}error code is [1-9]",
            r"\bERR0[0-9]100 [A-Z]+ call acl|\bEL0005: ",
        ),
        "EH9999: wait for the device to finish failed, runtime result = 107003.[FUNC:ReportCallError][FILE:log.cpp]",
        blame=Blame.GPU,
    ),
    cause(
        "npu-memory",
        "OutOfMemoryError",
        82,
        r"\bERR0[0-9]006 [A-Z]+ memory error|\bEL0004: |\berror code is 2070(?:01|18)\b",
        "[ERROR] (PID:88, Device:3, RankID:3) ERR00006 PTA memory error",
        blame=Blame.GPU,
    ),
    cause(
        "npu-fabric",
        "NetworkError",
        82,
        r"\bSUSPECT REMOTE ERROR\b|\bHCCL OP RETRY FAILED\b|\bROCE CQE error\b|\bEI00(?:09|13): ",
        "RuntimeError: SUSPECT REMOTE ERROR, one of the peers did not answer",
        blame=Blame.NETWORK,
    ),
    symptom(
        "npu-collective",
        "NCCLRemoteError",
        44,
        r"\bERR0[0-9]200 [A-Z]+ call hccl",
        "[ERROR] (PID:88, Device:3, RankID:3) ERR02200 DIST call hccl api failed.",
        blame=Blame.NETWORK,
    ),
    cause(
        "npu-collective-timeout",
        "NCCLTimeoutError",
        68,
        (
            r"\bEI0002\b|\bERR02011 DIST timeout|communication operator times? out",
            r"(?i:notify register times? out)",
            r"(?i:\bhccl\w*.{0,80}\b(?:timeout|timed out)\b)",
        ),
        "EI0002: The wait execution of the Notify register times out. Reason: the peer has not called the operator.",
        blame=Blame.NODE,
        unless=r"(?i)HCCL_\w+_TIMEOUT",
    ),
    cause(
        "npu-link",
        "ConnectionError",
        66,
        (r"\bEI0006\b", r"(?i:\bhccl\w*.{0,60}\bsocket.{0,40}(?:times? ?out|fail))"),
        "EI0006: Getting socket times out. Reason: the remote rank has not connected.",
        blame=Blame.NETWORK,
    ),
    cause(
        "amdgpu-fault",
        "CUDAError",
        80,
        (
            r"amdgpu: (?:\[?drm\]? ?)?.{0,60}ring \S+ timeout",
            r"amdgpu: GPU (?:reset begin|mode[12] reset|recovery)",
            r"amdgpu: (?:MODE[12] reset|\w+ queue reset failed|MES failed to respond)",
            r"Memory access fault by GPU node|\bHW Exception by GPU node|\bHSA_STATUS_ERROR_\w+",
            r"amdgpu.{0,60}\b(?:page fault|no-retry page fault)\b",
            r"amdgpu.{0,60}\buncorrectable hardware errors?\b|ERREVENT_ATHUB_INTERRUPT",
        ),
        "amdgpu 0000:c1:00.0: amdgpu: MODE2 reset",
        caseless=True,
        blame=Blame.GPU,
    ),
    cause(
        "tpu-fault",
        "CUDAError",
        72,
        (
            r"Unable to enqueue when not opened|Unavailable: .{0,80}Driver not open|\bDriver not open\.",
            r"TPU (?:device|chip|core|driver) .{0,60}(?:failed|unhealthy|halted)|Core halted unexpectedly",
        ),
        "Unable to enqueue when not opened, queue: [0000:00:07.0 PE0 Queue HBM_WRITE]. State is: FAILED",
        blame=Blame.GPU,
    ),
    symptom(
        "jax-task-lost",
        "NodeFailure",
        58,
        r"(?i:/job:\S*/task:[0-9]+ heartbeat timeout)",
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:7 heartbeat timeout.",
        blame=Blame.NODE,
    ),
    symptom(
        "jax-leader-lost",
        "ConnectionError",
        50,
        (
            r"Failed to send RPC to coordination service",
            r"JAX distributed service detected fatal errors",
        ),
        "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader died or the network failed.",
        blame=Blame.NETWORK,
    ),
)
