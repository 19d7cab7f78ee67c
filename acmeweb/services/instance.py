"""One instance from start to stop: what `make up` does, in order.

Nothing here decides how a program runs; that is the table in programs.py. The steps: look whether it can be started at
all, start the servers under Supervisor, prepare the database, start the rest, wait until it serves, wait until it shall
stop. However it ends - Ctrl-C, an error, kill -9 - every process started here ends too (leash.py).
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
from acmeweb.services.preflight import CannotStart
from acmeweb.services.prepare import ADMINISTRATOR, PASSWORD_AS_GENERATED
from acmeweb.services.programs import InstanceConfig
from acmeweb.services.supervisor import SupervisorClient, SupervisorUnavailable

SERVER_TIMEOUT_S, READY_TIMEOUT_S, STOP_TIMEOUT_S = 30.0, 60.0, 30.0
REMINDER_INTERVAL_S = 60.0  # that the database is still being prepared
WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


class StopRequested(Exception):
    """Somebody asked us to stop while we were waiting for something."""


class StopSignals:
    """Ctrl-C, TERM and HUP. A handler only notes it: the work at hand ends at the next pause, never in the middle."""

    def __init__(self) -> None:
        self.stop = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup means it: then a closed terminal is nothing to us.
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
    """What took how long goes to var/log/up.log; a terminal also sees one line of it at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a" if path.exists() and path.stat().st_size < 10**6 else "w")
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def note(self, what: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"{now} {time.monotonic() - self._began:6.2f} s  {what}\n")
        self._file.flush()
        if self._shown:
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)

    def clear_line(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class RunningInstance:
    """Everything a start has settled before the first process begins."""

    wish: InstanceConfig
    addresses: dict[str, str]
    secrets: dict[str, str]
    signs: StopSignals
    diary: StartupLog

    @property
    def place(self) -> InstanceDirectories:
        return self.wish.place

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.addresses, "ACME_VAR": str(self.place.var), "PYTHONUNBUFFERED": "1"}

    @property
    def home(self) -> str:
        return _base_url(self.wish.bind, self.wish.port)


def _base_url(bind: str, port: int) -> str:
    host = WILDCARD_ADDRESSES.get(bind, bind)
    return f"http://{f'[{host}]' if ':' in host.strip('[]') and host[0] != '[' else host}:{port}/"


def up(env: EnvReader, var: Path) -> int:
    """Run an instance until it is stopped; the exit code."""
    signs, place = StopSignals(), InstanceDirectories(var)
    try:
        bind, port = env.text("ACME_BIND", "127.0.0.1"), env.number("ACME_PORT", 8000, 1, 65535)
        preflight.check_path(var)
        preflight.check_path(ROOT)
        preflight.make_directories(place)
        preflight.check_disk(var)
        with locks.instance_lock(place.lock):
            locks.wait_for_leftovers(place.alive, signs.pause)
            preflight.check_port(bind, port)
            return _run_instance(_configure_instance(env, place, bind, port, signs))
    except StopRequested:
        return 0
    except (CannotStart, InvalidEnvSetting) as why:
        print(why, file=sys.stderr)
        return 1
    except OSError as error:
        print(_start_error_text(error, var), file=sys.stderr)
        return 1


class WaitReminder:
    """Says every so often that something is not done yet, and what its log says last."""

    def __init__(
        self,
        log: Path,
        say: Callable[[str], None],
        every_s: float = REMINDER_INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._say, self._every_s, self._monotonic = log, say, every_s, monotonic
        self._began = self._said = monotonic()

    def remind_if_due(self) -> None:
        now = self._monotonic()
        if now - self._said < self._every_s:
            return
        self._said = now
        last = supervisor.last_lines(self._log, 1).strip() or "it has written nothing yet"
        self._say(f"The database is still being prepared after {now - self._began:.0f} s. {self._log} ends: {last}")


def _start_error_text(error: OSError, var: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"The disk of {var} is full."
    return f"Acme could not be started: {error}."


def _configure_instance(
    env: EnvReader, place: InstanceDirectories, bind: str, port: int, signs: StopSignals
) -> RunningInstance:
    """Choose ports, make secrets, write down how to reach everything."""
    secrets = {name: secret_files.read_or_create(place.secrets / name) for name in ("postgres", "valkey")}
    secrets["admin-password"] = secret_files.read_or_create(
        place.secrets / "admin-password", 20
    )  # a person types this one
    secret_files.read_or_create(place.cluster_token)
    last = EnvReader(read_file(place.env))
    database = env.url(("DATABASE_URL",), ("postgresql", "postgres"))
    broker = env.url(("VALKEY_URL", "REDIS_URL"), ("redis", "rediss", "valkey", "unix"))
    wish = InstanceConfig(
        place=place,
        bind=bind,
        port=port,
        demo=env.flag("DEMO", True),
        postgres_port=0 if database else ports.pick(_last_port(last, "DATABASE_URL")),
        valkey_port=0 if broker else ports.pick(_last_port(last, "VALKEY_URL")),
        cluster_port=ports.pick(_last_port(last, "SIMULATED_CLUSTER_URL")),
        cluster_min_job_age_s=cluster_min_job_age_s(env),
        cluster_accounting=env.flag("ACME_CLUSTER_ACCOUNTING", True),
        web=web_processes(env),
        users=users.choose(env),
    )
    addresses = {
        "SECRET_KEY": env.text("SECRET_KEY") or secret_files.read_or_create(place.secrets / "secret-key"),
        "DATABASE_URL": with_password(database, env.text("DATABASE_PASSWORD")).geturl()
        if database
        else postgres.url(secrets["postgres"], wish.postgres_port),
        "VALKEY_URL": with_password(broker, env.text("VALKEY_PASSWORD")).geturl()
        if broker
        else valkey.url(secrets["valkey"], wish.valkey_port),
        "SIMULATED_CLUSTER_URL": f"http://127.0.0.1:{wish.cluster_port}",
        "OWN_CLUSTER_TOKEN_FILE": str(place.cluster_token),
        "ACME_URL": env.text("ACME_URL") or _base_url(bind, port),  # where jobs report their progress to
    }
    secret_files.write_env(place.env, addresses)
    return RunningInstance(
        wish=wish, addresses=addresses, secrets=secrets, signs=signs, diary=StartupLog(place.log / "up.log")
    )


def _last_port(last: EnvReader, name: str) -> int | None:
    try:
        parts = last.url((name,), ("postgresql", "redis", "http"))
    except InvalidEnvSetting:
        return None
    return parts.port if parts else None


def _run_instance(it: RunningInstance) -> int:
    it.diary.note("starting")
    it.diary.note(_users_text(it.wish))
    _write_server_files(it)
    if it.wish.users.are_separate:
        ownership.assign_files_to_users(it.place, it.wish.users, runs_jobs=not it.wish.demo)
        _compile_sources()
    with _supervisor_session(it) as (process, runner):
        try:
            _start_programs(it, process, runner)
            print(_ready_message(it, _admin_password(it)), flush=True)
            _watch_programs(it, process, runner)
        finally:
            it.diary.clear_line()
    return 1


def _users_text(wish: InstanceConfig) -> str:
    them = wish.users
    if not them.are_separate:
        return users.shared_user_warning(them, not wish.demo) or "everything runs as the user who started it"
    jobs = "" if wish.demo else f", jobs {them.jobs} (one for each team)"
    return f"user ids: Acme {them.acme}, PostgreSQL {them.postgres}, Valkey {them.valkey}{jobs}"


def _write_server_files(it: RunningInstance) -> None:
    them = it.wish.users
    if it.wish.postgres_port:
        log = it.place.log / "initdb.log"
        postgres.prepare_data_directory(it.place.postgres, it.secrets["postgres"], log, them.postgres)
        it.diary.note("PostgreSQL's files are there")
    if it.wish.valkey_port:
        text = valkey.configuration(it.place.valkey, it.secrets["valkey"], it.wish.valkey_port)
        secret_files.write(it.place.valkey_conf, text)
        if them.are_separate:
            os.chown(it.place.valkey_conf, *parent_guard.ids_of(them.valkey))


def _compile_sources() -> None:
    """Acme's own user may not write beside the sources, and each of its processes would compile them again."""
    for package in ("acmeweb", "jobs", "failures", "scheduling"):
        compileall.compile_dir(ROOT / package, quiet=2)


@contextmanager
def _supervisor_session(it: RunningInstance) -> Iterator[tuple[subprocess.Popen[bytes], SupervisorClient]]:
    """Supervisor, and whatever happens inside: when this is left, nothing of it runs any more."""
    port, password = ports.pick(), secret_files.random_secret()
    supervisor.write_configuration(
        it.place, supervisor.configuration(it.place, programs.program_table(it.wish), port, password)
    )
    process, runner = supervisor.start(it.place, it.environment), SupervisorClient(port, password)
    try:
        yield process, runner
    finally:
        _stop_programs(it, process, runner)
        runner.close()


def _stop_programs(it: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    it.diary.note("stopping")
    with suppress(ProcessLookupError):
        process.terminate()
    limit = time.monotonic() + STOP_TIMEOUT_S
    while process.poll() is None and time.monotonic() < limit:
        # Supervisor looks around once a second, or when it is spoken to; so it is spoken to.
        with suppress(SupervisorUnavailable):
            runner.programs()
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()
    with suppress(CannotStart):
        locks.wait_for_leftovers(it.place.alive)
    it.diary.note("stopped")
    it.diary.clear_line()


def _start_programs(it: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    wish, urls = it.wish, it.addresses

    def database_answers() -> bool:
        if wish.postgres_port:
            return postgres.ensure_database(it.secrets["postgres"], wish.postgres_port)
        return postgres.accepts_login(urls["DATABASE_URL"])

    _wait_until(it, database_answers, "the database to answer", SERVER_TIMEOUT_S, process, runner)
    it.diary.note("the database answers")
    _wait_until(
        it, lambda: valkey.accepts_login(urls["VALKEY_URL"]), "Valkey to answer", SERVER_TIMEOUT_S, process, runner
    )
    it.diary.note("Valkey answers")
    _prepare_database(it, process, runner)
    it.diary.note("the database is prepared")
    runner.start_other_programs()
    _wait_until(
        it,
        lambda: _web_is_ready(wish) and _all_programs_run(runner),
        "the dashboard to answer",
        READY_TIMEOUT_S,
        process,
        runner,
    )
    it.diary.note("ready")


def _wait_until(
    it: RunningInstance,
    question: Callable[[], bool],
    what: str,
    limit_s: float,
    process: subprocess.Popen[bytes],
    runner: SupervisorClient,
) -> None:
    """Ask until yes. A program that was given up, or a runner that is gone, ends the waiting at once."""
    limit = time.monotonic() + limit_s
    while not question():
        it.signs.pause()
        if process.poll() is not None:
            raise CannotStart(f"The process runner ended:\n{supervisor.last_lines(it.place.log / 'supervisor.out')}")
        if given_up := _programs_in_state(runner, "FATAL"):
            raise CannotStart(_failed_programs_text(it, given_up))
        if time.monotonic() > limit:
            failed = _programs_in_state(runner, "BACKOFF", "EXITED")
            raise CannotStart(f"Waited {limit_s:.0f} s for {what}. {_failed_programs_text(it, failed)}")


def _programs_in_state(runner: SupervisorClient, *states: str) -> list[str]:
    try:
        return [seen.name for seen in runner.programs() if seen.state in states]
    except SupervisorUnavailable:
        return []


def _all_programs_run(runner: SupervisorClient) -> bool:
    try:
        return all(seen.state == "RUNNING" for seen in runner.programs())
    except SupervisorUnavailable:
        return False


def _failed_programs_text(it: RunningInstance, names: list[str]) -> str:
    if not names:
        return f"No program failed; their logs are in {it.place.log}."
    logs = (it.place.log / f"{name}.log" for name in names)
    return "\n".join(f"{log.stem} does not start; {log} ends:\n{supervisor.last_lines(log)}" for log in logs)


def _prepare_database(it: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    """A process of its own: this one met its settings before there was a database.

    It may take as long as it needs: to end a migration in the middle of a large table would only make it begin again.
    """
    words = [sys.executable, "manage.py", "prepare"]
    environment = {**it.environment, "ACME_ADMIN_PASSWORD": it.secrets["admin-password"]}
    log = it.place.log / "prepare.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            parent_guard.guarded_command(
                words,
                stop="KILL",
                parent=os.getpid(),
                hold=it.place.alive,
                user=it.wish.users.acme,
                home=it.place.work,
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
        _wait_until(it, is_prepared, "the database to be prepared", math.inf, process, runner)
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0:
        raise CannotStart(_failed_programs_text(it, ["prepare"]))


def _web_is_ready(wish: InstanceConfig) -> bool:
    """One question at a time on one connection, asked under a name that is always allowed."""
    connection = http.client.HTTPConnection(
        WILDCARD_ADDRESSES.get(wish.bind, wish.bind).strip("[]"), wish.port, timeout=5
    )
    try:
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _admin_password(it: RunningInstance) -> str:
    said = (it.place.log / "prepare.log").read_text(errors="replace")
    return it.secrets["admin-password"] if PASSWORD_AS_GENERATED in said else ""


def _ready_message(it: RunningInstance, password: str) -> str:
    it.diary.clear_line()
    shown = f"password {password}" if password else "password: as you set it"
    ready = f"Acme is ready: {it.home}  user {ADMINISTRATOR}  {shown}  (Ctrl-C stops everything)"
    warning = users.shared_user_warning(it.wish.users, not it.wish.demo)
    return f"{ready}\n{warning}" if warning else ready


def _watch_programs(it: RunningInstance, process: subprocess.Popen[bytes], runner: SupervisorClient) -> None:
    """Until somebody stops it (Stopped) or the runner dies. A program that was given up is tried again, and named."""
    look_again = 0.0
    while process.poll() is None:
        it.signs.pause(0.1)
        if time.monotonic() < look_again:
            continue
        look_again = time.monotonic() + 10
        for name in _programs_in_state(runner, "FATAL"):
            print(f"{name} keeps failing, see {it.place.log / name}.log; it is started again.", file=sys.stderr)
            with suppress(SupervisorUnavailable):
                runner.start(name)
    raise CannotStart(f"The process runner ended by itself; everything was stopped. See {it.place.log}/supervisor.log.")
