import pytest

from tests import make
from tests.scheduling.fake import FakeCluster


@pytest.fixture
def cluster(db):
    return make.cluster()


@pytest.fixture
def slurm():
    return FakeCluster()
