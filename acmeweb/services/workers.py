"""The workers: python -m acmeweb.services.workers [--queues turns,watching]

One parent loads the application once and forks one Celery worker for each queue of `acmeweb.queues`: five workers start
in the time of one, and share what is loaded. The parent runs no task and holds no connection. A worker that dies is
forked again. If the parent dies, its workers end at once (PR_SET_PDEATHSIG); a TERM or INT is passed on to them.
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
RESTART_DELAY_S = 1.0  # before a worker that died is forked again


def main(argv: Sequence[str] | None = None) -> int:
    names = [queue.name for queue in WORKER_QUEUES]
    parser = argparse.ArgumentParser(description="The Celery workers of Acme, one for each queue.")
    parser.add_argument("--queues", default=",".join(names), help="Which queues to serve, comma separated.")
    asked = parser.parse_args(argv).queues.split(",")
    if unknown := sorted(set(asked) - set(names)):
        parser.error(f"--queues: {', '.join(unknown)} is none of {', '.join(names)}")
    _load_application()
    return WorkerParent({queue.name: queue for queue in WORKER_QUEUES if queue.name in asked}, serve_queue).run()


def _load_application() -> None:
    from acmeweb.celery import app
    from acmeweb.startup import freeze_loaded_modules, require_secret_key

    require_secret_key()
    app.loader.import_default_modules()  # sets up Django and runs its checks
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    freeze_loaded_modules()


def serve_queue(queue: WorkerQueue) -> None:
    """In the forked process: become the Celery worker of this queue."""
    from acmeweb.celery import app
    from acmeweb.startup import apply_role_timeouts

    apply_role_timeouts(queue.role)
    os.nice(queue.niceness)
    words = ["worker", "-Q", queue.name, "-c", str(queue.processes), "-n", f"{queue.name}@{socket.gethostname()}"]
    app.worker_main([*words, "--without-gossip", "--without-mingle"])


class WorkerParent:
    """Keeps one child for each name until it is told to stop."""

    def __init__(
        self, wanted: Mapping[str, WorkerQueue], work: Callable[[WorkerQueue], None], again_s: float = RESTART_DELAY_S
    ) -> None:
        self.wanted, self.work, self.again_s = wanted, work, again_s
        self.running: dict[int, str] = {}  # by process id
        self.stopping = False

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        for name in self.wanted:
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
        log.warning("the worker of queue %s ended (%s); it is started again", name, os.waitstatus_to_exitcode(status))
        time.sleep(self.again_s)
        self._fork(name)

    def _fork(self, name: str) -> None:
        """Unless told to stop. Signals wait meanwhile: when one arrives, the child is in the table or not forked."""
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
        """In the child. It leaves the process group, so that a signal to the group reaches it once, by the parent."""
        code = 1
        try:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.setpgid(0, 0)
            parent_guard.die_with_parent(signal.SIGKILL, parent)
            self.work(self.wanted[name])
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        except BaseException:
            log.exception("the worker of queue %s", name)
        finally:
            sys.stdout.flush()
            os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
