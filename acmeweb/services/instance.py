"""One instance from start to stop: what `make up` does, in order.

The table in programs.py defines how each program runs. The steps here: check whether a start is possible, start the
servers under Supervisor, prepare the database, start the other programs, wait until the dashboard answers, wait for a
stop request. However it ends - Ctrl-C, an error, kill -9 - every process started here ends too (parent_guard.py).
"""

from __future__ import annotations

import compileall
import errno
import http.client
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from acmeweb.common.env import (
    ROOT,
    EnvReader,
    InvalidEnvSetting,
    cluster_min_job_age_s,
    demo_clusters,
    read_file,
    web_processes,
    with_password,
)
from acmeweb.services import (
    locks,
    ownership,
    parent_guard,
    ports,
    postgres,
    preflight,
    programs,
    secret_files,
    supervisor,
    users,
    valkey,
)
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.kubeconfig import kubeconfig_text
from acmeweb.services.preflight import CannotStart
from acmeweb.services.prepare import ADMINISTRATOR, PASSWORD_AS_GENERATED
from acmeweb.services.programs import InstanceConfig
from acmeweb.services.supervisor import SupervisorClient, SupervisorUnavailable

# Generous: a program that fails ends the wait at once, and a busy machine imports Django ten times as slowly
SERVER_TIMEOUT_S, READY_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 240.0, 30.0
REMINDER_INTERVAL_S = 60.0  # between messages that the database is still being prepared
WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


class StopRequested(Exception):
    """A stop was requested while we were waiting."""


class StopSignals:
    """Ctrl-C, TERM and HUP. A handler only sets a flag, so work stops at the next pause, never halfway."""

    def __init__(self) -> None:
        self.stop = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores HUP on purpose: then a closed terminal must not stop us.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._request_stop)

    def _request_stop(self, *_: object) -> None:
        self.stop = True

    def pause(self, seconds: float = 0.05) -> None:
        if not self.stop:
            time.sleep(seconds)
        if self.stop:
            raise StopRequested


class StartupLog:
    """Writes what took how long to var/log/up.log; a terminal also shows the current line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a" if path.exists() and path.stat().st_size < 10**6 else "w")
        self._started_at = time.monotonic()
        self._shown = sys.stderr.isatty()

    def note(self, what: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"{now} {time.monotonic() - self._started_at:6.2f} s  {what}\n")
        self._file.flush()
        if self._shown:
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)

    def clear_line(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class RunningInstance:
    """What a start determines before the first process begins."""

    config: InstanceConfig
    addresses: dict[str, str]
    secrets: dict[str, str]
    signals: StopSignals
    startup_log: StartupLog

    @property
    def dirs(self) -> InstanceDirectories:
        return self.config.dirs

    @property
    def environment(self) -> dict[str, str]:
        own = {"ACME_VAR": str(self.dirs.var), "DEMO": str(int(self.config.demo)), "PYTHONUNBUFFERED": "1"}
        return {**os.environ, **self.addresses, **own}

    @property
    def home(self) -> str:
        return _base_url(self.config.bind, self.config.port)


def _base_url(bind: str, port: int) -> str:
    host = WILDCARD_ADDRESSES.get(bind, bind)
    return f"http://{f'[{host}]' if ':' in host.strip('[]') and host[0] != '[' else host}:{port}/"


def up(env: EnvReader, var: Path) -> int:
    """Run an instance until it is stopped; return the exit code."""
    signals, dirs = StopSignals(), InstanceDirectories(var)
    try:
        bind, port = env.text("ACME_BIND", "127.0.0.1"), env.number("ACME_PORT", 8000, 1, 65535)
        preflight.check_path(var)
        preflight.check_path(ROOT)
        preflight.make_directories(dirs)
        preflight.check_disk(var)
        with locks.instance_lock(dirs.lock):
            locks.wait_for_leftovers(dirs.alive, signals.pause)
            preflight.check_port(bind, port)
            return _run_instance(_configure_instance(env, dirs, bind, port, signals))
    except StopRequested:
        return 0
    except (CannotStart, InvalidEnvSetting) as why:
        print(why, file=sys.stderr)
        return 1
    except OSError as error:
        print(_start_error_text(error, var), file=sys.stderr)
        return 1


class WaitReminder:
    """Reports periodically that a step is still running, with the last line of its log."""

    def __init__(
        self,
        log: Path,
        say: Callable[[str], None],
        every_s: float = REMINDER_INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._say, self._every_s, self._monotonic = log, say, every_s, monotonic
        self._started_at = self._last_reminder = monotonic()

    def remind_if_due(self) -> None:
        now = self._monotonic()
        if now - self._last_reminder < self._every_s:
            return
        self._last_reminder = now
        last = supervisor.last_lines(self._log, 1).strip() or "it is still empty"
        self._say(
            f"The database is still being prepared after {now - self._started_at:.0f} s. {self._log} ends: {last}"
        )


def _start_error_text(error: OSError, var: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"The disk of {var} is full."
    return f"Acme could not be started: {error}."


def _configure_instance(
    env: EnvReader, dirs: InstanceDirectories, bind: str, port: int, signals: StopSignals
) -> RunningInstance:
    """Choose ports, create secrets, and write the addresses of all servers to var/run/env."""
    secrets = {name: secret_files.read_or_create(dirs.secrets / name) for name in ("postgres", "valkey")}
    # Shorter than the others, because users type it
    secrets["admin-password"] = secret_files.read_or_create(dirs.secrets / "admin-password", 20)
    secret_files.read_or_create(dirs.cluster_token)
    demo = env.flag("DEMO", True)
    clusters = demo_clusters(env) if demo else ()
    last = EnvReader(read_file(dirs.env))
    database = env.url(("DATABASE_URL",), ("postgresql", "postgres"))
    broker = env.url(("VALKEY_URL", "REDIS_URL"), ("redis", "rediss", "valkey", "unix"))
    config = InstanceConfig(
        dirs=dirs,
        bind=bind,
        port=port,
        demo=demo,
        postgres_port=0 if database else ports.pick(_last_port(last, "DATABASE_URL")),
        valkey_port=0 if broker else ports.pick(_last_port(last, "VALKEY_URL")),
        cluster_port=ports.pick(_last_port(last, "SIMULATED_CLUSTER_URL")) if "seren" in clusters or not demo else 0,
        kubernetes_port=ports.pick(_last_port(last, "SIMULATED_KUBERNETES_URL")) if "kalos" in clusters else 0,
        cluster_min_job_age_s=cluster_min_job_age_s(env),
        cluster_accounting=env.flag("ACME_CLUSTER_ACCOUNTING", True),
        web=web_processes(env),
        users=users.choose(env),
    )
    addresses = {
        "SECRET_KEY": env.text("SECRET_KEY") or secret_files.read_or_create(dirs.secrets / "secret-key"),
        "DATABASE_URL": with_password(database, env.text("DATABASE_PASSWORD")).geturl()
        if database
        else postgres.url(secrets["postgres"], config.postgres_port),
        "VALKEY_URL": with_password(broker, env.text("VALKEY_PASSWORD")).geturl()
        if broker
        else valkey.url(secrets["valkey"], config.valkey_port),
        "SIMULATED_CLUSTER_URL": f"http://127.0.0.1:{config.cluster_port}",
        "OWN_CLUSTER_TOKEN_FILE": str(dirs.cluster_token),
        "ACME_URL": env.text("ACME_URL") or _base_url(bind, port),  # where jobs report their progress to
    }
    if config.kubernetes_port:
        addresses |= _kubernetes_addresses(dirs, config.kubernetes_port)
    secret_files.write_env(dirs.env, addresses)
    return RunningInstance(
        config=config,
        addresses=addresses,
        secrets=secrets,
        signals=signals,
        startup_log=StartupLog(dirs.log / "up.log"),
    )


def _kubernetes_addresses(dirs: InstanceDirectories, port: int) -> dict[str, str]:
    """Write the kubeconfig of the demo's Kubernetes cluster; return where it is."""
    server, token = f"http://127.0.0.1:{port}", secret_files.read_or_create(dirs.kubernetes_token)
    secret_files.write(dirs.kubeconfig, kubeconfig_text("kalos", server, token))
    return {"SIMULATED_KUBERNETES_URL": server, "OWN_KUBECONFIG": str(dirs.kubeconfig)}


def _last_port(last: EnvReader, name: str) -> int | None:
    try:
        parts = last.url((name,), ("postgresql", "redis", "http"))
    except InvalidEnvSetting:
        return None
    return parts.port if parts else None


def _run_instance(instance: RunningInstance) -> int:
    instance.startup_log.note("starting")
    instance.startup_log.note(_users_text(instance.config))
    _write_server_files(instance)
    if instance.config.users.are_separate:
        ownership.assign_files_to_users(instance.dirs, instance.config.users, runs_jobs=not instance.config.demo)
        _compile_sources()
    with _supervisor_session(instance) as (process, runner):
        try:
            _start_programs(instance, process, runner)
            print(_ready_message(instance, _admin_password(instance)), flush=True)
            _watch_programs(instance, process, runner)
        finally:
            instance.startup_log.clear_line()
    return 1


def _users_text(config: InstanceConfig) -> str:
    ids = config.users
    if not ids.are_separate:
        return users.shared_user_warning(ids, not config.demo) or "all programs run as the user who started Acme"
    jobs = "" if config.demo else f", jobs {ids.jobs} (one for each team)"
    return f"user ids: Acme {ids.acme}, PostgreSQL {ids.postgres}, Valkey {ids.valkey}{jobs}"


def _write_server_files(instance: RunningInstance) -> None:
    ids = instance.config.users
    if instance.config.postgres_port:
        log = instance.dirs.log / "initdb.log"
        postgres.prepare_data_directory(instance.dirs.postgres, instance.secrets["postgres"], log, ids.postgres)
        instance.startup_log.note("PostgreSQL's data directory exists")
    if instance.config.valkey_port:
        text = valkey.configuration(instance.dirs.valkey, instance.secrets["valkey"], instance.config.valkey_port)
        secret_files.write(instance.dirs.valkey_conf, text)
        if ids.are_separate:
            os.chown(instance.dirs.valkey_conf, *parent_guard.ids_of(ids.valkey))


def _compile_sources() -> None:
    """Compile the Python sources: Acme's own user may not write next to them, so each process would repeat it."""
    for package in ("acmeweb", "jobs", "failures", "scheduling"):
        compileall.compile_dir(ROOT / package, quiet=2)


@contextmanager
def _supervisor_session(instance: RunningInstance) -> Iterator[tuple[subprocess.Popen[bytes], SupervisorClient]]:
    """Run Supervisor for the duration of the block; afterwards none of its programs runs."""
    port, password = ports.pick(), secret_files.random_secret()
    supervisor.write_configuration(
        instance.dirs,
        supervisor.configuration(instance.dirs, programs.program_table(instance.config), port, password),
    )
    process, runner = supervisor.start(instance.dirs, instance.environment), SupervisorClient(port, password)
    try:
        yield process, runner
    finally:
        _stop_programs(instance, process, runner)
        runner.close()


def _stop_programs(instance: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    instance.startup_log.note("stopping")
    with suppress(ProcessLookupError):
        process.terminate()
    limit = time.monotonic() + STOP_TIMEOUT_S
    while process.poll() is None and time.monotonic() < limit:
        # Supervisor checks its children once per second, or on a request; so requests speed up the stop.
        with suppress(SupervisorUnavailable):
            runner.programs()
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()
    with suppress(CannotStart):
        locks.wait_for_leftovers(instance.dirs.alive)
    instance.startup_log.note("stopped")
    instance.startup_log.clear_line()


def _start_programs(instance: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    config, urls = instance.config, instance.addresses

    def database_answers() -> bool:
        if config.postgres_port:
            return postgres.ensure_database(instance.secrets["postgres"], config.postgres_port)
        return postgres.accepts_login(urls["DATABASE_URL"])

    _wait_until(instance, database_answers, "the database to answer", SERVER_TIMEOUT_S, process, runner)
    instance.startup_log.note("the database answers")
    _wait_until(
        instance,
        lambda: valkey.accepts_login(urls["VALKEY_URL"]),
        "Valkey to answer",
        SERVER_TIMEOUT_S,
        process,
        runner,
    )
    instance.startup_log.note("Valkey answers")
    _prepare_database(instance, process, runner)
    instance.startup_log.note("the database is prepared")
    runner.start_other_programs()
    _wait_until(
        instance,
        lambda: _web_is_ready(config) and _all_programs_run(runner),
        "the dashboard to answer",
        READY_TIMEOUT_S,
        process,
        runner,
    )
    instance.startup_log.note("ready")


def _wait_until(
    instance: RunningInstance,
    condition: Callable[[], bool],
    what: str,
    limit_s: float,
    process: subprocess.Popen[bytes],
    runner: SupervisorClient,
) -> None:
    """Poll until the condition holds. Raise CannotStart at once if a program failed for good or the runner ended."""
    limit = time.monotonic() + limit_s
    while not condition():
        instance.signals.pause()
        if process.poll() is not None:
            raise CannotStart(
                f"The process runner ended:\n{supervisor.last_lines(instance.dirs.log / 'supervisor.out')}"
            )
        if failed_programs := _programs_in_state(runner, "FATAL"):
            raise CannotStart(_failed_programs_text(instance, failed_programs))
        if time.monotonic() > limit:
            failed = _programs_in_state(runner, "BACKOFF", "EXITED")
            raise CannotStart(f"Waited {limit_s:.0f} s for {what}. {_failed_programs_text(instance, failed)}")


def _programs_in_state(runner: SupervisorClient, *states: str) -> list[str]:
    try:
        return [program.name for program in runner.programs() if program.state in states]
    except SupervisorUnavailable:
        return []


def _all_programs_run(runner: SupervisorClient) -> bool:
    try:
        return all(program.state == "RUNNING" for program in runner.programs())
    except SupervisorUnavailable:
        return False


def _failed_programs_text(instance: RunningInstance, names: list[str]) -> str:
    if not names:
        return f"No program failed; their logs are in {instance.dirs.log}."
    logs = (instance.dirs.log / f"{name}.log" for name in names)
    return "\n".join(f"{log.stem} does not start; {log} ends:\n{supervisor.last_lines(log)}" for log in logs)


def _prepare_database(instance: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    """Run `manage.py prepare` in a process of its own, because this one read its settings before a database existed.

    There is no time limit: killing a migration of a large table would only make it start again.
    """
    command = [sys.executable, "manage.py", "prepare"]
    environment = {**instance.environment, "ACME_ADMIN_PASSWORD": instance.secrets["admin-password"]}
    log = instance.dirs.log / "prepare.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            parent_guard.guarded_command(
                command,
                stop="KILL",
                parent=os.getpid(),
                hold=instance.dirs.alive,
                user=instance.config.users.acme,
                home=instance.dirs.work,
                reach=programs.SOURCE_PATHS,
            ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    waiting = WaitReminder(log, lambda line: print(line, file=sys.stderr, flush=True))

    def is_prepared() -> bool:
        waiting.remind_if_due()
        return child.poll() is not None

    try:
        _wait_until(instance, is_prepared, "the database to be prepared", math.inf, process, runner)
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0:
        raise CannotStart(_failed_programs_text(instance, ["prepare"]))


def _web_is_ready(config: InstanceConfig) -> bool:
    """Whether /readyz answers 200. The Host header is one that is always allowed."""
    connection = http.client.HTTPConnection(
        WILDCARD_ADDRESSES.get(config.bind, config.bind).strip("[]"), config.port, timeout=5
    )
    try:
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _admin_password(instance: RunningInstance) -> str:
    output = (instance.dirs.log / "prepare.log").read_text(errors="replace")
    return instance.secrets["admin-password"] if PASSWORD_AS_GENERATED in output else ""


def _ready_message(instance: RunningInstance, password: str) -> str:
    instance.startup_log.clear_line()
    password_text = f"password {password}" if password else "password: as you set it"
    ready = f"Acme is ready: {instance.home}  user {ADMINISTRATOR}  {password_text}  (Ctrl-C stops everything)"
    warning = users.shared_user_warning(instance.config.users, not instance.config.demo)
    return f"{ready}\n{warning}" if warning else ready


def _watch_programs(instance: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    """Run until a stop is requested or the runner dies. Restart programs that Supervisor gave up on."""
    next_check_at = 0.0
    while process.poll() is None:
        instance.signals.pause(0.1)
        if time.monotonic() < next_check_at:
            continue
        next_check_at = time.monotonic() + 10
        for name in _programs_in_state(runner, "FATAL"):
            print(
                f"{name} keeps failing and is being restarted. See {instance.dirs.log / name}.log.",
                file=sys.stderr,
            )
            with suppress(SupervisorUnavailable):
                runner.start(name)
    log = instance.dirs.log / "supervisor.log"
    raise CannotStart(f"The process runner ended unexpectedly; all programs were stopped. See {log}.")
