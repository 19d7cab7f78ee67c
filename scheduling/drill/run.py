"""One drill: a scenario, a plan and an answer in, what became of it out. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jobs.intervals import advised_s
from jobs.lifecycle import Kind
from scheduling.drill.agenda import Agenda
from scheduling.drill.answers import Off, Requeue
from scheduling.drill.blows import Blows
from scheduling.drill.faults import Scenario, drawn, flaw_of
from scheduling.drill.gang import Gang
from scheduling.drill.healing import Healing
from scheduling.drill.stage import Answer, Stage
from scheduling.drill.tally import Tally
from scheduling.drill.values import Fault, Plan
from scheduling.drill.works import GANG, Work
from scheduling.engine.books import Books, Owner
from scheduling.engine.cluster import Need, NodeView, QuotaView
from scheduling.engine.engine import Engine
from scheduling.engine.policies.acme import Acme
from scheduling.engine.room import Room
from scheduling.simulator import acme

TICK_S = 5.0
ANSWERS: Mapping[str, Callable[[Stage], Answer]] = {"acme": Healing, "requeue": Requeue, "off": Off}
MOST_BESIDE = 64  # GPUs; wider jobs do not fit beside the gang


@dataclass(frozen=True, kw_only=True)
class Drilled:
    plan: Plan
    scenario: Scenario
    answer: str
    injected: int
    save_every_s: float
    tally: Tally
    works: Mapping[str, Work]


def run(scenario: Scenario, plan: Plan, answer: str, faults: Sequence[Fault] | None = None) -> Drilled:
    """`faults` in the place of those that the scenario draws."""
    faults = drawn(scenario, plan) if faults is None else faults
    agenda, tally = Agenda(), Tally()
    stage = Stage(plan, _engine(plan), agenda, tally)
    stage.answer = ANSWERS[answer](stage)
    save_s = advised_s(mttf_s=scenario.hours_between(plan.gang_nodes) * 3600, stall_s=plan.stall_s)
    save_every = max(1, round(save_s / plan.step_s))
    gang, blows = Gang(stage, save_every), Blows(stage)
    stage.on_first_step = lambda work, now: _first_step(stage, gang, blows, work, now)
    stage.submit(_gang(stage), 0.0)
    _come(stage, plan)
    for fault in faults:
        agenda.at(fault.at, partial(blows.strike, fault))
    _tick(stage, plan)
    agenda.run(plan.end_s + plan.cooldown_h * 3600)
    tally.jobs = len(stage.works)
    return Drilled(
        plan=plan, scenario=scenario, answer=answer, injected=len(faults), save_every_s=save_every * plan.step_s,
        tally=tally, works=stage.works,
    )  # fmt: skip


def _first_step(stage: Stage, gang: Gang, blows: Blows, work: Work, now: float) -> None:
    if work.is_gang:
        gang.begin(work, now)
        return
    stage.tally.stepped(work.name, now)
    left = max(1.0, work.need_s - work.step * 10.0)
    if work.flaw and work.flaw.after_s < left:
        stage.agenda.at(now + work.flaw.after_s, stage.unless_moved(work, blows.flaw))
    stage.agenda.at(now + left, stage.unless_moved(work, stage.finish))


def _tick(stage: Stage, plan: Plan) -> None:
    def due(now: float) -> None:
        stage.answer.tick(now)
        stage.agenda.at(now + TICK_S, due)

    stage.agenda.at(TICK_S, due)


def _engine(plan: Plan) -> Engine:
    beside = (plan.nodes - plan.gang_nodes - plan.spares) * plan.gpus_per_node
    quotas = (
        QuotaView(team="pretrain", kind=Kind.PRETRAIN, gpus=plan.gang_nodes * plan.gpus_per_node),
        QuotaView(team="mix", kind=None, gpus=max(plan.gpus_per_node, beside)),
    )
    rules = Acme()
    nodes = [
        NodeView(
            id=number, name=name, gpus=plan.gpus_per_node, free_gpus=tuple(range(plan.gpus_per_node)), free_cpus=0,
            free_memory_mb=0, leaf=f"l{number // 8:03}",
        )
        for number, name in enumerate(plan.name_of)
    ]  # fmt: skip
    return Engine(Room(nodes), rules, books=Books(quotas, reserves=rules.reserves))


def _gang(stage: Stage) -> Work:
    plan = stage.plan
    need = Need(nodes=plan.gang_nodes, gpus=plan.gpus_per_node, cpus=0)
    ask = stage.engine.ask(need, Owner(team="pretrain", kind=Kind.PRETRAIN))
    return Work(
        name=GANG, team="pretrain", kind=Kind.PRETRAIN, gpus=plan.gang_nodes * plan.gpus_per_node, submitted=0.0,
        need_s=math.inf, ask=ask, number=1,
    )  # fmt: skip


def _come(stage: Stage, plan: Plan) -> None:
    """The mix of Kalos beside the gang: as many jobs as it had in that time, those that are narrow enough."""
    site = acme.SITES["kalos"]
    count = max(1, round(site.jobs / site.days * plan.hours / 24))
    trace = acme.drawn(site, "kalos", jobs=count, seed=plan.seed)
    last = float(trace.submit_s[-1]) or 1.0
    for row in range(len(trace)):
        gpus, kind = int(trace.gpus[row]), Kind(trace.kinds.words[trace.kinds.codes[row]])
        if gpus <= MOST_BESIDE:
            at = float(trace.submit_s[row]) / last * plan.end_s * 0.98
            stage.agenda.at(at, _arrival(stage, row, kind, gpus, float(trace.runtime_s[row])))


def _arrival(stage: Stage, row: int, kind: Kind, gpus: int, takes_s: float) -> Callable[[float], None]:
    def comes(now: float) -> None:
        per_node = stage.plan.gpus_per_node
        whole, rest = divmod(gpus, per_node)
        need = Need(gpus=gpus, cpus=0) if gpus <= per_node else Need(nodes=whole, gpus=per_node, rest=rest, cpus=0)
        owner = Owner(team="mix", kind=kind, preemptible=kind is Kind.EVALUATION)
        name = f"{kind}-{row}"
        stage.submit(
            Work(
                name=name, team="mix", kind=kind, gpus=gpus, submitted=now, need_s=takes_s, number=1000 + row,
                ask=stage.engine.ask(need, owner), flaw=flaw_of(kind, gpus, f"{stage.plan.seed}:{name}"),
            ),
            now,
        )  # fmt: skip

    return comes
