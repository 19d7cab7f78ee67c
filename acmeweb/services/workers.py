"""The workers: python -m acmeweb.services.workers [--queues turns,watching]

One parent loads the application once and forks one Celery worker for each queue of `acmeweb.queues`: five workers start
in the time of one and share the loaded modules. The parent runs no task and holds no connection. It replaces a worker
that dies. If the parent dies, its workers end at once (PR_SET_PDEATHSIG); it passes TERM and INT on to them.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from acmeweb.queues import WORKER_QUEUES, WorkerQueue
from acmeweb.services import parent_guard

log = logging.getLogger("acme.workers")

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
RESTART_DELAY_S = 1.0  # before a worker that died is replaced


def main(argv: Sequence[str] | None = None) -> int:
    names = [queue.name for queue in WORKER_QUEUES]
    parser = argparse.ArgumentParser(description="The Celery workers of Acme, one for each queue.")
    parser.add_argument("--queues", default=",".join(names), help="queues to serve, comma-separated; default: all")
    queues = parser.parse_args(argv).queues.split(",")
    if unknown := sorted(set(queues) - set(names)):
        parser.error(f"--queues: {', '.join(unknown)} is not one of {', '.join(names)}")
    _load_application()
    return WorkerParent({queue.name: queue for queue in WORKER_QUEUES if queue.name in queues}, serve_queue).run()


def _load_application() -> None:
    from acmeweb.celery import app
    from acmeweb.startup import freeze_loaded_modules, require_secret_key

    require_secret_key()
    app.loader.import_default_modules()  # sets up Django and runs its checks
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    freeze_loaded_modules()


def serve_queue(queue: WorkerQueue) -> None:
    """Become the Celery worker of this queue, in the forked process."""
    from acmeweb.celery import app
    from acmeweb.startup import apply_role_timeouts

    apply_role_timeouts(queue.role)
    os.nice(queue.niceness)
    words = ["worker", "-Q", queue.name, "-c", str(queue.processes), "-n", f"{queue.name}@{socket.gethostname()}"]
    app.worker_main([*words, "--without-gossip", "--without-mingle"])


class WorkerParent:
    """Keeps one child per queue running until it is stopped."""

    def __init__(
        self,
        queues: Mapping[str, WorkerQueue],
        work: Callable[[WorkerQueue], None],
        restart_delay_s: float = RESTART_DELAY_S,
    ) -> None:
        self.queues, self.work, self.restart_delay_s = queues, work, restart_delay_s
        self.running: dict[int, str] = {}  # by process id
        self.stopping = False

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        for name in self.queues:
            self._fork(name)
        while self.running:
            self._restart_ended_worker()
        return 0

    def _stop(self, number: int, _frame: object) -> None:
        self.stopping = True
        for pid in list(self.running):
            os.kill(pid, number)

    def _restart_ended_worker(self) -> None:
        pid, status = os.wait()
        if (name := self.running.pop(pid, None)) is None or self.stopping:
            return
        log.warning("The worker of queue %s ended (%s) and is being restarted", name, os.waitstatus_to_exitcode(status))
        time.sleep(self.restart_delay_s)
        self._fork(name)

    def _fork(self, name: str) -> None:
        """Fork a worker unless stopping. Signals are blocked, so the child is in the table before one is handled."""
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            if self.stopping:
                return
            if pid := os.fork():
                self.running[pid] = name
            else:
                self._run_worker(name, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _run_worker(self, name: str, parent: int) -> None:
        """Run the worker in the child. It leaves the process group, so that a group's signal reaches it only once."""
        code = 1
        try:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.setpgid(0, 0)
            parent_guard.die_with_parent(signal.SIGKILL, parent)
            self.work(self.queues[name])
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        except BaseException:
            log.exception("The worker of queue %s failed", name)
        finally:
            sys.stdout.flush()
            os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
