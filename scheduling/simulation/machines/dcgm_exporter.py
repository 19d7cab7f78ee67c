"""GPU telemetry in the format of a DCGM exporter, and the values of simulated GPUs. Pure text and arithmetic.

A simulated value depends only on the seed, the GPU, the time and the job's load: the same time always gives the same
page. The page is not written by prometheus_client, which appends `_total` to the names of counters; DCGM does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import pi, sin
from typing import Protocol

from jobs.core.gpu_shares import WHOLE_GPU, profile_milli
from jobs.core.lifecycle import JobKind
from scheduling.power.rules.clock_curves import model_power_w

from .faults import XID_OF_FAULT, ClusterFault, FaultKind
from .scripts.kernel_log import pci_bus_of_gpu
from .scripts.play import SimulatedRun
from .values import SimulatedJob, SimulatedNode

SAMPLE_INTERVAL_S = 5  # values change at DCGM's sampling interval
SM_CLOCK_MHZ = {"a100": 1410, "h100": 1980, "h200": 1980, "a800": 1410}
IDLE_CLOCK_MHZ, HOT_CLOCK_MHZ = 210, 765
MEMORY_MIB = {"a100": 81_920, "h100": 81_559, "h200": 143_771, "a800": 81_920}
IDLE_SHARE = 0.16  # of the full power, at any clock
FULL_POWER_W = {"a100": 400.0, "h100": 700.0, "h200": 700.0}


class MachineRoom(Protocol):
    """The machines of a simulated cluster, their faults, and the programs on them."""

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]: ...

    @property
    def faults(self) -> Sequence[ClusterFault]: ...

    def jobs_on(self, node: str) -> Iterable[SimulatedJob]: ...


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU at one time. None means that a value cannot be measured."""

    node: str
    gpu: int
    model: str = ""
    uuid: str = ""
    pci_bus_id: str = ""
    util_percent: float | None = 0.0  # None for MIG slices
    memory_used_mib: float = 0.0
    temperature_c: float = 0.0
    power_w: float = 0.0
    energy_mj: int | None = None  # since the node booted
    sm_active: float | None = None
    engine_active: float | None = None  # only of MIG slices here
    xid: int = 0
    sm_clock_mhz: float | None = None
    memory_total_mib: float | None = None
    ecc_dbe: int | None = None  # since the node booted
    remapped_rows: int | None = None
    nvlink_crc_errors: int | None = None
    ecc_sbe: int | None = None
    rows_pending: int | None = None
    remap_failed: int | None = None
    event_reasons: int | None = None  # bits with the reasons for its clock frequency
    labels: Mapping[str, str] = field(default_factory=dict)  # of the pod that holds it

    @property
    def memory_free_mib(self) -> float | None:
        return None if self.memory_total_mib is None else self.memory_total_mib - self.memory_used_mib


@dataclass(frozen=True, kw_only=True)
class GpuMetric:
    name: str
    help: str
    of: Callable[[GpuSample], float | None]
    counter: bool = False


GPU_METRICS = (
    GpuMetric(name="DCGM_FI_DEV_GPU_UTIL", help="GPU utilization (in %).", of=lambda s: s.util_percent),
    GpuMetric(name="DCGM_FI_DEV_FB_USED", help="Framebuffer memory used (in MiB).", of=lambda s: s.memory_used_mib),
    GpuMetric(name="DCGM_FI_DEV_GPU_TEMP", help="GPU temperature (in C).", of=lambda s: s.temperature_c),
    GpuMetric(name="DCGM_FI_DEV_POWER_USAGE", help="Power draw (in W).", of=lambda s: s.power_w),
    GpuMetric(
        name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        help="Total energy consumption since boot (in mJ).",
        of=lambda s: s.energy_mj,
        counter=True,
    ),
    GpuMetric(name="DCGM_FI_DEV_XID_ERRORS", help="Value of the last XID error encountered.", of=lambda s: s.xid),
    GpuMetric(name="DCGM_FI_PROF_SM_ACTIVE", help="Ratio of cycles an SM has a warp.", of=lambda s: s.sm_active),
    GpuMetric(
        name="DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        help="Ratio of time the graphics engine is active.",
        of=lambda s: s.engine_active,
    ),
    GpuMetric(name="DCGM_FI_DEV_SM_CLOCK", help="SM clock frequency (in MHz).", of=lambda s: s.sm_clock_mhz),
    GpuMetric(name="DCGM_FI_DEV_FB_FREE", help="Framebuffer memory free (in MiB).", of=lambda s: s.memory_free_mib),
    GpuMetric(
        name="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        help="Total number of double-bit volatile ECC errors.",
        of=lambda s: s.ecc_dbe,
        counter=True,
    ),
    GpuMetric(
        name="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        help="Number of remapped rows for uncorrectable errors.",
        of=lambda s: s.remapped_rows,
        counter=True,
    ),
    GpuMetric(
        name="DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        help="Total number of NVLink flow-control CRC errors.",
        of=lambda s: s.nvlink_crc_errors,
        counter=True,
    ),
    GpuMetric(
        name="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        help="Total number of single-bit volatile ECC errors.",
        of=lambda s: s.ecc_sbe,
        counter=True,
    ),
    GpuMetric(
        name="DCGM_FI_DEV_ROW_REMAP_PENDING", help="Whether a row remap is pending.", of=lambda s: s.rows_pending
    ),
    GpuMetric(name="DCGM_FI_DEV_ROW_REMAP_FAILURE", help="Whether a row remap failed.", of=lambda s: s.remap_failed),
    GpuMetric(
        name="DCGM_FI_DEV_CLOCKS_EVENT_REASONS", help="Reasons for the current clocks.", of=lambda s: s.event_reasons
    ),
)
IDLE_CLOCKS, APPLICATION_CLOCKS, POWER_CAP, HW_THERMAL = 0x1, 0x2, 0x4, 0x40
NODE_POWER_METRIC = "ipmi_dcmi_power_consumption_watts"
NIC_METRIC = "node_infiniband_state_id"
NIC_DEVICES = ("mlx5_0", "mlx5_1")
PORT_ACTIVE, PORT_DOWN = 4, 1
LINK_RECOVERY_S = 180.0  # how long a port is down after a fabric fault


def exporter_page(
    samples: Iterable[GpuSample], ports: Iterable[NicPort] = (), node_power_w: Mapping[str, float] | None = None
) -> str:
    """One block per metric with one line per GPU, followed by the ports in node_exporter's format and the power of the
    nodes in ipmi_exporter's."""
    rows = [(sample, _label_text(sample)) for sample in samples]
    blocks = (line for metric in GPU_METRICS for line in _metric_block(metric, rows))
    return "".join([*blocks, *_port_lines(list(ports)), *_node_power_lines(node_power_w or {})])


def _node_power_lines(node_power_w: Mapping[str, float]) -> Iterator[str]:
    if node_power_w:
        yield f"# HELP {NODE_POWER_METRIC} Current power consumption in Watts.\n# TYPE {NODE_POWER_METRIC} gauge\n"
    for node, power_w in node_power_w.items():
        yield f'{NODE_POWER_METRIC}{{hostname="{_escape_label(node)}"}} {power_w:g}\n'


@dataclass(frozen=True, kw_only=True)
class NicPort:
    node: str
    device: str
    state: int


def _port_lines(ports: Sequence[NicPort]) -> Iterator[str]:
    if ports:
        yield f"# HELP {NIC_METRIC} State of the InfiniBand port (1: down, 4: active).\n# TYPE {NIC_METRIC} gauge\n"
    for port in ports:
        yield f'{NIC_METRIC}{{device="{port.device}",port="1",hostname="{_escape_label(port.node)}"}} {port.state}\n'


def nic_ports(controller: MachineRoom, *, now: float) -> Iterator[NicPort]:
    """The ports of every node that is up. After a fabric fault, the node's first port is down for a while."""
    broken = {
        fault.node
        for fault in controller.faults
        if fault.kind == FaultKind.FABRIC and fault.at <= now < min(fault.until, fault.at + LINK_RECOVERY_S)
    }
    for node in controller.nodes.values():
        if node.runs:
            for number, device in enumerate(NIC_DEVICES):
                yield NicPort(
                    node=node.name,
                    device=device,
                    state=PORT_DOWN if node.name in broken and not number else PORT_ACTIVE,
                )


def _metric_block(metric: GpuMetric, rows: Iterable[tuple[GpuSample, str]]) -> Iterator[str]:
    kind = "counter" if metric.counter else "gauge"
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {kind}\n"
    for sample, labels in rows:
        if (value := metric.of(sample)) is not None:
            # %g has six digits, too few for a counter of energy
            yield f"{metric.name}{{{labels}}} {value if isinstance(value, int) else format(value, 'g')}\n"


def _label_text(sample: GpuSample) -> str:
    pairs = (
        ("gpu", str(sample.gpu)),
        ("UUID", sample.uuid),
        ("pci_bus_id", sample.pci_bus_id),
        ("device", f"nvidia{sample.gpu}"),
        ("modelName", sample.model),
        ("hostname", sample.node),
        *sample.labels.items(),
    )
    return ",".join(f'{name}="{_escape_label(value)}"' for name, value in pairs)


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Simulated GPUs


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """The load of a GPU, as fractions of its capacity."""

    util: float = 0.0
    memory: float = 0.005
    sm: float = 0.0


IDLE_LOAD = GpuLoad()
HANGING_LOAD = GpuLoad(util=1.0, memory=0.86, sm=0.02)  # a collective that spins: fully utilized without progress


@dataclass(frozen=True, kw_only=True)
class GpuHealth:
    """The faults of a GPU, as its counters show them."""

    xid: int = 0
    dbe: int = 0
    rows: int = 0
    crc: int = 0
    hot: bool = False
    pending: bool = False  # a row remap, until the node boots


HEALTHY = GpuHealth()


def simulated_samples(
    controller: MachineRoom, play: Callable[[SimulatedJob], SimulatedRun], *, seed: int, now: float
) -> Iterator[GpuSample]:
    """All GPUs with telemetry: a node without a running system has no exporter, a GPU off the bus has no readings."""
    tick = int(now // SAMPLE_INTERVAL_S)
    sick = _faults_by_node(controller.faults)
    for node in controller.nodes.values():
        if not node.runs:
            continue
        users = {gpu: job for job in controller.jobs_on(node.name) for gpu in job.gpus.get(node.name, ())}
        plays = {job.id: play(job) for job in users.values()}
        faults = sick.get(node.name, ())
        for gpu in range(node.gpus):
            if any(t.kind == FaultKind.OFF_BUS and t.gpu == gpu and t.is_active_at(now) for t in faults):
                continue
            job = users.get(gpu)
            load = IDLE_LOAD if job is None else _gpu_load(job, plays[job.id], tick * SAMPLE_INTERVAL_S)
            dice = _noise_value(seed, node.name, gpu, tick)
            yield _simulated_sample(node, gpu, load, _gpu_health(node, gpu, faults, now), dice, seed)


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """A MIG slice: its number on its GPU, and the program on it."""

    gpu: int
    number: int
    profile: str
    job: SimulatedJob | None
    labels: Mapping[str, str]


def slice_samples(
    node: SimulatedNode,
    instances: Sequence[MigInstance],
    play: Callable[[SimulatedJob], SimulatedRun],
    *,
    seed: int,
    now: float,
) -> Iterator[GpuSample]:
    """The MIG slices of a node. As in DCGM, what is measured per GPU is the same for all slices of a GPU."""
    tick = int(now // SAMPLE_INTERVAL_S)
    loads = [_slice_load(one.job, play, tick * SAMPLE_INTERVAL_S) for one in instances]
    for gpu in sorted({one.gpu for one in instances}):
        here = [(one, load) for one, load in zip(instances, loads, strict=True) if one.gpu == gpu]
        parts = [(profile_milli(one.profile) / WHOLE_GPU, load) for one, load in here]
        whole = GpuLoad(
            util=sum(part * load.util for part, load in parts), sm=sum(part * load.sm for part, load in parts)
        )
        card = _simulated_sample(node, gpu, whole, HEALTHY, _noise_value(seed, node.name, gpu, tick), seed)
        for one, load in here:
            total = float(one.profile.split(".")[1].removesuffix("gb")) * 1024
            yield replace(
                card,
                util_percent=None,
                engine_active=round(load.util, 4),
                sm_active=load.sm,
                memory_used_mib=round(load.memory * total),
                memory_total_mib=total,
                labels={**one.labels, "GPU_I_PROFILE": one.profile, "GPU_I_ID": str(one.number)},
            )


def _slice_load(job: SimulatedJob | None, play: Callable[[SimulatedJob], SimulatedRun], now: float) -> GpuLoad:
    return IDLE_LOAD if job is None else _gpu_load(job, play(job), now)


def _faults_by_node(faults: Iterable[ClusterFault]) -> dict[str, list[ClusterFault]]:
    by_node: dict[str, list[ClusterFault]] = {}
    for fault in faults:
        by_node.setdefault(fault.node, []).append(fault)
    return by_node


def _gpu_health(node: SimulatedNode, gpu: int, faults: Sequence[ClusterFault], now: float) -> GpuHealth:
    """The last Xid stays until the node boots, as in DCGM; a remapped row stays forever."""
    gpu_faults = [fault for fault in faults if fault.gpu == gpu and fault.at <= now]
    if not gpu_faults:
        return HEALTHY
    since_boot = [fault for fault in gpu_faults if fault.at > node.boot_at]
    kinds = [fault.kind for fault in since_boot]
    xids = [XID_OF_FAULT[kind] for kind in kinds if kind in XID_OF_FAULT]
    return GpuHealth(
        xid=xids[-1] if xids else 0,
        dbe=kinds.count(FaultKind.ECC),
        pending=FaultKind.ECC in kinds,
        rows=sum(fault.kind == FaultKind.ECC for fault in gpu_faults),
        crc=sum(1000 + 37 * fault.number % 900 for fault in since_boot if fault.kind == FaultKind.NVLINK),
        hot=any(fault.kind == FaultKind.SLOW and fault.is_active_at(now) for fault in gpu_faults),
    )


def _gpu_load(job: SimulatedJob, play: SimulatedRun, now: float) -> GpuLoad:
    """The load of a job: pretraining is dense; evaluation loads, generates, and computes metrics with an idle GPU."""
    since = now - job.began_at
    if job.is_configuring or job.is_completing or since < 0:
        return GpuLoad(memory=0.02)
    if since >= play.silent_s:
        return HANGING_LOAD
    if play.kind == JobKind.EVALUATION:
        return _evaluation_load(since / max(min(play.duration_s, 1e9), 1.0))
    if play.kind in (JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM):
        saving = since % 300 < SAMPLE_INTERVAL_S * 2  # a checkpoint: memory stays allocated, the SMs are idle
        return GpuLoad(
            util=0.45 if saving else 0.97, memory=0.86, sm=0.1 if saving else 0.78 + 0.04 * sin(since * pi / 60)
        )
    return GpuLoad(util=0.55, memory=0.35, sm=0.3)


def _evaluation_load(share: float) -> GpuLoad:
    if share < 0.25:
        return GpuLoad(util=0.03, memory=0.30, sm=0.01)
    if share < 0.75:
        return GpuLoad(util=0.88, memory=0.62, sm=0.48)
    return GpuLoad(util=0.02, memory=0.62, sm=0.0)


def _simulated_sample(
    node: SimulatedNode, gpu: int, load: GpuLoad, health: GpuHealth, dice: float, seed: int
) -> GpuSample:
    model = node.gpu_model
    full, total = FULL_POWER_W.get(model, 400.0), MEMORY_MIB.get(model, 81_920)
    util = min(max(load.util + 0.02 * dice * (load.util > 0.01), 0.0), 1.0)
    clock = SM_CLOCK_MHZ.get(model, 1410) if util > 0.01 else IDLE_CLOCK_MHZ
    clock = min(clock, node.clock_mhz or clock)
    power = full * (IDLE_SHARE + 0.76 * max(load.sm, 0.4 * util)) * (0.7 if health.hot else 1.0)
    return GpuSample(
        node=node.name,
        gpu=gpu,
        model=f"NVIDIA {model.upper()}",
        uuid=gpu_uuid(seed, node.name, gpu),
        pci_bus_id=f"00000000:{pci_bus_of_gpu(gpu).upper()}:00.0",
        util_percent=round(100 * util),
        memory_used_mib=round(load.memory * total),
        temperature_c=round(29 + 36 * util + 2 * dice) + (26 if health.hot else 0),
        power_w=round(model_power_w(power, node.clock_mhz, model, IDLE_SHARE * full) + 4 * dice, 1),
        sm_active=round(max(load.sm + 0.01 * dice * (load.sm > 0.01), 0.0), 4),
        xid=health.xid,
        sm_clock_mhz=min(clock, HOT_CLOCK_MHZ) if health.hot else clock,
        memory_total_mib=total,
        ecc_dbe=health.dbe,
        remapped_rows=health.rows,
        nvlink_crc_errors=health.crc,
        ecc_sbe=_corrected_ecc_errors(seed, node, gpu),
        rows_pending=int(health.pending),
        remap_failed=0,
        event_reasons=_event_reasons(node, util, health),
    )


def _event_reasons(node: SimulatedNode, util: float, health: GpuHealth) -> int:
    reasons = HW_THERMAL if health.hot else POWER_CAP if util > 0.9 else IDLE_CLOCKS if util <= 0.01 else 0
    return reasons | (APPLICATION_CLOCKS if node.clock_mhz else 0)


def _corrected_ecc_errors(seed: int, node: SimulatedNode, gpu: int) -> int:
    """The count of corrected ECC errors since boot; a few GPUs have some, which is normal."""
    dice = _noise_value(seed, node.name, gpu, int(node.boot_at))
    return int((dice - 0.9) * 200) if dice > 0.9 else 0


def _noise_value(seed: int, node: str, gpu: int, tick: int) -> float:
    """A value from -1 to 1, the same for the same arguments."""
    digest = blake2b(f"{seed}:{node}:{gpu}:{tick}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**31 - 1


def gpu_uuid(seed: int, node: str, gpu: int) -> str:
    text = blake2b(f"{seed}:{node}:{gpu}:uuid".encode(), digest_size=16).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
