import pytest

from tests.acceptance.instance import Instance


@pytest.fixture
def instance(tmp_path):
    made = Instance(tmp_path / "a var")
    yield made
    made.end()
