"""GPU telemetry as a DCGM exporter prints it, and the values of a simulated GPU. Pure text and arithmetic.

A simulated value depends on the seed, the GPU, the time and the work there, and on nothing else: the same moment asked
twice gives the same page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import pi, sin

from jobs.lifecycle import Kind, State

from .play import Play
from .world import Job, World

STEP_S = 5  # values change this often, as DCGM samples
XID_OF_CAUSE = {"nvlink": 74, "ecc": 48, "nccl_timeout": 0}
MEMORY_MIB = {"a100": 81_920, "h100": 81_559, "h200": 143_771, "a800": 81_920}
FULL_POWER_W = {"a100": 400.0, "h100": 700.0, "h200": 700.0}


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU at one moment. `sm_active` is None where it cannot be measured."""

    node: str
    gpu: int
    model: str = ""
    uuid: str = ""
    pci_bus_id: str = ""
    util_percent: float = 0.0
    memory_used_mib: float = 0.0
    temperature_c: float = 0.0
    power_w: float = 0.0
    sm_active: float | None = None
    xid: int = 0


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    help: str
    of: Callable[[GpuSample], float | None]


METRICS = (
    Metric(name="DCGM_FI_DEV_GPU_UTIL", help="GPU utilization (in %).", of=lambda s: s.util_percent),
    Metric(name="DCGM_FI_DEV_FB_USED", help="Framebuffer memory used (in MiB).", of=lambda s: s.memory_used_mib),
    Metric(name="DCGM_FI_DEV_GPU_TEMP", help="GPU temperature (in C).", of=lambda s: s.temperature_c),
    Metric(name="DCGM_FI_DEV_POWER_USAGE", help="Power draw (in W).", of=lambda s: s.power_w),
    Metric(name="DCGM_FI_DEV_XID_ERRORS", help="Value of the last XID error encountered.", of=lambda s: s.xid),
    Metric(name="DCGM_FI_PROF_SM_ACTIVE", help="Ratio of cycles an SM has a warp.", of=lambda s: s.sm_active),
)


def page(samples: Iterable[GpuSample]) -> str:
    """One block per metric, one line per GPU."""
    rows = [(sample, _labels(sample)) for sample in samples]
    return "".join(line for metric in METRICS for line in _block(metric, rows))


def _block(metric: Metric, rows: Iterable[tuple[GpuSample, str]]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} gauge\n"
    for sample, labels in rows:
        if (value := metric.of(sample)) is not None:
            yield f"{metric.name}{{{labels}}} {value:g}\n"


def _labels(sample: GpuSample) -> str:
    pairs = (
        ("gpu", str(sample.gpu)),
        ("UUID", sample.uuid),
        ("pci_bus_id", sample.pci_bus_id),
        ("device", f"nvidia{sample.gpu}"),
        ("modelName", sample.model),
        ("hostname", sample.node),
    )
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# The simulated GPU


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a GPU is busy with, as shares of what it can."""

    util: float = 0.0
    memory: float = 0.005
    sm: float = 0.0


IDLE = Load()


def simulated(world: World, play: Callable[[Job], Play], *, seed: int, now: float) -> Iterator[GpuSample]:
    """Every GPU of every node that answers; a dead node's exporter is dead too."""
    tick = int(now // STEP_S)
    xids = _xids(world, play)
    for node in world.nodes.values():
        if node.down:
            continue
        users = {gpu: job for job in world.jobs_on(node.name) for gpu in job.gpus.get(node.name, ())}
        plays = {job.id: play(job) for job in users.values()}
        for gpu in range(node.gpus):
            job = users.get(gpu)
            load = IDLE if job is None else _load(job, plays[job.id], tick * STEP_S)
            dice = _noise(seed, node.name, gpu, tick)
            yield _sample(node.name, node.gpu_model, gpu, load, dice, xids.get((node.name, gpu), 0), seed)


def _load(job: Job, play: Play, now: float) -> Load:
    """Pretraining is dense; evaluation loads, generates and then waits for its metrics with an idle GPU."""
    since = now - job.began_at
    if job.configuring or job.completing or since < 0:
        return Load(memory=0.02)
    if play.kind == Kind.EVALUATION:
        return _evaluation_load(since / max(min(play.duration_s, 1e9), 1.0))
    if play.kind in (Kind.PRETRAIN, Kind.SFT, Kind.MLLM):
        saving = since % 300 < STEP_S * 2  # a checkpoint: memory stays, the SMs rest
        return Load(
            util=0.45 if saving else 0.97, memory=0.86, sm=0.1 if saving else 0.78 + 0.04 * sin(since * pi / 60)
        )
    return Load(util=0.55, memory=0.35, sm=0.3)


def _evaluation_load(share: float) -> Load:
    if share < 0.25:
        return Load(util=0.03, memory=0.30, sm=0.01)
    if share < 0.75:
        return Load(util=0.88, memory=0.62, sm=0.48)
    return Load(util=0.02, memory=0.62, sm=0.0)


def _sample(node: str, model: str, gpu: int, load: Load, dice: float, xid: int, seed: int) -> GpuSample:
    full = FULL_POWER_W.get(model, 400.0)
    util = min(max(load.util + 0.02 * dice * (load.util > 0.01), 0.0), 1.0)
    return GpuSample(
        node=node,
        gpu=gpu,
        model=f"NVIDIA {model.upper()}",
        uuid=_uuid(seed, node, gpu),
        pci_bus_id=f"00000000:{0x0F + 0x12 * gpu & 0xFF:02X}:00.0",
        util_percent=round(100 * util),
        memory_used_mib=round(load.memory * MEMORY_MIB.get(model, 81_920)),
        temperature_c=round(29 + 36 * util + 2 * dice),
        power_w=round(full * (0.16 + 0.76 * max(load.sm, 0.4 * util)) + 4 * dice, 1),
        sm_active=round(max(load.sm + 0.01 * dice * (load.sm > 0.01), 0.0), 4),
        xid=xid,
    )


def _noise(seed: int, node: str, gpu: int, tick: int) -> float:
    """-1..1, the same for the same moment."""
    digest = blake2b(f"{seed}:{node}:{gpu}:{tick}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**31 - 1


def _uuid(seed: int, node: str, gpu: int) -> str:
    text = blake2b(f"{seed}:{node}:{gpu}:uuid".encode(), digest_size=16).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _xids(world: World, play: Callable[[Job], Play]) -> Mapping[tuple[str, int], int]:
    """The last Xid of each GPU: a device error that killed a job stays until the node boots, as DCGM keeps it."""
    found: dict[tuple[str, int], int] = {}
    for job in world.jobs.values():
        if job.state != State.FAILED or not job.gpus:
            continue
        node = job.nodes[0]
        xid = XID_OF_CAUSE.get(play(job).cause, 0)
        if xid and job.ended_at > world.nodes[node].boot_at:
            found[node, job.gpus[node][0]] = xid
    return found
