"""The database of a simulated cluster, which the server and the thread of its commits use at once."""

import threading

from scheduling.simulation.machines.database import SHARED_TABLES, SimulatorDatabase, WriteTransaction
from tests.patience import PATIENCE_S


def test_plans_wait_for_a_transaction_of_another_thread(tmp_path):
    database = SimulatorDatabase(tmp_path / "cluster.sqlite3", SHARED_TABLES)
    saver = threading.Thread(target=database.save_job_plans, args=({"abc": {"SIM_END": "COMPLETED"}},))

    with WriteTransaction(database._db):
        saver.start()
        database._db.execute("insert into clock values (1, '{}')")
    saver.join(PATIENCE_S)

    assert database.job_plan("abc") == {"SIM_END": "COMPLETED"}
    database.close()
