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

from acmeweb.env import ROOT, BadSetting, Env, cluster_min_job_age_s, read_file, web_processes, with_password
from acmeweb.services import (
    keys,
    leash,
    locks,
    ownership,
    ports,
    postgres,
    preflight,
    programs,
    supervisor,
    users,
    valkey,
)
from acmeweb.services.place import Place
from acmeweb.services.preflight import CannotStart
from acmeweb.services.prepare import ADMINISTRATOR, AS_GENERATED
from acmeweb.services.programs import Wish
from acmeweb.services.supervisor import Runner, Silent

SERVERS_S, READY_S, STOP_S = 30.0, 60.0, 30.0
SAY_EVERY_S = 60.0  # that the database is still being prepared
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


class Stopped(Exception):
    """Somebody asked us to stop while we were waiting for something."""


class Signs:
    """Ctrl-C, TERM and HUP. A handler only notes it: the work at hand ends at the next pause, never in the middle."""

    def __init__(self) -> None:
        self.stop = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup means it: then a closed terminal is nothing to us.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.stop = True

    def pause(self, seconds: float = 0.05) -> None:
        if not self.stop:
            time.sleep(seconds)
        if self.stop:
            raise Stopped


class Diary:
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

    def wipe(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Instance:
    """Everything a start has settled before the first process begins."""

    wish: Wish
    addresses: dict[str, str]
    secrets: dict[str, str]
    signs: Signs
    diary: Diary

    @property
    def place(self) -> Place:
        return self.wish.place

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.addresses, "ACME_VAR": str(self.place.var), "PYTHONUNBUFFERED": "1"}

    @property
    def home(self) -> str:
        return _home(self.wish.bind, self.wish.port)


def _home(bind: str, port: int) -> str:
    host = ANYWHERE.get(bind, bind)
    return f"http://{f'[{host}]' if ':' in host.strip('[]') and host[0] != '[' else host}:{port}/"


def up(env: Env, var: Path) -> int:
    """Run an instance until it is stopped; the exit code."""
    signs, place = Signs(), Place(var)
    try:
        bind, port = env.text("ACME_BIND", "127.0.0.1"), env.number("ACME_PORT", 8000, 1, 65535)
        preflight.check_path(var)
        preflight.check_path(ROOT)
        preflight.make_directories(place)
        preflight.check_disk(var)
        with locks.only_one(place.lock):
            locks.wait_for_leftovers(place.alive, signs.pause)
            preflight.check_port(bind, port)
            return _run(_settle(env, place, bind, port, signs))
    except Stopped:
        return 0
    except (CannotStart, BadSetting) as why:
        print(why, file=sys.stderr)
        return 1
    except OSError as error:
        print(_in_words(error, var), file=sys.stderr)
        return 1


class Waiting:
    """Says every so often that something is not done yet, and what its log says last."""

    def __init__(
        self,
        log: Path,
        say: Callable[[str], None],
        every_s: float = SAY_EVERY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._say, self._every_s, self._monotonic = log, say, every_s, monotonic
        self._began = self._said = monotonic()

    def remind(self) -> None:
        now = self._monotonic()
        if now - self._said < self._every_s:
            return
        self._said = now
        last = supervisor.last_lines(self._log, 1).strip() or "it has written nothing yet"
        self._say(f"The database is still being prepared after {now - self._began:.0f} s. {self._log} ends: {last}")


def _in_words(error: OSError, var: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"The disk of {var} is full."
    return f"Acme could not be started: {error}."


def _settle(env: Env, place: Place, bind: str, port: int, signs: Signs) -> Instance:
    """Choose ports, make secrets, write down how to reach everything."""
    secrets = {name: keys.keep(place.secrets / name) for name in ("postgres", "valkey")}
    secrets["admin-password"] = keys.keep(place.secrets / "admin-password", 20)  # a person types this one
    keys.keep(place.cluster_token)
    last = Env(read_file(place.env))
    database = env.url(("DATABASE_URL",), ("postgresql", "postgres"))
    broker = env.url(("VALKEY_URL", "REDIS_URL"), ("redis", "rediss", "valkey", "unix"))
    wish = Wish(
        place=place,
        bind=bind,
        port=port,
        demo=env.flag("DEMO", True),
        postgres_port=0 if database else ports.pick(_port(last, "DATABASE_URL")),
        valkey_port=0 if broker else ports.pick(_port(last, "VALKEY_URL")),
        cluster_port=ports.pick(_port(last, "SIMULATED_CLUSTER_URL")),
        cluster_min_job_age_s=cluster_min_job_age_s(env),
        cluster_accounting=env.flag("ACME_CLUSTER_ACCOUNTING", True),
        web=web_processes(env),
        users=users.choose(env),
    )
    addresses = {
        "SECRET_KEY": env.text("SECRET_KEY") or keys.keep(place.secrets / "secret-key"),
        "DATABASE_URL": with_password(database, env.text("DATABASE_PASSWORD")).geturl()
        if database
        else postgres.url(secrets["postgres"], wish.postgres_port),
        "VALKEY_URL": with_password(broker, env.text("VALKEY_PASSWORD")).geturl()
        if broker
        else valkey.url(secrets["valkey"], wish.valkey_port),
        "SIMULATED_CLUSTER_URL": f"http://127.0.0.1:{wish.cluster_port}",
        "OWN_CLUSTER_TOKEN_FILE": str(place.cluster_token),
        "ACME_URL": env.text("ACME_URL") or _home(bind, port),  # where jobs report their progress to
    }
    keys.write_env(place.env, addresses)
    return Instance(wish=wish, addresses=addresses, secrets=secrets, signs=signs, diary=Diary(place.log / "up.log"))


def _port(last: Env, name: str) -> int | None:
    try:
        parts = last.url((name,), ("postgresql", "redis", "http"))
    except BadSetting:
        return None
    return parts.port if parts else None


def _run(it: Instance) -> int:
    it.diary.note("starting")
    it.diary.note(_as_whom(it.wish))
    _write_servers(it)
    if it.wish.users.separate:
        ownership.divide(it.place, it.wish.users, runs_jobs=not it.wish.demo)
        _compile_sources()
    with _runner(it) as (process, runner):
        try:
            _start(it, process, runner)
            print(_ready_lines(it, _admin_password(it)), flush=True)
            _watch(it, process, runner)
        finally:
            it.diary.wipe()
    return 1


def _as_whom(wish: Wish) -> str:
    them = wish.users
    if not them.separate:
        return users.shared_user_warning(them, not wish.demo) or "everything runs as the user who started it"
    jobs = "" if wish.demo else f", jobs {them.jobs} (one for each team)"
    return f"user ids: Acme {them.acme}, PostgreSQL {them.postgres}, Valkey {them.valkey}{jobs}"


def _write_servers(it: Instance) -> None:
    them = it.wish.users
    if it.wish.postgres_port:
        log = it.place.log / "initdb.log"
        postgres.prepare(it.place.postgres, it.secrets["postgres"], log, them.postgres)
        it.diary.note("PostgreSQL's files are there")
    if it.wish.valkey_port:
        text = valkey.configuration(it.place.valkey, it.secrets["valkey"], it.wish.valkey_port)
        keys.write(it.place.valkey_conf, text)
        if them.separate:
            os.chown(it.place.valkey_conf, *leash.ids_of(them.valkey))


def _compile_sources() -> None:
    """Acme's own user may not write beside the sources, and each of its processes would compile them again."""
    for package in ("acmeweb", "jobs", "failures", "scheduling"):
        compileall.compile_dir(ROOT / package, quiet=2)


@contextmanager
def _runner(it: Instance) -> Iterator[tuple[subprocess.Popen[bytes], Runner]]:
    """Supervisor, and whatever happens inside: when this is left, nothing of it runs any more."""
    port, password = ports.pick(), keys.made_up()
    supervisor.write(it.place, supervisor.configuration(it.place, programs.table(it.wish), port, password))
    process, runner = supervisor.start(it.place, it.environment), Runner(port, password)
    try:
        yield process, runner
    finally:
        _stop(it, process, runner)
        runner.close()


def _stop(it: Instance, process: subprocess.Popen[bytes], runner: Runner) -> None:
    it.diary.note("stopping")
    with suppress(ProcessLookupError):
        process.terminate()
    limit = time.monotonic() + STOP_S
    while process.poll() is None and time.monotonic() < limit:
        # Supervisor looks around once a second, or when it is spoken to; so it is spoken to.
        with suppress(Silent):
            runner.programs()
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()
    with suppress(CannotStart):
        locks.wait_for_leftovers(it.place.alive)
    it.diary.note("stopped")
    it.diary.wipe()


def _start(it: Instance, process: subprocess.Popen[bytes], runner: Runner) -> None:
    wish, urls = it.wish, it.addresses

    def database() -> bool:
        if wish.postgres_port:
            return postgres.answer_and_create(it.secrets["postgres"], wish.postgres_port)
        return postgres.answers(urls["DATABASE_URL"])

    _until(it, database, "the database to answer", SERVERS_S, process, runner)
    it.diary.note("the database answers")
    _until(it, lambda: valkey.answers(urls["VALKEY_URL"]), "Valkey to answer", SERVERS_S, process, runner)
    it.diary.note("Valkey answers")
    _prepare(it, process, runner)
    it.diary.note("the database is prepared")
    runner.start_rest()
    _until(it, lambda: _serves(wish) and _all_run(runner), "the dashboard to answer", READY_S, process, runner)
    it.diary.note("ready")


def _until(
    it: Instance,
    question: Callable[[], bool],
    what: str,
    limit_s: float,
    process: subprocess.Popen[bytes],
    runner: Runner,
) -> None:
    """Ask until yes. A program that was given up, or a runner that is gone, ends the waiting at once."""
    limit = time.monotonic() + limit_s
    while not question():
        it.signs.pause()
        if process.poll() is not None:
            raise CannotStart(f"The process runner ended:\n{supervisor.last_lines(it.place.log / 'supervisor.out')}")
        if given_up := _in_state(runner, "FATAL"):
            raise CannotStart(_blame(it, given_up))
        if time.monotonic() > limit:
            raise CannotStart(
                f"Waited {limit_s:.0f} s for {what}. {_blame(it, _in_state(runner, 'BACKOFF', 'EXITED'))}"
            )


def _in_state(runner: Runner, *states: str) -> list[str]:
    try:
        return [seen.name for seen in runner.programs() if seen.state in states]
    except Silent:
        return []


def _all_run(runner: Runner) -> bool:
    try:
        return all(seen.state == "RUNNING" for seen in runner.programs())
    except Silent:
        return False


def _blame(it: Instance, names: list[str]) -> str:
    if not names:
        return f"No program failed; their logs are in {it.place.log}."
    logs = (it.place.log / f"{name}.log" for name in names)
    return "\n".join(f"{log.stem} does not start; {log} ends:\n{supervisor.last_lines(log)}" for log in logs)


def _prepare(it: Instance, process: subprocess.Popen[bytes], runner: Runner) -> None:
    """A process of its own: this one met its settings before there was a database.

    It may take as long as it needs: to end a migration in the middle of a large table would only make it begin again.
    """
    words = [sys.executable, "manage.py", "prepare"]
    environment = {**it.environment, "ACME_ADMIN_PASSWORD": it.secrets["admin-password"]}
    log = it.place.log / "prepare.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            leash.command(
                words,
                stop="KILL",
                parent=os.getpid(),
                hold=it.place.alive,
                user=it.wish.users.acme,
                home=it.place.work,
                reach=programs.SOURCES,
            ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    waiting = Waiting(log, lambda line: print(line, file=sys.stderr, flush=True))

    def is_done() -> bool:
        waiting.remind()
        return child.poll() is not None

    try:
        _until(it, is_done, "the database to be prepared", math.inf, process, runner)
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0:
        raise CannotStart(_blame(it, ["prepare"]))


def _serves(wish: Wish) -> bool:
    """One question at a time on one connection, asked under a name that is always allowed."""
    connection = http.client.HTTPConnection(ANYWHERE.get(wish.bind, wish.bind).strip("[]"), wish.port, timeout=5)
    try:
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _admin_password(it: Instance) -> str:
    said = (it.place.log / "prepare.log").read_text(errors="replace")
    return it.secrets["admin-password"] if AS_GENERATED in said else ""


def _ready_lines(it: Instance, password: str) -> str:
    it.diary.wipe()
    shown = f"password {password}" if password else "password: as you set it"
    ready = f"Acme is ready: {it.home}  user {ADMINISTRATOR}  {shown}  (Ctrl-C stops everything)"
    warning = users.shared_user_warning(it.wish.users, not it.wish.demo)
    return f"{ready}\n{warning}" if warning else ready


def _watch(it: Instance, process: subprocess.Popen[bytes], runner: Runner) -> None:
    """Until somebody stops it (Stopped) or the runner dies. A program that was given up is tried again, and named."""
    look_again = 0.0
    while process.poll() is None:
        it.signs.pause(0.1)
        if time.monotonic() < look_again:
            continue
        look_again = time.monotonic() + 10
        for name in _in_state(runner, "FATAL"):
            print(f"{name} keeps failing, see {it.place.log / name}.log; it is started again.", file=sys.stderr)
            with suppress(Silent):
                runner.start(name)
    raise CannotStart(f"The process runner ended by itself; everything was stopped. See {it.place.log}/supervisor.log.")
