"""This machine as a node: what it has, and what its GPUs say."""

from __future__ import annotations

import csv
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scheduling.slurmsim.dcgm_exporter import GpuSample
from scheduling.slurmsim.values import SlurmNode

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


def this_node(now: float) -> SlurmNode:
    """CPUs are those we may run on, which in a container are fewer than the machine's."""
    gpus = list(gpu_samples())
    return SlurmNode(
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
    found = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


def boot_time(now: float) -> float:
    return now - float(Path("/proc/uptime").read_text().split()[0])


def short_model(name: str) -> str:
    """`a100` of "NVIDIA A100-SXM4-80GB": the word that clusters use as the type of a Gres."""
    found = GPU_MODEL_PATTERN.search(name)
    return found[1].lower() if found else re.sub(r"\W+", "-", name.strip().lower())


def gpu_samples() -> Iterator[GpuSample]:
    """What nvidia-smi says just now; nothing where there is none, or none that answers."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    command = [program, f"--query-gpu={','.join(GPU_QUERY_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return
    for row in csv.reader(said.stdout.splitlines(), skipinitialspace=True):
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
    """nvidia-smi writes [N/A] for what a GPU does not measure."""
    try:
        return float(text)
    except ValueError:
        return 0.0
