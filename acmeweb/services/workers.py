"""The workers: python -m acmeweb.services.workers [--groups turns,recovery]

One parent loads the application once and forks the processes of each group of loops (`acmeweb.loops.table`), and one
Celery worker for what users request. Modules are loaded once and shared. The parent runs no loop and holds no
connection. It replaces a process that ends. If the parent dies, its children end at once
(PR_SET_PDEATHSIG); it passes TERM and INT on to them.
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
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from acmeweb.services import parent_guard

if TYPE_CHECKING:
    from acmeweb.loops.table import LoopGroup

log = logging.getLogger("acme.workers")

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
RESTART_DELAY_S = 1.0  # before a process that ended is replaced
REQUESTS = "requests"  # the Celery worker
REQUEST_PROCESSES = 2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The processes that run loops, and the Celery worker.")
    parser.add_argument("--groups", default="", help="groups of loops, and requests, comma-separated; default: all")
    options = parser.parse_args(argv)
    _load_application()
    work = all_work()
    chosen = options.groups.split(",") if options.groups else list(work)
    if unknown := sorted(set(chosen) - set(work)):
        parser.error(f"--groups: {', '.join(unknown)} is not one of {', '.join(work)}")
    processes = {name: run for group in chosen for name, run in work[group].items()}
    return WorkerParent(processes).run()


def _load_application() -> None:
    import django

    django.setup()
    from acmeweb.loops import process  # noqa: F401
    from acmeweb.startup import freeze_loaded_modules, require_secret_key
    from failures.diagnosis.tables import load_tables

    require_secret_key()
    load_tables()
    freeze_loaded_modules()


def all_work() -> dict[str, dict[str, Callable[[], None]]]:
    """Return what each process does, by group and by name of the process."""
    from acmeweb.loops.table import GROUPS

    def processes(group: LoopGroup) -> dict[str, Callable[[], None]]:
        return {f"{group.name}-{number}": partial(run_loops, group, number) for number in range(1, group.processes + 1)}

    return {**{group.name: processes(group) for group in GROUPS}, REQUESTS: {REQUESTS: serve_requests}}


def run_loops(group: LoopGroup, number: int) -> None:
    """Run the loops of a group, in the forked process."""
    from acmeweb.loops.process import LoopProcess
    from acmeweb.startup import apply_role_timeouts

    apply_role_timeouts(group.role)
    os.nice(group.niceness)
    LoopProcess(group, number).serve()


def serve_requests() -> None:
    """Become the Celery worker, in the forked process."""
    from acmeweb.celery import QUEUE, app
    from acmeweb.startup import apply_role_timeouts

    apply_role_timeouts("long")
    os.nice(10)
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    words = ["worker", "-Q", QUEUE, "-c", str(REQUEST_PROCESSES), "-n", f"{QUEUE}@{socket.gethostname()}"]
    app.worker_main([*words, "--without-gossip", "--without-mingle"])


class WorkerParent:
    """Keeps one child for each of these functions running until it is stopped."""

    def __init__(self, work: Mapping[str, Callable[[], None]], restart_delay_s: float = RESTART_DELAY_S) -> None:
        self.work, self.restart_delay_s = work, restart_delay_s
        self.running: dict[int, str] = {}  # by process id
        self.stopping = False

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        for name in self.work:
            self._fork(name)
        while self.running:
            self._restart_ended_worker()
        return 0

    def _stop(self, number: int, _frame: object) -> None:
        self.stopping = True
        for pid in list(self.running):
            with suppress(ProcessLookupError):  # it has ended and was reaped just now
                os.kill(pid, number)

    def _restart_ended_worker(self) -> None:
        pid, status = os.wait()
        if (name := self.running.pop(pid, None)) is None or self.stopping:
            return
        log.warning("The process %s ended (%s) and is being restarted", name, os.waitstatus_to_exitcode(status))
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
            self.work[name]()
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        except BaseException:
            log.exception("The process %s failed", name)
        finally:
            sys.stdout.flush()
            os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
