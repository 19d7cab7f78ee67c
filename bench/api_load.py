"""The REST API under load: submissions, reads over a long history, heartbeats.

    python bench/api_load.py             everything; about four minutes on an idle machine with two cores
    python bench/api_load.py submit      only submissions; also: reads, heartbeats, triggers
    python bench/api_load.py reads --history 1000000

It starts its own instance like `make up`, with a separate directory and port. The jobs go to a cluster without a
server, so that only the API is measured. Each response is awaited and is sent after the commit. The baselines run in
the same minute on the same server: the same rows by a plain psycopg loop, and by COPY. Prints a table to stderr and
JSON to stdout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import load
from bench.load import build_request
from tests.acceptance.instance import Instance, running

CLIENTS = 8
JOB_REQUEST = {"command": "torchrun --nproc-per-node 8 train.py --config base.yaml", "nodes": 2, "gpus_per_node": 8,
        "time_limit": "2-00:00:00", "labels": {"run": "bench"}, "environment": {"NCCL_DEBUG": "WARN"},
        "team": "bench", "cluster": "bench"}  # fmt: skip
SINGLE_SUBMISSIONS, BULK_SUBMISSIONS, JOBS_PER_BULK = 2000, 8, 5000
HEARTBEAT_COUNT, RUNNING_ATTEMPTS, HEARTBEATS_PER_S = 12_000, 10_000, 1000
READ_COUNT = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["submit", "triggers", "reads", "heartbeats"])
    parser.add_argument("--history", type=int, default=1_000_000, help="Finished jobs of the large history.")
    options = parser.parse_args()
    unlimited = {f"ACME_MAX_WAITING_PER_{whose}": "0" for whose in ("USER", "TEAM")}
    with running(DEMO="0", **unlimited) as (instance, _):
        try:
            figures = measure_parts(BenchInstance(instance), options)
        except SystemExit:
            for log in sorted(instance.place.log.glob("web*.log")):
                print(f"{log.name} ends:\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise
    print(format_figures(figures), file=sys.stderr)
    print(json.dumps(figures, indent=1))


def measure_parts(bench: BenchInstance, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "python": platform.python_version()}
    }
    if "submit" in options.parts:
        figures["submit"] = measure_submissions(bench)
    if "triggers" in options.parts:
        figures["triggers"] = measure_triggers(bench)
    if "heartbeats" in options.parts:
        figures["heartbeats"] = measure_heartbeats(bench)
    if "reads" in options.parts:
        figures["reads"] = measure_reads(bench, options.history)
    return figures


class BenchInstance:
    """A running instance with a cluster, a team and its users."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.home = f"http://127.0.0.1:{instance.port}/"
        os.environ |= {"ACME_VAR": str(instance.place.var), "DJANGO_SETTINGS_MODULE": "acmeweb.settings"}
        import django

        django.setup()
        from django.db import connection

        from tests.jobs.api import api_make

        self.connection = connection
        api_make.team("bench")
        self.cluster = api_make.cluster("bench", nodes=1000)
        users = [api_make.person(f"bench{n}", "bench") for n in range(CLIENTS)]
        self.tokens = [api_make.token(person) for person in users]
        connection.close()

    def url(self) -> str:
        from acmeweb.common.env import read_file

        return read_file(self.instance.place.env)["DATABASE_URL"]

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each program so far, including all its children."""
        pids = self.instance.pids()
        return {name: sum(_process_cpu_s(pid) for pid in _process_tree(root)) for name, root in pids.items()}


def _process_tree(root: int) -> list[int]:
    figures = [root]
    for pid in figures:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                figures += map(int, task.read_text().split())
    return figures


def _process_cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # the process has just ended
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


# --- submissions


def measure_submissions(bench: BenchInstance) -> dict[str, Any]:
    body = json.dumps(JOB_REQUEST).encode()
    singles = (build_request("POST", "/api/v1/jobs/", token, body) for token in itertools.cycle(bench.tokens))
    many = json.dumps({"jobs": [JOB_REQUEST] * JOBS_PER_BULK}).encode()
    bulk = (build_request("POST", "/api/v1/jobs/bulk/", token, many) for token in itertools.cycle(bench.tokens))
    load.run_load(bench.home, singles, connections=CLIENTS, count=100)  # warm up: imports and connections
    single, cost = _measure_with_cpu(bench, SINGLE_SUBMISSIONS, lambda: load.run_load(
        bench.home, singles, connections=CLIENTS, count=SINGLE_SUBMISSIONS, check=_check_created))  # fmt: skip
    bulked, bulk_cost = _measure_with_cpu(bench, JOBS_PER_BULK * BULK_SUBMISSIONS, lambda: load.run_load(
        bench.home, bulk, connections=CLIENTS, count=BULK_SUBMISSIONS, check=_check_created))  # fmt: skip
    rows = sample_rows(bench)
    loop, copy = (
        measure_raw_inserts(bench, rows, SINGLE_SUBMISSIONS),
        measure_raw_copy(bench, rows, JOBS_PER_BULK * BULK_SUBMISSIONS),
    )
    bulk_per_s = JOBS_PER_BULK * BULK_SUBMISSIONS / bulked.wall_s
    return {
        "single": single.figures() | {"cpu_ms_each": cost},
        "bulk": {
            "jobs": JOBS_PER_BULK * BULK_SUBMISSIONS,
            "jobs_per_s": round(bulk_per_s),
            "request_s": round(bulked.at(0.5), 2),
            "cpu_ms_each": bulk_cost,
        },
        "bare_psycopg_loop_per_s": round(loop),
        "bare_copy_per_s": round(copy),
        "single_costs_times_the_loop": round(loop / single.figures()["per_s"], 1),
        "bulk_costs_times_copy": round(copy / bulk_per_s, 1),
    }


def _measure_with_cpu(
    bench: BenchInstance, jobs: int, work: Callable[[], load.LoadResult]
) -> tuple[load.LoadResult, dict[str, float]]:
    """Run the work; return its result, and the CPU time of each program per job."""
    before = bench.cpu_s()
    figures = work()
    return figures, {name: round(1000 * (now - before.get(name, 0)) / jobs, 3) for name, now in bench.cpu_s().items()}


def _check_created(status: int, body: bytes) -> None:
    if status != 201:
        raise SystemExit(f"status {status}: {body[:500]!r}")


SampleRows = dict[str, tuple[list[str], list[Any]]]


def sample_rows(bench: BenchInstance) -> SampleRows:
    """Return one job and its event as the API wrote them: names and values of all columns except the key."""
    figures: SampleRows = {}
    with psycopg.connect(bench.url()) as session:
        for name in ("jobs_job", "jobs_event"):
            cursor = session.execute(f"SELECT * FROM {name} ORDER BY id DESC LIMIT 1")
            row = cursor.fetchone()
            assert row and cursor.description
            pairs = [(d.name, v) for d, v in zip(cursor.description, row, strict=True) if d.name != "id"]
            figures[name] = ([n for n, _ in pairs], [_adapt_value(v) for _, v in pairs])
    return figures


def _adapt_value(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    return Jsonb(value) if isinstance(value, dict) else value


def measure_raw_inserts(bench: BenchInstance, rows: SampleRows, count: int) -> float:
    """Return rows per second with the same number of connections: two INSERTs and a COMMIT per job, no checks."""
    texts = {
        name: f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) RETURNING id"
        for name, (names, _) in rows.items()
    }
    numbers = itertools.count()

    def insert_rows(count_per_thread: int) -> None:
        with psycopg.connect(bench.url()) as session:
            for _ in range(count_per_thread):
                job = session.execute(texts["jobs_job"], _row_values(rows["jobs_job"], public_id=f"l{next(numbers)}"))
                event = _row_values(rows["jobs_event"], job_id=job.fetchone()[0])
                session.execute(texts["jobs_event"], event)
                session.commit()

    threads = [threading.Thread(target=insert_rows, args=[count // CLIENTS]) for _ in range(CLIENTS)]
    return count / _elapsed_s(lambda: [*[t.start() for t in threads], *[t.join() for t in threads]])


def measure_raw_copy(bench: BenchInstance, rows: SampleRows, count: int) -> float:
    """Return rows per second with one COPY of all jobs and one of all events, and one COMMIT per bulk request."""
    with psycopg.connect(bench.url()) as session:

        def copy_rows() -> None:
            for first in range(0, count, JOBS_PER_BULK):
                one = range(first, first + JOBS_PER_BULK)
                keys = session.execute(
                    "SELECT nextval('jobs_job_id_seq') FROM generate_series(1, %s)", [JOBS_PER_BULK]
                ).fetchall()
                names, _ = rows["jobs_job"]
                with session.cursor().copy(f"COPY jobs_job (id, {', '.join(names)}) FROM STDIN") as copy:
                    for (key,), n in zip(keys, one, strict=True):
                        copy.write_row([key, *_row_values(rows["jobs_job"], public_id=f"c{n}")])
                names, _ = rows["jobs_event"]
                with session.cursor().copy(f"COPY jobs_event ({', '.join(names)}) FROM STDIN") as copy:
                    for (key,) in keys:
                        copy.write_row(_row_values(rows["jobs_event"], job_id=key))
                session.commit()

        return count / _elapsed_s(copy_rows)


def _row_values(row: tuple[list[str], list[Any]], **other: Any) -> list[Any]:
    names, values = row
    return [other.get(name, value) for name, value in zip(names, values, strict=True)]


def _elapsed_s(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- the triggers of the ledger

TRIGGER_JOBS, TRIGGER_ROUNDS = 1000, 4
START_ATTEMPTS = """
INSERT INTO jobs_attempt (job_id, number, key, backend_id, state, nodelist, promised_at, confirmed_at, cause,
    stop_state, stop_reason, log_path, reason)
SELECT id, 1, public_id || '.1', '', 'RUNNING', '', submitted_at, submitted_at, '', '', '', '', '' FROM jobs_job
WHERE id = %s RETURNING id
"""
INSERT_ALLOCATION = """
INSERT INTO jobs_allocation (attempt_id, node_id, held_at) SELECT a.id, n.id, a.promised_at
FROM jobs_attempt a, (SELECT min(id) AS id FROM jobs_node) n WHERE a.id = %s
"""
END_STATEMENTS = (
    "UPDATE jobs_allocation SET released_at = now() WHERE attempt_id = %(attempt)s",
    "UPDATE jobs_attempt SET ended_at = now(), state = %(state)s, exit_code = 0 WHERE id = %(attempt)s",
    "UPDATE jobs_job SET ended_at = now(), state = %(state)s, exit_code = 0 WHERE id = %(job)s",
)


def measure_triggers(bench: BenchInstance) -> dict[str, Any]:
    """Measure the CPU time of PostgreSQL for a submitted, a started and an ended job, with the ledger's triggers and
    without them, in turns. Jobs that end have run for three hours, so an end changes figures that are stored."""
    load.run_load(bench.home, iter([build_request("POST", "/api/v1/jobs/", bench.tokens[0],
                  json.dumps(JOB_REQUEST).encode())]), connections=1, count=1, check=_check_created)  # fmt: skip
    rows = sample_rows(bench)
    spent: dict[str, dict[str, float]] = {}
    with psycopg.connect(bench.url(), autocommit=True) as session:
        for number in range(2 * TRIGGER_ROUNDS):
            is_on = number % 2 == 0
            _switch_triggers(session, is_on=is_on)
            for step, cpu_s in _cpu_of_job_steps(session, rows, number).items():
                side = spent.setdefault(step, {"with": 0.0, "without": 0.0})
                side["with" if is_on else "without"] += cpu_s
        _switch_triggers(session, is_on=True)
        changes = session.execute("SELECT count(*) FROM scheduling_ledgerchange").fetchone()
    per_job = 1e6 / (TRIGGER_JOBS * TRIGGER_ROUNDS)
    assert changes is not None
    return {
        f"{step}_us": {side: round(cpu_s * per_job) for side, cpu_s in sides.items()}
        | {"ratio": round(sides["with"] / sides["without"], 2)}
        for step, sides in spent.items()
    } | {"recorded_changes": changes[0]}


def _switch_triggers(session: psycopg.Connection, *, is_on: bool) -> None:
    found = session.execute(
        "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE tgname ~ '^scheduling_ledger'"
    )
    for table, name in found.fetchall():
        session.execute(f"ALTER TABLE {table} {'ENABLE' if is_on else 'DISABLE'} TRIGGER {name}")


def _cpu_of_job_steps(session: psycopg.Connection, rows: SampleRows, number: int) -> dict[str, float]:
    """Submit, start and end jobs, each step in a transaction. Return the CPU seconds of the session by step."""
    submitted = _submit_jobs(session, rows, number)
    spent = {"submitted": submitted[1]}
    spent["started"], attempts = _session_cpu_s(session, lambda: [_start_job(session, job) for job in submitted[0]])
    halves = {"completed": slice(0, TRIGGER_JOBS // 2), "failed": slice(TRIGGER_JOBS // 2, None)}
    for name, half in halves.items():
        pairs = list(zip(submitted[0][half], attempts[half], strict=True))
        state = name.upper()
        cpu_s, _ = _session_cpu_s(session, lambda pairs=pairs, state=state: _end_jobs(session, pairs, state))
        spent[name] = 2 * cpu_s
    return spent


def _submit_jobs(session: psycopg.Connection, rows: SampleRows, number: int) -> tuple[list[int], float]:
    names, _ = rows["jobs_job"]
    text = f"INSERT INTO jobs_job ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) RETURNING id"
    earlier = datetime.now(UTC) - timedelta(hours=3)
    values = [_row_values(rows["jobs_job"], public_id=f"t{number}.{n}", submitted_at=earlier)
              for n in range(TRIGGER_JOBS)]  # fmt: skip
    cpu_s, jobs = _session_cpu_s(session, lambda: [_returned_id(session, text, one) for one in values])
    return jobs, cpu_s


def _start_job(session: psycopg.Connection, job: int) -> int:
    with session.transaction():
        attempt = _returned_id(session, START_ATTEMPTS, [job])
        session.execute(INSERT_ALLOCATION, [attempt])
        session.execute("UPDATE jobs_job SET state = 'RUNNING', started_at = submitted_at WHERE id = %s", [job])
    return attempt


def _end_jobs(session: psycopg.Connection, pairs: list[tuple[int, int]], state: str) -> None:
    for job, attempt in pairs:
        with session.transaction():
            for text in END_STATEMENTS:
                session.execute(text, {"job": job, "attempt": attempt, "state": state})


def _returned_id(session: psycopg.Connection, text: str, values: list[Any]) -> int:
    row = session.execute(text, values).fetchone()
    assert row
    return int(row[0])


def _session_cpu_s(session: psycopg.Connection, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU time of the session's backend, and the result of the work."""
    before = _process_cpu_s(session.info.backend_pid)
    result = work()
    return _process_cpu_s(session.info.backend_pid) - before, result


# --- reads


def measure_reads(bench: BenchInstance, large: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for history, live in ((10_000, 500), (large, 50_000)):
        fill_history(bench, history, live)
        figures[f"{history}"] = {name: _measure_read(bench, request) for name, request in read_requests(bench).items()}
    small, big = figures["10000"], figures[f"{large}"]
    for what in ("p95_ms", "cpu_ms"):
        figures[f"growth_{what}"] = {name: round(big[name][what] / small[name][what], 2) for name in big}
    return figures


def read_paths(bench: BenchInstance) -> dict[str, str]:
    with psycopg.connect(bench.url()) as session:
        row = session.execute(
            "SELECT public_id FROM jobs_job WHERE public_id LIKE 'h%' ORDER BY id DESC LIMIT 1 OFFSET 4000"
        ).fetchone()
    assert row
    return {
        "first page": "/api/v1/jobs/",
        "waiting, by state": "/api/v1/jobs/?state=PENDING&cluster=history",
        "of one user": "/api/v1/jobs/?user=bench3&state__in=FAILED,TIMEOUT",
        "a rare state": "/api/v1/jobs/?state=NODE_FAIL",
        "last ended": "/api/v1/jobs/?ordering=-ended_at&ended_at__isnull=false",
        "last started": "/api/v1/jobs/?ordering=-started_at",
        "highest priority": "/api/v1/jobs/?ordering=-priority",
        "by name": "/api/v1/jobs/?ordering=name",
        "of an unknown user": "/api/v1/jobs/?user=bench-nobody",
        "what no name contains": "/api/v1/jobs/?name__contains=nosuch",
        "a small cluster": "/api/v1/jobs/?cluster=bench",
        "one job": f"/api/v1/jobs/{row[0]}/",
    }


def read_requests(bench: BenchInstance) -> dict[str, bytes]:
    request = {name: build_request("GET", path, bench.tokens[0]) for name, path in read_paths(bench).items()}
    return request | {"home page": build_request("GET", "/", "", Cookie=f"sessionid={create_session(bench)}")}


def create_session(bench: BenchInstance) -> str:
    """Create the session of one of the users, as a login does."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    user = get_user_model().objects.get(username="bench0")
    store = SessionStore()
    store[SESSION_KEY], store[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store.save()
    bench.connection.close()
    return str(store.session_key)


def _measure_read(bench: BenchInstance, request: bytes) -> dict[str, float]:
    """Measure a read, with the CPU time of web and database per request, also if the machine is busy."""
    load.run_load(bench.home, itertools.repeat(request), connections=1, count=10)
    before = bench.cpu_s()
    measured = load.run_load(bench.home, itertools.repeat(request), connections=1, count=READ_COUNT, check=_check_ok)
    spent = sum(now - before.get(name, 0) for name, now in bench.cpu_s().items() if name.startswith(("web", "post")))
    return measured.figures() | {"cpu_ms": round(1000 * spent / READ_COUNT, 2)}


def _check_ok(status: int, body: bytes) -> None:
    if status != 200:
        raise SystemExit(f"status {status}: {body[:500]!r}")


INSERT_JOBS = """
WITH made AS (
    INSERT INTO jobs_job (public_id, cluster_id, team_id, user_id, name, kind, command, workdir, environment, nodes,
        gpus_per_node, cpus_per_node, memory_per_node_mb, gpu_model, nic_type, time_limit, priority, preemptible,
        requeue_limit, requeues, hold, array_id, checkpoint_dir, checkpoint_signal, foreign_id, foreign_user, labels,
        comment, state, flags, reason, why, resume,
        submitted_at, started_at, ended_at, exit_code, run_time_learned)
    SELECT 'h' || n, %(cluster)s, %(team)s, (%(people)s::int[])[1 + n %% cardinality(%(people)s::int[])],
        'train-' || n %% 977, 'other', 'python train.py', '', '{}', 1, 8, 1, 0, '', '', NULL, 0, false, 3, 0, '', '',
        '', '', '', '', '{}', '', s.state, '{}', '', '', '{}', now() - (%(last)s - n) * interval '1 second',
        CASE WHEN s.state <> 'PENDING' THEN now() - (%(last)s - n) * interval '1 second' END,
        CASE WHEN NOT s.live THEN now() - (%(last)s - n) * interval '1 second' + interval '1 hour' END,
        CASE WHEN NOT s.live THEN 0 END, NOT s.live
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n, LATERAL (
        SELECT n > %(last)s - %(live)s AS live, CASE
            WHEN n > %(last)s - %(live)s THEN CASE WHEN n %% 10 = 0 THEN 'RUNNING' ELSE 'PENDING' END
            WHEN n %% 1000 = 7 THEN 'NODE_FAIL' WHEN n %% 20 = 0 THEN 'FAILED' WHEN n %% 50 = 3 THEN 'TIMEOUT'
            ELSE 'COMPLETED' END AS state) AS s
    RETURNING id, public_id, state, ended_at, started_at)
INSERT INTO jobs_attempt (job_id, number, key, backend_id, state, nodelist, promised_at, confirmed_at, ended_at, cause,
    stop_state, stop_reason, log_path, reason, exit_code, usage_counted)
SELECT id, 1, public_id || '.1', '', CASE WHEN ended_at IS NULL THEN 'RUNNING' ELSE state END, 'gpu001', started_at,
    started_at, ended_at, '', '', '', '', '', CASE WHEN ended_at IS NOT NULL THEN 0 END, ended_at IS NOT NULL
FROM made WHERE started_at IS NOT NULL
"""


def fill_history(bench: BenchInstance, finished: int, live: int) -> None:
    """Create finished jobs, and pending or running ones, on a cluster that is only observed. The finished ones count as
    learned and as used, so the loops do not process a million of them while something else is measured."""
    from tests.jobs.api import api_make

    history = api_make.cluster("history", nodes=0)
    type(history).objects.filter(pk=history.pk).update(mode="observe")
    team = api_make.team("bench")
    users = list(team.memberships.values_list("user_id", flat=True))
    bench.connection.close()
    places = {"cluster": history.pk, "team": team.pk, "people": users}
    with psycopg.connect(bench.url(), autocommit=True) as session:
        # Including everything that the loops have added since
        session.execute("TRUNCATE jobs_job, jobs_attempt CASCADE")
        with without_indexes(session):
            for first in range(1, finished + live + 1, 100_000):
                last = min(first + 99_999, finished + live)
                alive = max(0, last - max(first - 1, finished))
                session.execute(INSERT_JOBS, {**places, "first": first, "last": last, "live": alive})
        session.execute("VACUUM ANALYZE jobs_job")
        session.execute("VACUUM ANALYZE jobs_attempt")


@contextmanager
def without_indexes(session: psycopg.Connection) -> Iterator[None]:
    """Disable foreign key checks and drop the indexes, then recreate them: five times as fast."""
    figures = session.execute(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index i"
        " WHERE indrelid IN ('jobs_job'::regclass, 'jobs_attempt'::regclass)"
        " AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)"
    ).fetchall()
    for name, _ in figures:
        session.execute(f"DROP INDEX {name}")
    session.execute("SET session_replication_role = replica")
    try:
        yield
    finally:
        session.execute("SET session_replication_role = DEFAULT")
        session.execute("SET maintenance_work_mem = '256MB'")
        for _, definition in figures:
            session.execute(definition)


# --- heartbeats


def measure_heartbeats(bench: BenchInstance) -> dict[str, Any]:
    """Measure the maximum rate, then the rate of ten thousand running attempts with a heartbeat every ten seconds."""
    fill_history(bench, 0, RUNNING_ATTEMPTS * 10)  # every tenth job runs
    flood = load.run_load(bench.home, heartbeat_requests(bench), connections=64, count=HEARTBEAT_COUNT, check=_check_ok)
    before, began = bench.cpu_s(), time.perf_counter()
    paced = load.run_load(
        bench.home,
        heartbeat_requests(bench),
        connections=64,
        count=HEARTBEATS_PER_S * 10,
        per_s=HEARTBEATS_PER_S,
        check=_check_ok,
    )
    wall = time.perf_counter() - began
    cores = {name: round((after - before.get(name, 0)) / wall, 2) for name, after in bench.cpu_s().items()}
    return {
        "flood": flood.figures(),
        "paced": paced.figures() | {"asked_per_s": HEARTBEATS_PER_S},
        "cores_at_the_pace": cores,
    }


def heartbeat_requests(bench: BenchInstance) -> Iterator[bytes]:
    from jobs.actions import progress

    # The tokens are signed with the instance's own key
    keys = [f"h{n}.1" for n in range(10, RUNNING_ATTEMPTS * 10 + 1, 10)]
    tokens = [progress.run_token(key) for key in keys]
    for step in itertools.count(1):
        body = json.dumps(
            {"heartbeats": [{"step": step, "loss": 2.31, "tokens": step * 4096, "step_time_s": 0.92}]}
        ).encode()
        for token in tokens:
            yield build_request("POST", "/api/v1/progress/", token, body)


# --- output


def format_figures(figures: dict[str, Any], indent: str = "") -> str:
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
            lines += [f"{indent}{name}", format_figures(value, indent + "  ")]
        elif isinstance(value, dict):
            lines.append(f"{indent}{name:26} " + "  ".join(f"{k} {v}" for k, v in value.items()))
        else:
            lines.append(f"{indent}{name:26} {value}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
