import pytest

from acmeweb.services import locks
from tests.acceptance.instance import Instance


@pytest.fixture
def instance(tmp_path):
    made = Instance(tmp_path / "a var")
    yield made
    if made.process and made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    locks.wait_for_leftovers(made.place.alive) if made.place.run.exists() else None
