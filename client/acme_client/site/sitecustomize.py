"""Loaded by Python programs below `acme exec`: each then answers a signal with its stacks. Errors here are silent,
because a training must not fail because of it. Another `sitecustomize` on the path still runs."""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _run_module(spec):
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


with contextlib.suppress(Exception):
    stacks_path = os.path.join(os.path.dirname(HERE), "stacks.py")
    _run_module(importlib.util.spec_from_file_location("_acme_stacks", stacks_path)).install_stack_handler()

other_paths = [path for path in sys.path if os.path.abspath(path) != HERE]
if (other := importlib.machinery.PathFinder.find_spec("sitecustomize", other_paths)) and other.loader:
    _run_module(other)
