"""Functions for a reader process that imitate a hung mount."""

import math
import os
from contextlib import contextmanager, suppress

from jobs.logs import storage
from jobs.logs.storage import StorageUnresponsive


def open_fifo(path):
    """Sleep until the other end is opened for writing."""
    return os.close(os.open(path, os.O_RDONLY))


def die(_):
    os._exit(1)


def fail(sentence):
    raise ValueError(sentence)


def double(number):
    return 2 * number


def environment():
    return sorted(os.environ)


@contextmanager
def silent(root, fifo):
    """Make this root unresponsive while the context is active."""
    os.mkfifo(fifo)
    there = storage.storage_root(str(root))
    with suppress(StorageUnresponsive):
        there.call(open_fifo, str(fifo), deadline_s=0.2)
    there._retry_at = math.inf
    try:
        yield
    finally:
        there._record_answer()
