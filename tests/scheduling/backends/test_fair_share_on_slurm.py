"""Fair share of a real Slurm with accounting: for the same ended jobs and half-life, ours differs by less than 1 %.

Slurm decays usage every five minutes, and a half-life takes hours. So the controller is stopped between two rounds of
jobs, and its record of the last decay is set back: when it starts, it decays as after an outage of that length. The
jobs that it knows then lie that much further in the past. The half-life is long, because Slurm does not decay exactly
between two calculations.
"""

from __future__ import annotations

import io
import secrets
import shutil
import struct
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, NodeView, ResourceRequest, WaitingJob
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.live import live_policy
from scheduling.engine.policies.fair import FairRules
from scheduling.queries.history import account_usage
from tests import make
from tests.patience import until
from tests.scheduling.backends.real_slurm import PATH, RealSlurm, free_ports, missing_programs

pytestmark = pytest.mark.system

PROGRAMS = ("slurmdbd", "sacctmgr", "sacct", "sshare", "mariadbd", "mariadb-install-db", "mariadb")
PACKAGES = "apt packages slurmdbd, mariadb-server-core and mariadb-client-core"
SHARES = {"vision": 20, "language": 50, "speech": 29, "root": 1}  # Slurm itself adds the last one
TEAMS = ("vision", "language", "speech")
HALF_LIFE_HOURS = 24
BILLED_PER_GPU = 1000  # usage is reported in whole units, which would be too coarse for jobs of a few seconds
# account, GPUs, seconds; and how long the controller is down afterwards. Without decay, vision would come last
ROUNDS = (
    ((("vision", 8, 6), ("vision", 8, 5), ("language", 6, 5), ("speech", 1, 4)), timedelta(hours=72)),
    ((("vision", 1, 4), ("language", 2, 5), ("speech", 8, 6)), timedelta(hours=16)),
)
TOLERANCE = 0.01


class AccountingSlurm(RealSlurm):
    """A Slurm with a MariaDB server and slurmdbd, one account and one partition per team."""

    def __init__(self) -> None:
        super().__init__()
        self._database_port, self._accounting_port = free_ports(2)
        self._password = secrets.token_hex(16)

    def run_jobs(self, jobs: tuple[tuple[str, int, int], ...]) -> None:
        """Run these jobs at the same time, and wait until accounting knows their ends."""
        for account, gpus, seconds in jobs:
            words = (f"--account={account}", f"--gres=gpu:{gpus}", "--output=/dev/null")
            self._run_command(["sbatch", *words, f"--wrap=sleep {seconds}"])
        until(lambda: not self._run_command(["squeue", "--noheader"]), what="ends of jobs")
        until(lambda: all(row["End"].isdigit() for row in self.ended_jobs()), what="accounting")

    def ended_jobs(self) -> list[dict[str, str]]:
        columns = "JobID,User,Account,Partition,JobName,State,Submit,Start,End,Elapsed,AllocTRES,ReqTRES,NNodes,NCPUS"
        return self._table("sacct", "--allusers", "--allocations", "--starttime=now-1days", f"--format={columns}")

    def shares(self) -> dict[str, dict[str, str]]:
        """The rows of accounts in `sshare`, by name."""
        columns = "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare"
        rows = self._table("sshare", f"--format={columns}")
        return {row["Account"].strip(): row for row in rows if not row["User"] and row["Account"].strip() in TEAMS}

    def _table(self, *command: str) -> list[dict[str, str]]:
        head, *rows = self._run_command([*command, "--parsable2"]).splitlines()
        return [dict(zip(head.split("|"), row.split("|"), strict=True)) for row in rows]

    def pass_time(self, outage: timedelta) -> datetime:
        """Restart the controller as if it had been down that long. Return when it decayed all usage."""
        daemon = self._by_role.pop("controller")
        daemon.terminate()
        daemon.wait()
        record = self.home / "state" / "priority_last_decay_ran"
        before, reset = struct.unpack("!qq", record.read_bytes())
        record.write_bytes(struct.pack("!qq", before - int(outage.total_seconds()), reset))
        self._start_controller()
        until(lambda: struct.unpack("!qq", record.read_bytes())[0] >= before, what="decay")
        until(lambda: self._answering_nodes() == len(self.nodes), what="nodes")
        return datetime.fromtimestamp(struct.unpack("!qq", record.read_bytes())[0], UTC)

    def _start_controller(self) -> None:
        if not self._by_role:
            self._start_database()
            self._start_accounting()
        super()._start_controller()

    def _start_database(self) -> None:
        place, socket = self._directory("database"), f"--socket={self._run}/database.sock"
        common = ("--no-defaults", f"--user={self.user}", f"--datadir={place}")
        words = ("--skip-test-db", "--auth-root-authentication-method=normal")
        self._run_command(["mariadb-install-db", *common, *words])
        port = (f"--port={self._database_port}", "--bind-address=127.0.0.1", f"--pid-file={self._run}/database.pid")
        self._launch("mariadbd", *common, socket, *port, "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0")
        user = f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{self._password}'"
        sql = f"CREATE DATABASE accounting; {user}; GRANT ALL ON accounting.* TO slurm@'127.0.0.1'; SELECT 'ready'"
        client = ["mariadb", "--no-defaults", "--user=root", socket, "--execute"]
        until(lambda: "1" in self._run_command([*client, "SELECT 1"], check=False).split(), what="MariaDB")
        self._run_command([*client, sql])

    def _start_accounting(self) -> None:
        path = self._etc / "slurmdbd.conf"
        path.touch(mode=0o600)
        settings = {
            "DbdHost": self.host,
            "DbdAddr": "127.0.0.1",
            "DbdPort": self._accounting_port,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._run}/munge.sock",
            "SlurmUser": self.user,
            "LogFile": f"{self._log}/slurmdbd.log",
            "PidFile": f"{self._run}/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": self._database_port,
            "StorageUser": "slurm",
            "StoragePass": self._password,
            "StorageLoc": "accounting",
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._launch("slurmdbd", "-D")
        until(lambda: "contract" in self._manage("add", "cluster", "contract", check=False), what="slurmdbd")
        for account in TEAMS:
            self._manage("add", "account", account, "cluster=contract", f"fairshare={SHARES[account]}")
            self._manage("add", "user", self.user, f"account={account}", "cluster=contract")

    def _manage(self, *words: str, check: bool = True) -> str:
        return self._run_command(["sacctmgr", "--immediate", *words], check=check)

    def _settings(self) -> dict[str, object]:
        return {
            **super()._settings(),
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": self._accounting_port,
            "AccountingStoragePass": f"{self._run}/munge.sock",
            "AccountingStorageTRES": "gres/gpu",
            "AccountingStorageEnforce": "limits",  # without it, Slurm counts usage only every few minutes
            "PriorityType": "priority/multifactor",
            "PriorityFlags": "NO_FAIR_TREE",
            "PriorityDecayHalfLife": f"{HALF_LIFE_HOURS}:00:00",
            "PriorityWeightFairshare": 1000,
        }

    def _hardware(self) -> str:
        return super()._hardware().rstrip("\n") + f" TRESBillingWeights=CPU=0,GRES/gpu={BILLED_PER_GPU}\n"

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "SLURM_TIME_FORMAT": "%s", "TZ": "UTC"}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What Slurm reports, and the jobs of which it does."""

    at: datetime
    shares: dict[str, dict[str, str]]
    sacct: str  # the ended jobs as a table

    def reported(self, column: str) -> dict[str, float]:
        return {account: float(row[column]) for account, row in self.shares.items()}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    if missing := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"Slurm accounting is not installed ({PACKAGES}; missing: {', '.join(missing)})")
    if missing_programs():
        pytest.skip(f"Slurm is not installed ({missing_programs()})")
    outages: dict[str, timedelta] = defaultdict(timedelta)  # all after the end of a job, by id
    with AccountingSlurm() as slurm:
        for jobs, outage in ROUNDS:
            slurm.run_jobs(jobs)
            at = slurm.pass_time(outage)
            for row in slurm.ended_jobs():
                outages[row["JobID"]] += outage
        return Recorded(at=at, shares=slurm.shares(), sacct=table_with_outages(slurm.ended_jobs(), outages))


def table_with_outages(rows: list[dict[str, str]], outages: dict[str, timedelta]) -> str:
    """The jobs as a table of sacct, as much earlier as outages followed them."""
    for row in rows:
        for column in ("Submit", "Start", "End"):
            row[column] = str(int(row[column]) - int(outages[row["JobID"]].total_seconds()))
    return "".join("|".join(cells) + "\n" for cells in ([*rows[0]], *(row.values() for row in rows)))


@pytest.fixture
def usage(recorded, tmp_path, db) -> dict[str, float]:
    """Our usage of the same jobs, imported with the command that operators use."""
    for account in TEAMS:
        make.team(account)
    cluster = make.cluster(nodes=0, usage_half_life_hours=HALF_LIFE_HOURS)
    (tmp_path / "sacct.txt").write_text(recorded.sacct)
    call_command("import_history", str(tmp_path / "sacct.txt"), cluster=cluster.name, stdout=io.StringIO())
    return account_usage(cluster, recorded.at)


def parts(values: dict[str, float]) -> dict[str, float]:
    return {name: value / sum(values.values()) for name, value in values.items()}


def test_decayed_usage_equals_the_raw_usage_of_slurm(recorded, usage):
    reported = {account: used / BILLED_PER_GPU for account, used in recorded.reported("RawUsage").items()}

    assert usage == pytest.approx(reported, rel=TOLERANCE)


@pytest.mark.parametrize("column", ["NormUsage", "EffectvUsage"])
def test_part_of_each_account_equals_that_of_slurm(recorded, usage, column):
    assert parts(usage) == pytest.approx(recorded.reported(column), rel=TOLERANCE)


def test_fair_share_factor_equals_that_of_slurm(recorded, usage):
    used, shares = parts(usage), parts(SHARES)
    factors = {account: 2 ** -(used[account] / shares[account]) for account in TEAMS}

    assert factors == pytest.approx(recorded.reported("FairShare"), rel=TOLERANCE)


def test_accounts_start_in_the_order_of_their_fair_shares(recorded, usage):
    reported = recorded.reported("FairShare")
    order = sorted(TEAMS, key=reported.__getitem__, reverse=True)

    assert order == ["language", "vision", "speech"]
    assert order_of_starts(usage, recorded.at) == order


def order_of_starts(usage: dict[str, float], now: datetime) -> list[str]:
    """The order in which the policy starts one waiting job per account."""
    accounts = dict(enumerate(TEAMS))
    same: dict[str, Any] = {"kind": JobKind.OTHER, "priority": 0, "submitted_at": now}
    node = NodeView(id=1, name="n", gpus=8, free_gpus=tuple(range(8)), free_cpus=128, free_memory_mb=1000)
    snapshot = ClusterSnapshot(
        now=now,
        nodes=(node,),
        waiting=tuple(
            WaitingJob(id=pk, name=str(pk), team=team, need=ResourceRequest(nodes=1, gpus=1), **same)
            for pk, team in accounts.items()
        ),
        history=SchedulingHistory(half_life_s=HALF_LIFE_HOURS * 3600.0, usage=usage),
    )
    decided = live_policy(lambda: FairRules(weights=SHARES))(snapshot)
    return [accounts[start.job_id] for start in decided.starts]
