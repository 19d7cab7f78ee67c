"""Kernel logs of the nodes, generated from the list of faults. Pure text.

A log is a function of the faults, so it needs no store and cannot contradict the telemetry. Lines have the format of
`dmesg` on machines with NVIDIA's driver; hangs and slow GPUs leave no lines, as on real machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from scheduling.simulation.machines.faults import ClusterFault, FaultKind
from scheduling.simulation.machines.values import SimulatedNode

STORAGE_HOST = "storage01"
FIRST_LINES_WITHIN_S = 25.0


@dataclass(frozen=True, kw_only=True, order=True)
class KernelLine:
    at: float
    text: str


def kernel_log_lines(
    node: SimulatedNode, faults: Iterable[ClusterFault], *, now: float, offset_s: float = 0.0
) -> list[str]:
    """All lines of the node's kernel up to now, with time and host.

    The kernel counts from its boot, so the times of all lines follow the present setting of the node's clock.
    """
    lines = sorted(line for fault in faults for line in _fault_lines(node, fault) if line.at <= now)
    return [f"{_timestamp(line.at + offset_s)} {node.name} kernel: {line.text}" for line in lines]


def may_log_between(fault: ClusterFault, since: float, until: float) -> bool:
    """Whether a fault may log lines between two times: the first ones come soon after it, the last one at its end."""
    return fault.at + FIRST_LINES_WITHIN_S > since or since < fault.until <= until


def pci_bus_of_gpu(gpu: int) -> str:
    """The PCI bus of a GPU, the same as in the telemetry's labels."""
    return f"{0x0F + 0x12 * gpu & 0xFF:02x}"


def _fault_lines(node: SimulatedNode, fault: ClusterFault) -> Iterator[KernelLine]:
    if fault.kind == FaultKind.STORAGE:
        yield from _storage_lines(fault)
    elif fault.node == node.name:
        for delay, text in _gpu_fault_messages(node, fault):
            yield KernelLine(at=fault.at + delay, text=text)


def _storage_lines(fault: ClusterFault) -> Iterator[KernelLine]:
    yield KernelLine(at=fault.at + 0.5, text=f"nfs: server {STORAGE_HOST} not responding, still trying")
    yield KernelLine(at=fault.until, text=f"nfs: server {STORAGE_HOST} OK")


def _gpu_fault_messages(node: SimulatedNode, fault: ClusterFault) -> Iterator[tuple[float, str]]:
    dice = Random(f"{fault.number}:{node.name}:kernel")
    pid, pci = dice.randrange(20_000, 400_000), pci_bus_of_gpu(max(fault.gpu, 0))
    prefix = f"NVRM: Xid (PCI:0000:{pci}:00)"
    process = f"pid={pid}, name=python3"
    match fault.kind:
        case FaultKind.ECC:
            part = dice.randrange(12)
            yield (
                0.0,
                f"{prefix}: 48, {process}, DBE (double bit error) ECC error on GPU at partition {part}, subpartition 0",
            )
            yield 0.1, f"{prefix}: 63, Row Remapper: New row (0x{dice.randrange(16**8):08x}) marked for remapping"
            yield 0.2, f"{prefix}: 94, {process}, Contained: Uncorrectable, channel 0x00000008"
        case FaultKind.NVLINK:
            link = dice.randrange(12)
            yield 0.0, f"{prefix}: 74, {process}, NVLink: fatal error detected on link {link}(0x10000, 0x0, 0x0, 0x0)"
            yield 1.0, f"{prefix}: 45, {process}, Ch 00000008"
        case FaultKind.OFF_BUS:
            yield 0.0, f"{prefix}: 79, {process}, GPU has fallen off the bus."
            yield 0.0, f"NVRM: GPU 0000:{pci}:00.0: GPU has fallen off the bus."
            yield 0.4, f"{prefix}: 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
        case FaultKind.FABRIC:
            port = dice.randrange(4)
            yield 0.0, f"mlx5_core 0000:{0x40 + port:02x}:00.0: mlx5_{port}: Port: 1 Link DOWN"
            yield dice.uniform(2, 20), f"mlx5_core 0000:{0x40 + port:02x}:00.0: mlx5_{port}: Port: 1 Link ACTIVE"
        case FaultKind.DEATH if fault.until:
            yield fault.until - fault.at, "Linux version 5.15.0-105-generic (buildd@lcy02) #115-Ubuntu SMP"


def _timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f+00:00")
