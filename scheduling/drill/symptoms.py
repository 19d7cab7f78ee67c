"""What a fault shows of itself: logs, telemetry, times of ranks, listings of checkpoints. Pure and seeded.

Nothing here names a cause; the sentences are those of `simulator.lastwords`, which knows no signature. Beside the true
signs stands what every machine room shows for nothing: codes that programs cause, hot days, gaps, sensors that lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random

from failures.checkpoints import File, Listing
from failures.detect.nodes import Reading
from failures.detect.ranks import Rank
from scheduling.drill.values import Beat, Plan, moment
from scheduling.simulator.lastwords import Scene, last_words
from scheduling.simulator.logtext import NOISES
from scheduling.simulator.troubles import REASON_OF, XID_OF, Breakage

STAGES, NODES_OF_STAGE = 8, 8  # of the gang's pipeline, and nodes at least; ranks of one stage do the same work
ALPHA, BETA = 1.0, 0.12  # parts of a step: by tokens, by squares of lengths
TOKENS = 4_194_304.0
SHARDS = 4  # files of a checkpoint; the real one has thousands, and the check is the same
NOISE_PER_NODE_HOUR, NOISE_S = 0.02, 300.0
# Codes that programs cause, a hot day, a gap in the telemetry, a corrected link, a sensor that lies for a minute
NOISES_OF_NODES = ("13", "31", "43", "hot", "gap", "link", "lying")
SHOWN_S = 900.0
XIDS: dict[str, int] = {**{str(kind): code for kind, code in XID_OF.items()}, "cuda_error": 31}


def log_of(kind: str, *, job: int, nodes: Sequence[str], gpus: int, rank: int, step: int, dice: str) -> str:
    """The last of a job's log: some progress, some noise, and what is said when it dies of this."""
    body = [_progress(number, dice) for number in range(max(0, step - 40), step)]
    reason = REASON_OF.get(Breakage(kind), "") if kind in set(Breakage) else kind
    if not kind:
        return "\n".join(body) + "\n"
    scene = Scene(job=job, reason=reason, exit_code=1, nodes=nodes, gpus_per_node=gpus, rank=rank, step=step, dice=dice)
    tail = last_words(scene)
    if kind == Breakage.DEATH:
        # The rank at fault says nothing any more; those who waited for it do
        tail = last_words(_with_reason(scene, "nccl_remote_error", (rank + gpus) % scene.ranks))[-12:]
        tail = [*tail[:2], f"slurmstepd: error: *** JOB {job} ON {nodes[0]} CANCELLED DUE TO NODE FAILURE ***"]
    return "\n".join([*body, *tail]) + "\n"


def _with_reason(scene: Scene, reason: str, rank: int) -> Scene:
    return Scene(
        job=scene.job, reason=reason, exit_code=1, nodes=scene.nodes, gpus_per_node=scene.gpus_per_node, rank=rank,
        step=scene.step, dice=scene.dice,
    )  # fmt: skip


def _progress(step: int, dice: str) -> str:
    random = Random(f"{dice}:line:{step}")
    if random.random() < 0.05:
        return random.choice(NOISES).format(rank=random.randrange(8), node="seren-000", number=random.randrange(2, 90))
    return f"step {step:>7} | loss {loss_of(step, random):.4f} | grad norm {random.uniform(0.3, 0.5):.3f}"


def loss_of(step: int, random: Random) -> float:
    return (1.9 + 8.0 * math.exp(-step / 400)) * (1 + 0.01 * random.gauss(0, 1))


def beat(plan: Plan, step: int, at: float, *, factor: float, pause_s: float, bad_loss: str) -> Beat:
    """A step as it is reported: sequences get longer and shorter, and now and then something pauses."""
    dice = Random(f"{plan.seed}:step:{step}")
    stretch = Random(f"{plan.seed}:data:{step // 150}").uniform(0.5, 1.5)
    squares = stretch * dice.uniform(0.97, 1.03)
    seconds = plan.step_s * (ALPHA + BETA * squares) / (ALPHA + BETA) * (1 + 0.01 * dice.gauss(0, 1)) * factor
    if dice.random() < 1 / 80:
        seconds *= dice.uniform(1.2, 2.5)
    loss, norm = loss_of(step, dice), 0.4 + 0.05 * dice.gauss(0, 1)
    if _passing_spike(plan, step):
        loss, norm = loss * 2.5, norm * 20
    if bad_loss == "nan":
        loss = math.nan
    elif bad_loss:
        loss, norm = loss * 3, norm * 30
    return Beat(
        at=at, step=step, seconds=seconds + pause_s, tokens=TOKENS, squares=squares * 1e9, loss=loss, grad_norm=norm
    )


def _passing_spike(plan: Plan, step: int) -> bool:
    """A bad batch or two, some times a day; the loss comes back by itself."""
    dice = Random(f"{plan.seed}:spike:{step // 1000}")
    begins = dice.randrange(1000)
    return begins <= step % 1000 < begins + dice.randrange(3, 16)


def ranks_of(plan: Plan, nodes: Sequence[str], slow: dict[str, float], key: str) -> list[Rank]:
    """Computing times of the last steps of every rank. Heat is a node's, so all GPUs of a slow node are slow."""
    stages = max(1, min(STAGES, len(nodes) // NODES_OF_STAGE))
    dice, per_node = Random(f"{plan.seed}:ranks:{key}"), plan.gpus_per_node
    found = []
    for number in range(len(nodes) * per_node):
        node = nodes[number // per_node]
        stage = number * stages // (len(nodes) * per_node)
        usual = plan.step_s * (0.8 + 0.02 * stage) * slow.get(node, 1.0)
        seconds = tuple(usual * (1 + 0.01 * dice.gauss(0, 1)) for _ in range(5))
        found.append(Rank(number=number, group=f"stage {stage}", node=node, seconds=seconds))
    return found


def shelf_of(saved: Iterable[tuple[int, float, bool]]) -> Listing:
    """A directory in torch DCP's convention; of what was cut off the metadata is missing, which is written last."""
    files = []
    for step, at, whole in saved:
        shards = SHARDS if whole else SHARDS - 1
        files += [File(path=f"step_{step}/__{n}_0.distcp", size=1 << 30, at=moment(at)) for n in range(shards)]
        if whole:
            files.append(File(path=f"step_{step}/.metadata", size=4096, at=moment(at)))
    return Listing(files=files)


def noises(names: Sequence[str], dice: Random) -> dict[str, str]:
    """Which nodes show something for nothing in these minutes: nearly none."""
    chance = NOISE_PER_NODE_HOUR * NOISE_S / 3600
    return {name: dice.choice(NOISES_OF_NODES) for name in names if dice.random() < chance}


def reading(name: str, now: float, broken: Iterable[tuple[str, float]], noise: str) -> Reading:
    """A node's last minutes; `broken` is what of it broke, and when. Codes and counters are seen for some time."""
    xids, ecc, nvlink, hottest, throttled = [], 0, 0, 62.0, 0.0
    heard, down = now - 10.0, []
    for kind, since in broken:
        fresh = now - since < SHOWN_S
        if fresh and (code := XIDS.get(kind)):
            xids.append(code)
        ecc += kind == Breakage.ECC and fresh
        nvlink += 40 * (kind == Breakage.NVLINK)
        if kind == Breakage.FABRIC and now - since < 60:
            down.append("mlx5_1")
        if kind == Breakage.SLOW:
            hottest, throttled = 89.0, 0.6
        if kind == Breakage.DEATH:
            heard = min(heard, since)
    if noise.isdigit():
        xids.append(int(noise))
    hottest = {"hot": 88.5, "lying": 127.0 if now % NOISE_S < 60 else hottest}.get(noise, hottest)
    return Reading(
        node=name, heard_at=now - 200 if noise == "gap" else heard, xids=tuple(xids), ecc_uncorrected=ecc,
        nvlink_errors=nvlink + (noise == "link"), nics_down=tuple(down), hottest_c=hottest, throttled=throttled,
    )  # fmt: skip
