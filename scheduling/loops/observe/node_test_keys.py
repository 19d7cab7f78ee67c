"""Keys of node test jobs. They belong to tests, not to attempts."""

from __future__ import annotations

NODE_TEST, NODE_PAIR_TEST = "test.", "world."


def is_node_test(key: str) -> bool:
    return key.startswith((NODE_TEST, NODE_PAIR_TEST))
