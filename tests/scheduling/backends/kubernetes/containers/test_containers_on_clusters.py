"""Logs and signals of attempts on simulated clusters and on a real control plane, by the same tests."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from jobs.core.lifecycle import State
from scheduling.backends.kubernetes.containers.log_messages import state_in_log
from scheduling.backends.kubernetes.pod_script import PROCESS_VARIABLE
from tests.patience import until
from tests.scheduling.backends.contract import LONG, Site, is_running
from tests.scheduling.backends.kubernetes.real_kubernetes import started_or_skipped
from tests.scheduling.backends.kubernetes.simulated_kubernetes import NAMESPACE, TEMPLATE, open_kubernetes, prepare
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

SHAPES = {"indexed-jobs": (), "job-sets": ("--job-sets",), "plain-pods": ("--kubernetes", "1.20")}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def simulated(request, tmp_path_factory):
    state = tmp_path_factory.mktemp("kalos")
    with (
        KubernetesProcess(state / "state", "--nodes", "4", *request.param) as cluster,
        closing(open_kubernetes(prepare(cluster))) as backend,
    ):
        names = tuple(f"kalos-00{number}" for number in range(1, 5))
        model = backend.nodes()[0].gpu_model
        yield Site(backend=backend, nodes=names, output=state, gpus_per_node=8, gpu_model=model)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with started_or_skipped() as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        template = {**TEMPLATE, "annotations": {"k8s-lab/run": "true"}}
        with closing(open_kubernetes(cluster.kubeconfig, template=template)) as backend:
            model, output = backend.nodes()[0].gpu_model, tmp_path_factory.mktemp("real")
            yield Site(backend=backend, nodes=cluster.nodes, output=output, gpus_per_node=8, gpu_model=model)


class LogOf:
    """Reads the log of an attempt, as the loop does."""

    def __init__(self, site: Site, backend_id: str) -> None:
        self.site, self.backend_id = site, backend_id
        self.positions: dict[str, str] = {}
        self.lines: list[str] = []
        self.is_complete = False

    def read(self) -> list[str]:
        self.site.backend.advance_jobs()
        update = self.site.backend.new_log_lines(self.backend_id, self.positions)
        self.positions, self.is_complete = dict(update.positions), update.is_complete
        self.lines += update.lines
        return self.lines

    def until_line(self, text: str) -> None:
        until(lambda: any(text in line for line in self.read()), what=f"{text!r} is in {self.lines[-20:]}")

    def until_complete(self) -> list[str]:
        until(lambda: self.read() and self.is_complete, what=f"the log is complete: {self.lines[-20:]}")
        return self.lines


@contextmanager
def running(site: Site, **work):
    request = site.work(**{"seconds": LONG, **work})
    backend_id = site.backend.submit(request)
    try:
        site.until(request, is_running)
        yield request, backend_id
    finally:
        site.backend.cancel(backend_id)
        site.until_final(request)


COUNT = "for number in $(seq 1 40); do echo line $number of rank $NODE_RANK; done\nsleep {seconds}\n"


class ContainerTests:
    def test_log_of_a_running_gang_has_the_lines_of_all_ranks_once(self, site: Site):
        with running(site, on=2, script=COUNT.format(seconds=600)) as (_, backend_id):
            log = LogOf(site, backend_id)
            for rank in (0, 1):
                until(lambda rank=rank: any(line.startswith(f"{rank}: ") for line in log.read()), what=f"rank {rank}")
            before = len(log.lines)
            other = LogOf(site, backend_id)
            other.read()

        assert sorted(log.lines[:before]) == sorted(set(log.lines[:before])) or "line" not in log.lines[0]
        assert set(log.lines[:before]) <= set(other.lines)

    def test_log_of_an_ended_job_ends_with_its_state(self, site: Site):
        request = site.work(seconds=1, script=COUNT.format(seconds=1))
        log = LogOf(site, site.backend.submit(request))

        lines = log.until_complete()

        assert lines[-1] == "acme: end of the log of 1 pod: COMPLETED"
        assert lines[-2].endswith(f"on node {request.nodes[0]} ended: succeeded")
        assert state_in_log("\n".join(lines)) == State.COMPLETED

    def test_log_of_a_failed_gang_has_the_exit_code(self, site: Site):
        request = site.work(on=2, exit_code=3)
        log = LogOf(site, site.backend.submit(request))

        lines = log.until_complete()

        assert any("ended: exit code 3" in line for line in lines)
        assert lines[-1] == "acme: end of the log of 2 pods: FAILED"

    def test_log_of_a_cancelled_job_is_complete(self, site: Site):
        with running(site) as (_, backend_id):
            log = LogOf(site, backend_id)
            log.read()

        assert state_in_log("\n".join(log.until_complete())) == State.CANCELLED

    def test_unknown_job_has_no_log_lines(self, site: Site):
        update = site.backend.new_log_lines("no-such-uid", {})

        assert (update.lines, update.positions, update.is_complete) == ([], {}, False)

    def test_known_job_that_is_gone_is_complete_with_one_line(self, site: Site):
        with running(site) as (_, backend_id):
            log = LogOf(site, backend_id)
            until(lambda: log.read() is not None and log.positions, what="the pod is known")
            ((_, text),) = log.positions.items()

        update = site.backend.new_log_lines("no-such-uid", {"no-such-pod": text.replace("acme-contract", "acme-gone")})

        assert update.is_complete and "the pod was deleted" in update.lines[0]

    def test_signal_of_an_ended_or_unknown_job_does_not_fail(self, site: Site):
        request = site.work()
        backend_id = site.backend.submit(request)
        site.until_final(request)

        for shell in (False, True):
            site.backend.signal(backend_id, "USR1", shell=shell)
            site.backend.signal("no-such-uid", "USR1", shell=shell)


class TestSimulatedContainers(ContainerTests):
    @pytest.fixture
    def site(self, simulated):
        return simulated

    def test_signal_reaches_the_program(self, site: Site):
        with running(site, on=2) as (request, backend_id):
            site.backend.signal(backend_id, "KILL", shell=False)

            assert site.until_final(request).state == State.FAILED


@pytest.mark.system
@pytest.mark.timeout(600)
class TestRealContainers(ContainerTests):
    @pytest.fixture
    def site(self, real):
        return real

    def test_every_line_of_a_busy_log_is_read_once_and_in_order(self, site: Site):
        script = "for number in $(seq 1 3000); do echo line $number; done\nsleep 1; echo last"
        log = LogOf(site, site.backend.submit(site.work(script=script)))

        lines = log.until_complete()

        assert [line for line in lines if line.startswith("l")] == [*(f"line {n}" for n in range(1, 3001)), "last"]

    def test_signal_reaches_the_training_processes_and_no_others(self, site: Site):
        """The containers are processes of this host, so a wrong choice would end the other ones."""
        with (
            running(site, on=2, script=SIGNALED) as (request, backend_id),
            bystander({}) as plain,
            bystander({PROCESS_VARIABLE: f"{request.key}0"}) as similar,
            bystander({"OTHER": f"{PROCESS_VARIABLE}={request.key}"}) as quoting,
        ):
            log = LogOf(site, backend_id)
            for rank in (0, 1):
                log.until_line(f"{rank}: trainer is ready")

            site.backend.signal(backend_id, "USR1", shell=False)

            for rank in (0, 1):
                log.until_line(f"{rank}: trainer got USR1")
                log.until_line(f"{rank}: script got USR1")
            assert [one.poll() for one in (plain, similar, quoting)] == [None] * 3

    def test_signal_to_the_shell_reaches_the_script_only(self, site: Site):
        with running(site, script=SIGNALED) as (_, backend_id):
            log = LogOf(site, backend_id)
            log.until_line("trainer is ready")

            site.backend.signal(backend_id, "USR1", shell=True)

            log.until_line("script got USR1")
            assert not any("trainer got" in line for line in log.lines)

    def test_lines_of_the_last_moments_of_a_cancelled_job_are_read(self, site: Site):
        request = site.work(script="trap 'sleep 1; echo checkpoint saved; exit 0' TERM\necho ready\nsleep 600 & wait\n")
        log = LogOf(site, site.backend.submit(request))
        log.until_line("ready")

        site.backend.cancel(log.backend_id)
        log.until_complete()

        assert "checkpoint saved" in log.lines

    def test_container_without_a_shell_is_a_refusal_that_names_the_pod(self, site: Site):
        request = replace(site.work(seconds=LONG), environment={"PATH": "/nonexistent"})
        backend_id = site.backend.submit(request)
        site.until_final(request)

        site.backend.signal(backend_id, "USR1", shell=False)


SIGNALED = """\
trap 'echo script got USR1' USR1
python3 -c '
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: print("trainer got USR1", flush=True))
print("trainer is ready", flush=True)
time.sleep(600)
' &
while kill -0 $! 2>/dev/null; do wait $!; done
"""


@contextmanager
def bystander(environment):
    """A process of this host that USR1 would end."""
    with subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], **environment}) as process:
        try:
            yield process
        finally:
            process.kill()
