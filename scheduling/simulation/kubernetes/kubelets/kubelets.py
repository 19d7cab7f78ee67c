"""All kubelets: they register nodes, run the pods that are placed on them, and report both. Pure.

What happens on a machine and what its kubelet reports are separate: the containers of a machine with a silent kubelet
go on, and their ends are reported when the kubelet comes back. The pods of a machine that is down are gone, but the API
shows them as before until the machine has booted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

from jobs.core.gpu_shares import MIG_RESOURCE_PREFIX
from scheduling.simulation.kubernetes.api.quantities import amounts_of, requests_of
from scheduling.simulation.kubernetes.api.resources import BY_ID, LEASES, NAMESPACES, NODES, PODS
from scheduling.simulation.kubernetes.api.writing import FINAL_PHASES, DeleteOptions
from scheduling.simulation.kubernetes.controllers.base import Controller, ControlPlane
from scheduling.simulation.kubernetes.controllers.event_recorder import NORMAL, WARNING
from scheduling.simulation.kubernetes.controllers.placement import matches_node
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    is_being_deleted,
    micro_timestamp,
    name_of,
    seconds_of,
    uid_of,
    value_at,
)
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectChange
from scheduling.simulation.kubernetes.values import GPU_RESOURCE, ContainerEnd, Machine, PodRuntime, PodStep
from scheduling.simulation.machines.fault_registry import FaultRegistry
from scheduling.simulation.machines.values import KILL, TERM

from .executions import LOST_CODE, Executions, PodEnd, killed_end
from .gangs import pre_stop_s, rank_of
from .node_status import new_node, node_ip, node_status, unhealthy_gpus
from .pod_status import REJECTED_PREFIX, pod_phase, pod_status
from .runtimes import PodRuntimes

LEASE_NAMESPACE = "kube-node-lease"
STATUS_EVERY_S = 300.0
UNPULLABLE_SUFFIX = ".invalid"  # image hosts that do not exist, by RFC 2606


class Kubelets(Controller):
    def __init__(
        self,
        plane: ControlPlane,
        machines: Iterable[Machine],
        runtimes: PodRuntimes,
        executions: Executions,
        registry: FaultRegistry,
        next_execution: int,
    ) -> None:
        super().__init__(plane)
        self._machines = {machine.node.name: machine for machine in machines}
        self._changed_machines: dict[str, None] = {}
        self.runtimes, self._executions, self._registry = runtimes, executions, registry
        self.next_execution = next_execution

    # Machines

    @property
    def machines(self) -> Iterable[Machine]:
        return self._machines.values()

    def machine(self, name: str) -> Machine | None:
        return self._machines.get(name)

    def take_changed_machines(self) -> tuple[Machine, ...]:
        changed, self._changed_machines = self._changed_machines, {}
        return tuple(self._machines[name] for name in changed)

    def start(self, now: float) -> None:
        """Register every node and resume every pod, when the cluster starts or restarts."""
        for place, machine in enumerate(self._machines.values()):
            if machine.reports:
                self._register(machine, now)
            # Renewals are spread over the interval, so that they do not all come at once
            offset = self.plane.timing.lease_s * place / max(len(self._machines), 1)
            self.plane.agenda.at(now + offset, self._heartbeat, machine.node.name)
        for runtime in self.runtimes.all():
            self.enqueue(runtime.key)
            if runtime.next_at:
                self.schedule(runtime.next_at, runtime.key)
            if pod := self.plane.store.get(runtime.key):
                self._schedule_deadline(pod, runtime)

    def set_machine(self, machine: Machine, now: float) -> None:
        """Change a machine. One that reports again registers its node and catches up on its pods."""
        name = machine.node.name
        known = self._machines[name]
        self._machines[name] = machine
        self._changed_machines[name] = None
        if machine.node.down and not known.node.down:
            self._lose_pods(name, now)
        if machine.reports and not known.reports:
            self._register(machine, now)
            self._catch_up(name)

    def report_node(self, name: str, now: float) -> None:
        """Report a node after a change of its hardware."""
        machine = self._machines.get(name)
        key = ObjectKey(NODES, "", name)
        found = self.plane.store.get(key)
        if machine is not None and machine.reports and found is not None:
            broken, version = len(unhealthy_gpus(name, self._registry.faults, now)), self.plane.api.git_version
            self.plane.writer.patch_status(key, node_status(found, machine, broken, now, version))

    def _register(self, machine: Machine, now: float) -> None:
        key = ObjectKey(NODES, "", machine.node.name)
        if self.plane.store.get(key) is None:
            self.plane.writer.create(BY_ID[NODES], "", new_node(machine), now)
        self.report_node(machine.node.name, now)
        self._renew_lease(machine.node.name, now)

    def _catch_up(self, name: str) -> None:
        for runtime in self.runtimes.on_node(name):
            self.enqueue(runtime.key)
        for key in self.plane.pods.on_node(name):
            self.enqueue(key)

    def _lose_pods(self, name: str, now: float) -> None:
        """Everything on a machine that goes down ends; the kubelet reports it after the boot."""
        self._executions.lose_machine(name, now)
        for runtime in self.runtimes.on_node(name):
            if runtime.holds_resources:
                end = ContainerEnd(
                    code=LOST_CODE, reason="ContainerStatusUnknown", started_at=runtime.started_at, finished_at=now
                )
                self._finish(runtime, end if runtime.started_at else None, now)

    def _renew_lease(self, name: str, now: float) -> None:
        key = ObjectKey(LEASES, LEASE_NAMESPACE, name)
        found = self.plane.store.get(key)
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_timestamp(now)}
        if found is not None:
            self.plane.store.put(key, {**found, "spec": spec})
        elif self.plane.store.get(ObjectKey(NAMESPACES, "", LEASE_NAMESPACE)) is not None:
            lease = {"metadata": {"name": name}, "spec": spec}
            self.plane.writer.create(BY_ID[LEASES], LEASE_NAMESPACE, lease, now)

    def _heartbeat(self, name: str, now: float) -> None:
        self.plane.agenda.at(now + self.plane.timing.lease_s, self._heartbeat, name)
        if self._machines[name].reports:
            self._renew_lease(name, now)
            self._report_regularly(name, now)

    def _report_regularly(self, name: str, now: float) -> None:
        """Nodes are reported every five minutes, and soon if their unhealthy GPUs or their health changed."""
        found = self.plane.store.get(ObjectKey(NODES, "", name))
        if found is None:
            return
        conditions = value_at(found, "status", "conditions", default=[])
        heartbeats = [one.get("lastHeartbeatTime") for one in conditions if one["type"] == "Ready"]
        machine = self._machines[name]
        healthy = machine.node.gpus - len(unhealthy_gpus(name, self._registry.faults, now))
        shown = value_at(found, "status", "allocatable", GPU_RESOURCE, default="0")
        if not heartbeats or now - seconds_of(str(heartbeats[0])) >= STATUS_EVERY_S or shown != str(healthy):
            self.report_node(name, now)

    # Pods

    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == PODS and change.stored.object["spec"].get("nodeName"):
            self.enqueue(change.key)
        elif change.key.resource == NODES and change.kind == ChangeKind.MODIFIED and self._lost_readiness(change):
            self.plane.agenda.at(0.0, self.report_node, change.key.name)

    def _lost_readiness(self, change: ObjectChange) -> bool:
        """Whether the control plane gave up a node whose kubelet reports."""
        machine = self._machines.get(change.key.name)
        return machine is not None and machine.reports and _ready_status(change.stored.object) == "Unknown"

    def reconcile(self, key: ObjectKey, now: float) -> None:
        pod = self.plane.store.get(key)
        runtime = self.runtimes.get(key)
        if runtime is not None and (pod is None or uid_of(pod) != runtime.uid):
            self._forget(runtime, now)
            runtime = None
        if pod is None:
            return
        machine = self._machines.get(str(pod["spec"].get("nodeName")))
        if machine is None or not machine.reports:
            if runtime is not None and not (machine and machine.node.down):
                self._advance(pod, runtime, now)
            return
        if runtime is None:
            if value_at(pod, "status", "phase") in FINAL_PHASES and not is_being_deleted(pod):
                return
            runtime = self._admit(pod, machine, now)
        if is_being_deleted(pod):
            self._terminate(pod, runtime, now)
        else:
            self._advance(pod, runtime, now)
        self._report(key, now)

    def _admit(self, pod: JsonObject, machine: Machine, now: float) -> PodRuntime:
        """Accept a pod with its GPUs, or reject it if the node cannot run it."""
        runtime = PodRuntime(
            uid=uid_of(pod),
            namespace=str(pod["metadata"]["namespace"]),
            name=name_of(pod),
            node=machine.node.name,
            step=PodStep.CREATING,
            created_at=now,
            next_at=now + self.plane.timing.container_start_s,
        )
        reason, message = self._rejection(pod, machine, now)
        if is_being_deleted(pod) or value_at(pod, "status", "phase") in FINAL_PHASES:
            return self.runtimes.set(replace(runtime, step=PodStep.ENDED, next_at=0.0))
        if reason:
            self._event(pod, WARNING, reason, message, machine.node.name, now)
            rejected = replace(runtime, step=PodStep.REJECTED, next_at=0.0, reason=reason, message=message)
            return self.runtimes.set(rejected)
        gpus = self._free_gpus(machine, now)[: _gpu_count(pod)] + self._slices_for(pod, machine)
        self.schedule(runtime.next_at, runtime.key)
        self._schedule_deadline(pod, runtime)
        self._event(pod, NORMAL, "Pulling", f'Pulling image "{_image(pod)}"', machine.node.name, now)
        return self.runtimes.set(replace(runtime, gpus=tuple(gpus)))

    def _rejection(self, pod: JsonObject, machine: Machine, now: float) -> tuple[str, str]:
        node = self.plane.store.get(ObjectKey(NODES, "", machine.node.name))
        if node is None or not matches_node(pod, node):
            message = (
                "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
            )
            return "NodeAffinity", message
        used = self.runtimes.used(machine.node.name)
        capacity = amounts_of(value_at(node, "status", "allocatable", default={}))
        for name, amount in requests_of(pod).items():
            taken, most = used.get(name, Decimal(0)), capacity.get(name, Decimal(0))
            if name == GPU_RESOURCE and amount <= most and (free := len(self._free_gpus(machine, now))) < amount:
                return "UnexpectedAdmissionError", _device_message(name, int(amount), free)
            if amount + taken > most:
                text = f"requested: {_shown(name, amount)}, used: {_shown(name, taken)}, capacity: {_shown(name, most)}"
                return f"OutOf{name}", f"{REJECTED_PREFIX}Node didn't have enough resource: {name}, {text}"
        return "", ""

    def _free_gpus(self, machine: Machine, now: float) -> list[int]:
        taken = {gpu for one in self.runtimes.on_node(machine.node.name) if one.holds_resources for gpu in one.gpus}
        broken = unhealthy_gpus(machine.node.name, self._registry.faults, now)
        return [gpu for gpu in range(machine.node.gpus) if gpu not in taken and gpu not in broken]

    def _slices_for(self, pod: JsonObject, machine: Machine) -> list[int]:
        """The MIG slices that the pod gets. They are numbered after the GPUs of the machine."""
        taken = {gpu for one in self.runtimes.on_node(machine.node.name) if one.holds_resources for gpu in one.gpus}
        chosen: list[int] = []
        for profile, count in _mig_slices(requests_of(pod)).items():
            free = [device for device, made_as in machine.slices.items() if made_as == profile and device not in taken]
            chosen += free[:count]
        return chosen

    def _schedule_deadline(self, pod: JsonObject, runtime: PodRuntime) -> None:
        if (seconds := pod["spec"].get("activeDeadlineSeconds")) is not None:
            self.schedule(runtime.created_at + seconds, runtime.key)

    def _advance(self, pod: JsonObject, runtime: PodRuntime, now: float) -> None:
        """Take the steps that are due."""
        if runtime.holds_resources and self._is_past_deadline(pod, runtime, now):
            failed = replace(
                runtime,
                reason="DeadlineExceeded",
                message="Pod was active on the node longer than the specified deadline",
            )
            self._stop(self.runtimes.set(failed), KILL, now)
        elif runtime.next_at and runtime.next_at <= now:
            self._take_step(pod, runtime, now)

    def _is_past_deadline(self, pod: JsonObject, runtime: PodRuntime, now: float) -> bool:
        seconds = pod["spec"].get("activeDeadlineSeconds")
        return seconds is not None and runtime.created_at + seconds <= now and not runtime.reason

    def _take_step(self, pod: JsonObject, runtime: PodRuntime, now: float) -> None:
        if runtime.step in (PodStep.CREATING, PodStep.PULL_FAILED):
            if _cannot_be_pulled(_image(pod)):
                self._fail_pull(pod, runtime, now)
            else:
                self._run_container(pod, runtime, now)
        elif runtime.step == PodStep.BACKOFF:
            self._run_container(pod, replace(runtime, restarts=runtime.restarts + 1), now)
        elif runtime.step == PodStep.RUNNING:  # it was told to stop
            self._handle_end(pod, runtime, killed_end(runtime, runtime.next_at, KILL), now)

    def _fail_pull(self, pod: JsonObject, runtime: PodRuntime, now: float) -> None:
        failures = runtime.pull_failures + 1
        next_at = now + self._backoff_s(failures)
        self.runtimes.set(replace(runtime, step=PodStep.PULL_FAILED, pull_failures=failures, next_at=next_at))
        self.schedule(next_at, runtime.key)
        self._event(pod, WARNING, "Failed", f'Failed to pull image "{_image(pod)}"', runtime.node, now)

    def _backoff_s(self, failures: int) -> float:
        timing = self.plane.timing
        return min(timing.pod_backoff_s * 2.0 ** min(failures - 1, 10), timing.most_backoff_s)

    def _run_container(self, pod: JsonObject, runtime: PodRuntime, now: float) -> None:
        running = replace(runtime, step=PodStep.RUNNING, started_at=now, next_at=0.0, execution=0)
        self.runtimes.set(running)
        self._event(pod, NORMAL, "Pulled", f'Successfully pulled image "{_image(pod)}"', runtime.node, now)
        for reason in ("Created", "Started"):
            self._event(pod, NORMAL, reason, f"{reason} container {_container(pod)}", runtime.node, now)
        self._begin_if_complete(pod, now)

    def _begin_if_complete(self, pod: JsonObject, now: float) -> None:
        """Begin the program if the containers of all pods of its gang run."""
        gang = self.runtimes.gang_of(pod)
        waiting = self.runtimes.waiting_in(gang.key)
        if len(waiting) < gang.size:
            return
        pods = [(found, one) for one in waiting if (found := self.plane.store.get(one.key)) is not None]
        pods = sorted(pods, key=lambda pair: rank_of(pair[0]))[: gang.size]
        number, self.next_execution = self.next_execution, self.next_execution + 1
        for _, runtime in pods:
            self.runtimes.set(replace(runtime, execution=number))
        execution = self._executions.begin(number, pods, now)
        self._executions.update_speed(execution, {name: self._machines[name].node for name in execution.job.nodes}, now)

    # Ends

    def handle_ends(self, ends: Iterable[PodEnd], now: float) -> None:
        for one in ends:
            runtime = self.runtimes.of_uid(one.uid)
            if runtime is None or runtime.step != PodStep.RUNNING:
                continue
            pod = self.plane.store.get(runtime.key)
            if pod is not None and uid_of(pod) == one.uid:
                self._handle_end(pod, runtime, one.end, now)
                self.enqueue(runtime.key)

    def _handle_end(self, pod: JsonObject, runtime: PodRuntime, end: ContainerEnd, now: float) -> None:
        end = replace(end, started_at=runtime.started_at)
        policy = pod["spec"].get("restartPolicy")
        restarts = policy == "Always" or (policy == "OnFailure" and end.code != 0)
        if not restarts or is_being_deleted(pod) or runtime.reason:
            self._finish(runtime, end, now)
            return
        delay_s = self._backoff_s(runtime.restarts) if runtime.restarts else 0.0
        next_at = now + delay_s
        self.runtimes.set(replace(runtime, step=PodStep.BACKOFF, end=end, next_at=next_at, execution=0))
        self.schedule(next_at, runtime.key)
        if delay_s:
            message = f"Back-off restarting failed container {pod['spec']['containers'][0]['name']}"
            self._event(pod, WARNING, "BackOff", message, runtime.node, now)

    def _finish(self, runtime: PodRuntime, end: ContainerEnd | None, now: float) -> None:
        self.runtimes.set(replace(runtime, step=PodStep.ENDED, end=end, next_at=0.0, execution=0))
        self.enqueue(runtime.key)

    def _terminate(self, pod: JsonObject, runtime: PodRuntime, now: float) -> None:
        """Stop a pod that is being deleted: its preStop hook, TERM, KILL after its grace period, then its removal."""
        if not runtime.holds_resources:
            self._remove(pod, now)
            return
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        kill_at = seconds_of(pod["metadata"]["deletionTimestamp"])
        term_at = min(kill_at - grace_s + pre_stop_s(pod), kill_at)
        if runtime.step == PodStep.RUNNING and not runtime.next_at and now < term_at:
            self.schedule(term_at, runtime.key)
        elif runtime.step == PodStep.RUNNING and not runtime.next_at and grace_s:
            self._event(pod, NORMAL, "Killing", f"Stopping container {_container(pod)}", runtime.node, now)
            self._stop(runtime, TERM, now)
            self.schedule(max(kill_at, now), runtime.key)
        elif runtime.step != PodStep.RUNNING or kill_at <= now or not grace_s:
            self._stop(runtime, KILL, now)
        elif runtime.next_at and runtime.next_at <= now:
            self._take_step(pod, runtime, now)

    def _stop(self, runtime: PodRuntime, signal: int, now: float) -> None:
        """Signal the program of a pod; TERM takes effect a moment later."""
        reported = bool(runtime.execution) and self._executions.stop_pod(runtime.execution, runtime.uid, signal, now)
        if signal == KILL or runtime.step != PodStep.RUNNING:
            self._finish(runtime, killed_end(runtime, now, signal) if runtime.started_at else None, now)
        elif reported:
            self.runtimes.set(replace(runtime, next_at=now + self.plane.timing.most_backoff_s))
        else:
            next_at = killed_end(runtime, now).finished_at
            self.runtimes.set(replace(runtime, next_at=next_at))
            self.schedule(next_at, runtime.key)

    def _remove(self, pod: JsonObject, now: float) -> None:
        """Report the end, then delete the pod for good."""
        key = ObjectKey(PODS, str(pod["metadata"]["namespace"]), name_of(pod))
        self._report(key, now)
        if self.plane.store.get(key) is not None:
            self.plane.writer.delete(key, now, DeleteOptions(grace_s=0, uid=uid_of(pod)))

    def _forget(self, runtime: PodRuntime, now: float) -> None:
        """The pod was deleted without waiting for its end: kill what is left of it."""
        if runtime.holds_resources and runtime.execution:
            self._executions.stop_pod(runtime.execution, runtime.uid, KILL, now)
        self.runtimes.drop(runtime)

    # Reports

    def _report(self, key: ObjectKey, now: float) -> None:
        pod, runtime = self.plane.store.get(key), self.runtimes.get(key)
        if pod is None or runtime is None or uid_of(pod) != runtime.uid:
            return
        if value_at(pod, "status", "phase") in FINAL_PHASES and runtime.step != PodStep.ENDED:
            return
        if pod_phase(pod, runtime) in FINAL_PHASES and value_at(pod, "status", "phase") in FINAL_PHASES:
            return  # a final status stays as it was reported first
        self.plane.writer.patch_status(key, pod_status(pod, runtime, now, node_ip(runtime.node)))

    def _event(self, pod: JsonObject, kind: str, reason: str, message: str, node: str, now: float) -> None:
        key = ObjectKey(PODS, str(pod["metadata"]["namespace"]), name_of(pod))
        self.plane.events.record(key, pod, kind, reason, message, f"kubelet,{node}", now)


def _ready_status(node: JsonObject) -> str:
    conditions = value_at(node, "status", "conditions", default=[])
    return next((str(one.get("status")) for one in conditions if one["type"] == "Ready"), "")


def _container(pod: JsonObject) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def _image(pod: JsonObject) -> str:
    """The image that decides whether the pod can start: the first one that cannot be pulled, or the first one."""
    images = [str(container["image"]) for container in pod["spec"]["containers"]]
    return next((image for image in images if _cannot_be_pulled(image)), images[0])


def _cannot_be_pulled(image: str) -> bool:
    return image.partition("/")[0].partition(":")[0].endswith(UNPULLABLE_SUFFIX)


def _device_message(name: str, requested: int, free: int) -> str:
    """What the kubelet's device manager says when other pods hold the devices."""
    return (
        f"{REJECTED_PREFIX}Allocate failed due to requested number of devices unavailable for {name}."
        f" Requested: {requested}, Available: {free}, which is unexpected"
    )


def _mig_slices(requests: Mapping[str, Decimal]) -> dict[str, int]:
    """The number of slices by profile."""
    slices = {name: amount for name, amount in requests.items() if name.startswith(MIG_RESOURCE_PREFIX)}
    return {name.removeprefix(MIG_RESOURCE_PREFIX): int(amount) for name, amount in slices.items()}


def _gpu_count(pod: JsonObject) -> int:
    return int(requests_of(pod).get(GPU_RESOURCE, 0))


def _shown(name: str, amount: Decimal) -> str:
    return str(int(amount * 1000)) if name == "cpu" else str(int(amount))
