"""This machine as a node: its resources, and the readings of its GPUs."""

from __future__ import annotations

import csv
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scheduling.simulation.machines.dcgm_exporter import GpuSample
from scheduling.simulation.machines.values import SimulatedNode

GPU_MODEL_PATTERN = re.compile(r"\b([A-Z]{1,3}\d{2,4})")
GPU_QUERY_FIELDS = (
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "utilization.gpu",
    "memory.used",
    "temperature.gpu",
    "power.draw",
)
NVIDIA_SMI_TIMEOUT_S = 10.0


def this_node(now: float) -> SimulatedNode:
    """This machine's resources. CPUs are those that this process may use; in a container they are fewer than all."""
    gpus = list(gpu_samples())
    return SimulatedNode(
        name=host_name(),
        cpus=len(os.sched_getaffinity(0)),
        memory_mb=memory_mb(),
        gpus=len(gpus),
        gpu_model=short_model(gpus[0].model) if gpus else "",
        boot_at=boot_time(now),
    )


def host_name() -> str:
    return socket.gethostname().partition(".")[0]


def memory_mb() -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) // 1024 if match else 0


def boot_time(now: float) -> float:
    return now - float(Path("/proc/uptime").read_text().split()[0])


def short_model(name: str) -> str:
    """`a100` from "NVIDIA A100-SXM4-80GB": the name that clusters use as the type of a Gres."""
    match = GPU_MODEL_PATTERN.search(name)
    return match[1].lower() if match else re.sub(r"\W+", "-", name.strip().lower())


def gpu_samples() -> Iterator[GpuSample]:
    """The present readings of nvidia-smi; none if it is not installed or does not respond."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    command = [program, f"--query-gpu={','.join(GPU_QUERY_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return
    for row in csv.reader(result.stdout.splitlines(), skipinitialspace=True):
        if len(row) == len(GPU_QUERY_FIELDS) and row[0].isdigit():
            yield _parse_gpu_row(row)


def _parse_gpu_row(row: list[str]) -> GpuSample:
    index, name, uuid, bus, util, memory, temperature, power = row
    return GpuSample(
        node=host_name(),
        gpu=int(index),
        model=name,
        uuid=uuid,
        pci_bus_id=bus,
        util_percent=_float_or_zero(util),
        memory_used_mib=_float_or_zero(memory),
        temperature_c=_float_or_zero(temperature),
        power_w=_float_or_zero(power),
    )


def _float_or_zero(text: str) -> float:
    """The number, or 0 for [N/A], which nvidia-smi writes for values that a GPU does not measure."""
    try:
        return float(text)
    except ValueError:
        return 0.0
