"""The symptoms of a fault: logs, telemetry, step times of ranks, checkpoint listings. Pure and seeded.

Nothing here names a cause; the log lines come from `machines.scripts.failure_messages`, which knows no signature. Real
symptoms are mixed with the noise of every datacenter: Xids that programs cause, hot days, telemetry gaps, wrong
sensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from failures.detection.node_health import NodeTelemetryWindow
from failures.detection.slow_ranks import RankTimings
from failures.recovery.rules.checkpoints import DirectoryListing, ListedFile
from scheduling.simulation.drill.values import DrillPlan, StepReport, virtual_time
from scheduling.simulation.machines.faults import REASON_OF_FAULT, XID_OF_FAULT, FaultKind
from scheduling.simulation.machines.scripts.failure_output import FailureContext, failure_lines
from scheduling.simulation.machines.scripts.job_output import NOISE_TEMPLATES

STAGES, NODES_OF_STAGE = 8, 8  # pipeline stages, and minimum nodes per stage; ranks of one stage do the same work
ALPHA, BETA = 1.0, 0.12  # parts of a step's time: by tokens, by squared sequence lengths
TOKENS_PER_STEP = 4_194_304.0
SHARDS_PER_CHECKPOINT = 4  # real checkpoints have thousands of files; the check is the same
NOISE_PER_NODE_HOUR, NOISE_S = 0.02, 300.0
# Xids that programs cause, a hot day, a telemetry gap, a corrected link error, a sensor that is wrong for a minute
NODE_NOISE_KINDS = ("13", "31", "43", "hot", "gap", "link", "lying")
CODE_VISIBLE_S = 900.0
LASTING_SYMPTOMS = frozenset({FaultKind.NVLINK, FaultKind.SLOW, FaultKind.DEATH})
XIDS: dict[str, int] = {**{str(kind): code for kind, code in XID_OF_FAULT.items()}, "cuda_error": 31}


def failure_log(kind: str, *, job: int, nodes: Sequence[str], gpus: int, rank: int, step: int, dice: str) -> str:
    """The end of a job's log: some progress lines, some noise, and the error output of this failure."""
    body = [_progress_line(number, dice) for number in range(max(0, step - 40), step)]
    scene = FailureContext(
        job=job, reason="", exit_code=1, nodes=nodes, gpus_per_node=gpus, rank=rank, step=step, dice=dice
    )
    return "\n".join([*body, *failure_tail(kind, scene)]) + "\n"


def failure_tail(kind: str, scene: FailureContext) -> list[str]:
    """The error output of a failure of this kind; nothing for a job that was stopped."""
    if not kind:
        return []
    if kind != FaultKind.DEATH:
        reason = REASON_OF_FAULT.get(FaultKind(kind), "") if kind in set(FaultKind) else kind
        return failure_lines(replace(scene, reason=reason))
    # The failed rank writes nothing more; the ranks that waited for it report errors
    rank = (scene.rank + scene.gpus_per_node) % scene.ranks
    tail = failure_lines(replace(scene, reason="nccl_remote_error", rank=rank))[-12:]
    message = f"slurmstepd: error: *** JOB {scene.job} ON {scene.nodes[0]} CANCELLED DUE TO NODE FAILURE ***"
    return [*tail[:2], message]


def _progress_line(step: int, dice: str) -> str:
    random = Random(f"{dice}:line:{step}")
    if random.random() < 0.05:
        return random.choice(NOISE_TEMPLATES).format(
            rank=random.randrange(8), node="seren-000", number=random.randrange(2, 90)
        )
    return f"step {step:>7} | loss {expected_loss(step, random):.4f} | grad norm {random.uniform(0.3, 0.5):.3f}"


def expected_loss(step: int, random: Random) -> float:
    return (1.9 + 8.0 * math.exp(-step / 400)) * (1 + 0.01 * random.gauss(0, 1))


def step_report(plan: DrillPlan, step: int, at: float, *, factor: float, pause_s: float, bad_loss: str) -> StepReport:
    """The report of a step: step times vary with sequence lengths, with rare pauses."""
    dice = Random(f"{plan.seed}:step:{step}")
    stretch = Random(f"{plan.seed}:data:{step // 150}").uniform(0.5, 1.5)
    squares = stretch * dice.uniform(0.97, 1.03)
    seconds = plan.step_s * (ALPHA + BETA * squares) / (ALPHA + BETA) * (1 + 0.01 * dice.gauss(0, 1)) * factor
    if dice.random() < 1 / 80:
        seconds *= dice.uniform(1.2, 2.5)
    loss, norm = expected_loss(step, dice), 0.4 + 0.05 * dice.gauss(0, 1)
    if _is_transient_spike(plan, step):
        loss, norm = loss * 2.5, norm * 20
    if bad_loss == "nan":
        loss = math.nan
    elif bad_loss:
        loss, norm = loss * 3, norm * 30
    return StepReport(
        at=at,
        step=step,
        seconds=seconds + pause_s,
        tokens=TOKENS_PER_STEP,
        squares=squares * 1e9,
        loss=loss,
        grad_norm=norm,
    )


def _is_transient_spike(plan: DrillPlan, step: int) -> bool:
    """A bad batch or two, a few times a day; the loss recovers by itself."""
    dice = Random(f"{plan.seed}:spike:{step // 1000}")
    begins = dice.randrange(1000)
    return begins <= step % 1000 < begins + dice.randrange(3, 16)


def rank_step_times(plan: DrillPlan, nodes: Sequence[str], slow: dict[str, float], key: str) -> list[RankTimings]:
    """Compute times of the last steps of every rank. A slow node slows all its GPUs."""
    stages = max(1, min(STAGES, len(nodes) // NODES_OF_STAGE))
    dice, per_node = Random(f"{plan.seed}:ranks:{key}"), plan.gpus_per_node
    timings = []
    for number in range(len(nodes) * per_node):
        node = nodes[number // per_node]
        stage = number * stages // (len(nodes) * per_node)
        usual = plan.step_s * (0.8 + 0.02 * stage) * slow.get(node, 1.0)
        seconds = tuple(usual * (1 + 0.01 * dice.gauss(0, 1)) for _ in range(5))
        timings.append(RankTimings(number=number, group=f"stage {stage}", node=node, seconds=seconds))
    return timings


def checkpoint_listing(saved: Iterable[tuple[int, float, bool]]) -> DirectoryListing:
    """A directory in torch DCP's format. Metadata is written last, so an interrupted checkpoint has none."""
    files = []
    for step, at, whole in saved:
        shards = SHARDS_PER_CHECKPOINT if whole else SHARDS_PER_CHECKPOINT - 1
        files += [
            ListedFile(path=f"step_{step}/__{n}_0.distcp", size=1 << 30, at=virtual_time(at)) for n in range(shards)
        ]
        if whole:
            files.append(ListedFile(path=f"step_{step}/.metadata", size=4096, at=virtual_time(at)))
    return DirectoryListing(files=files)


def draw_node_noise(names: Sequence[str], dice: Random) -> dict[str, str]:
    """The nodes that show noise in this interval; usually almost none."""
    chance = NOISE_PER_NODE_HOUR * NOISE_S / 3600
    return {name: dice.choice(NODE_NOISE_KINDS) for name in names if dice.random() < chance}


def is_visible(kind: str, since: float, now: float) -> bool:
    """Whether a fault may still change the telemetry of its node."""
    return now - since < CODE_VISIBLE_S or kind in LASTING_SYMPTOMS


def simulated_reading(name: str, now: float, broken: Iterable[tuple[str, float]], noise: str) -> NodeTelemetryWindow:
    """A node's telemetry of the last minutes; `broken` has its faults and their times. Xids stay for a while."""
    xids, ecc, nvlink, hottest, throttled = [], 0, 0, 62.0, 0.0
    last_sample_at, down = now - 10.0, []
    for kind, since in broken:
        fresh = now - since < CODE_VISIBLE_S
        if fresh and (code := XIDS.get(kind)):
            xids.append(code)
        ecc += kind == FaultKind.ECC and fresh
        nvlink += 40 * (kind == FaultKind.NVLINK)
        if kind == FaultKind.FABRIC and now - since < 60:
            down.append("mlx5_1")
        if kind == FaultKind.SLOW:
            hottest, throttled = 89.0, 0.6
        if kind == FaultKind.DEATH:
            last_sample_at = min(last_sample_at, since)
    if noise.isdigit():
        xids.append(int(noise))
    hottest = {"hot": 88.5, "lying": 127.0 if now % NOISE_S < 60 else hottest}.get(noise, hottest)
    return NodeTelemetryWindow(
        node=name, last_sample_at=now - 200 if noise == "gap" else last_sample_at, xids=tuple(xids),
        ecc_uncorrected=ecc, nvlink_errors=nvlink + (noise == "link"), nics_down=tuple(down), hottest_c=hottest,
        throttled=throttled,
    )  # fmt: skip
