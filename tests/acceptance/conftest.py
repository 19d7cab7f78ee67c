import shutil
import signal
import subprocess
import sys

import psycopg
import pytest

from acmeweb.common.env import ROOT
from acmeweb.services import ports, postgres, preflight, secret_files, users
from acmeweb.services.directories import InstanceDirectories
from tests import schema_template, servers
from tests.acceptance.instance import Instance
from tests.patience import PATIENCE_S, until
from tests.servers import UNSAFE_SETTINGS

PREPARE = """
import django
django.setup()
from django.core.management import call_command
from acmeweb.services.prepare import collect_static
call_command("migrate", interactive=False, verbosity=0)
collect_static()
"""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A directory with what the first start spends most time on: a database with its schema, and the static files."""
    place = InstanceDirectories(tmp_path_factory.mktemp("prepared") / "var")
    preflight.make_directories(place)
    password, port, user = servers.copy_schema_template(place.postgres), ports.pick(), users.default().postgres
    secret_files.write(place.secrets / "postgres", password)
    postgres.prepare_data_directory(place.postgres, password, place.log / "initdb.log", user)
    words = postgres.guarded_postgres_command(
        postgres.server_command(place.postgres, port, UNSAFE_SETTINGS), place.postgres, user=user
    )
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        until(lambda: postgres.ensure_database(password, port), what="the database does not answer")
        with psycopg.connect(postgres.url(password, port, "postgres"), autocommit=True) as session:
            session.execute(f"DROP DATABASE {postgres.DATABASE}")
            session.execute(f"ALTER DATABASE {schema_template.DATABASE} RENAME TO {postgres.DATABASE}")
        own = {"DATABASE_URL": postgres.url(password, port), "DJANGO_SETTINGS_MODULE": "acmeweb.settings"}
        environment = Instance(place.var).environment | own
        subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=PATIENCE_S) == 0
    return place


@pytest.fixture
def untouched(tmp_path):
    """An instance that has never been started."""
    made = Instance(tmp_path / "a var")
    yield made
    made.end()


@pytest.fixture
def instance(prepared, untouched):
    """An instance that finds a schema, for tests of any start but the first."""
    shutil.copytree(prepared.var, untouched.place.var)
    return untouched
