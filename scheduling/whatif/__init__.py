"""What if: replays of traces under other policies and conditions, and what another policy does to today's queue.

api | pages
tasks              Celery: a worker per requested replay
loops              run the requested replays
actions            the only code that changes rows
reads
comparison         what readers compare; pure
replay             traces and simulated time on the scheduling engine, and their reports; pure
"""
