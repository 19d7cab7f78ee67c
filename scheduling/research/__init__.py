"""Published schedulers to compare with: policies that no live cluster can have, and replays of their own."""
