"""A user who may add a cluster cannot read files of this machine through its token and log directories."""

from __future__ import annotations

import os
import threading
from contextlib import closing, suppress
from socket import create_server

import pytest

from acmeweb.common.errors import InvalidField
from failures.recovery import checkpoint_listing
from jobs.logs import job_log
from jobs.logs.log_source import LogSource
from jobs.models import Cluster
from scheduling.actions import clusters as cluster_actions
from scheduling.backends.base import ClusterUnreachable
from scheduling.clusters import connections
from tests import make
from tests.scheduling.clusters.test_cluster_settings import SEREN, browser, form

pytestmark = pytest.mark.django_db
ADD = "/settings/clusters/add/"


class Listener:
    """Accepts connections on a loopback port and keeps everything that is sent to it."""

    def __init__(self):
        self.server = create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.received = b""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with suppress(OSError):
            while True:
                caller, _ = self.server.accept()
                with closing(caller):
                    self.received += caller.recv(65536)
                    caller.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def close(self):
        self.server.shutdown(2)
        self.server.close()
        self.thread.join()


@pytest.fixture
def listener():
    with closing(Listener()) as found:
        yield found


@pytest.fixture
def home(tmp_path, settings):
    """The directory of an installation, with a secret of its own and a token of a cluster."""
    settings.VAR = tmp_path
    settings.ACME_TOKEN_DIRS = [str(tmp_path / "tokens")]
    for name, word in (("secrets/database", "s3cret"), ("tokens/seren", "t0ken")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(word)
    return tmp_path


def test_a_connection_test_sends_no_secret_of_the_installation(listener, home):
    asked = form(name="evil", address=listener.address, token_file=str(home / "secrets/database"), do="test")

    page = browser("add_cluster").post(ADD, asked).content.decode()

    assert b"s3cret" not in listener.received
    assert "ACME_TOKEN_DIRS" in page


def test_a_token_file_in_its_directory_is_sent(listener, home):
    asked = form(name="good", address=listener.address, token_file=str(home / "tokens/seren"), do="test")

    browser("add_cluster").post(ADD, asked)

    assert b"t0ken" in listener.received


def test_forbidden_token_file_in_a_row_is_refused_when_used(listener, home):
    row = make.cluster(address=listener.address, token_file=str(home / "secrets/database"))

    with pytest.raises(ClusterUnreachable, match="ACME_TOKEN_DIRS"):
        connections.connect(row)


@pytest.mark.parametrize("path", ["/", "/etc", "/var", "/proc/self", "/root/.ssh"])
def test_system_directory_is_rejected_as_log_directory(home, path):
    for field in ("log_root",):
        answer = browser("add_cluster").post(ADD, form(name="evil", **{field: path}))

        assert answer.status_code == 422
    assert not Cluster.objects.exists()


def test_logs_beneath_a_forbidden_directory_are_not_read(home):
    with pytest.raises(job_log.LogReadError, match="ACME_VAR"):
        job_log.tail(LogSource(str(home / "secrets"), "database"))
    with pytest.raises(job_log.LogReadError, match="/etc"):
        job_log.tail(LogSource("/etc", "hostname"))


def test_symlink_to_a_forbidden_directory_is_rejected(home, tmp_path_factory):
    link = tmp_path_factory.mktemp("shared") / "logs"
    os.symlink(home / "secrets", link)

    with pytest.raises(job_log.LogReadError, match="ACME_VAR"):
        job_log.tail(LogSource(str(link), "database"))


def test_the_token_of_a_cluster_is_not_sent_to_another_address(listener, home):
    make.cluster(token_file=str(home / "tokens/seren"))
    asked = {"address": listener.address, "token_file": str(home / "tokens/seren"), "do": "test"}

    new = browser("add_cluster").post(ADD, form(name="evil", **asked))
    changed = browser("change_cluster", name="rita").post(SEREN, form(**asked))

    assert (new.status_code, changed.status_code) == (422, 422)
    assert listener.received == b""


def test_cluster_with_another_clusters_token_cannot_be_added(home):
    make.cluster(token_file=str(home / "tokens/seren"))

    with pytest.raises(InvalidField, match="seren"):
        cluster_actions.add(
            "evil",
            {"address": "http://127.0.0.1:2", "token_file": str(home / "tokens/../tokens/seren")},
            author=make.author(),
        )


@pytest.mark.parametrize("name, path", [("token_file", "users/ada"), ("user_token_directory", "users")])
def test_tokens_of_users_are_not_sent_to_another_address(home, name, path):
    (home / "tokens/users").mkdir()
    users = str(home / "tokens/users")
    make.cluster(token_file=str(home / "tokens/seren"), submit_as="user_tokens", user_token_directory=users)
    ours = {"address": "http://127.0.0.1:2", "token_file": str(home / "tokens/mine"), "submit_as": "user_tokens"}
    ours |= {"user_token_directory": str(home / "tokens/others")} | {name: str(home / "tokens" / path)}

    with pytest.raises(InvalidField, match=f"{name}: This token is saved for cluster seren"):
        cluster_actions.add("evil", ours, author=make.author())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"submit_as": "user_tokens"}, "user_token_directory: Required with user_tokens"),
        ({"user_token_directory": "tokens/users"}, "user_token_directory: Required with user_tokens"),
        ({"submit_as": "user_tokens", "user_token_directory": "secrets"}, "user_token_directory: .*ACME_TOKEN_DIRS"),
        ({"submit_as": "user_header", "token_file": ""}, "token_file: A token is needed to submit jobs as other users"),
    ],
)
def test_settings_that_cannot_submit_as_users_are_refused(home, columns, said):
    ours = {"address": "http://127.0.0.1:2", "token_file": str(home / "tokens/mine")} | columns
    if "user_token_directory" in columns:
        ours["user_token_directory"] = str(home / columns["user_token_directory"])

    with pytest.raises(InvalidField, match=said):
        cluster_actions.add("evil", ours, author=make.author())


def test_token_of_the_bundled_cluster_may_be_outside_the_token_directories(listener, home):
    row = make.cluster(address=listener.address, token_file=str(home / "secrets/database"), is_bundled=True)

    assert connections.cluster_token(row) == "s3cret"


def test_checkpoints_beneath_a_forbidden_directory_are_not_listed(home):
    with pytest.raises(checkpoint_listing.CheckpointListingError, match="ACME_VAR"):
        checkpoint_listing.list_checkpoint_files(str(home), "secrets")
