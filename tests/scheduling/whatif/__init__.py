"""Tests of replays and of previews of a policy: pages, API, worker and uploaded traces."""
