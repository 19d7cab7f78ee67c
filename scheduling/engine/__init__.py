"""The scheduling engine for live clusters and for simulated time. Pure: no clock, no random numbers, no database.

State       `Engine` holds `NodeResources` (what is free on which node), queues of waiting jobs, running jobs and the
            quota usage of teams. Events change the state; it is never rebuilt: `submit`, `end`, `node_down`,
            `node_up`, `drain`, `quotas_changed`, `level_changed`. Then `decide(now)` starts and stops jobs. Indexes
            and caches are classes of their own, whose docstrings say when they are valid.
Two callers `live.turn_decisions` builds the state from a `ClusterSnapshot` of the database, runs one turn and returns
            `TurnDecisions` with a sentence for every waiting job. `replay.kernel` keeps the state between events. Both
            call the same `decide`, so a replay decides exactly as the live loop does.
A policy    is one file in `policies/`: a subclass of `PolicyRules` with an order (`key`) and one of the turns below. A
            preempting policy also defines `rank`, which says which running jobs are safe from which waiting ones, and
            `next_rank_change` if a rank changes by itself. The docstring names the paper and the differences from it.
A turn      walks the queue; there is one function for each kind in `turns/`. `strict`: the first job that does not fit
            blocks all jobs behind it. `skipping`: no job blocks another. `easy`: the first job that does not fit gets a
            reservation, and others may pass if they do not delay it. `conservative`: every job gets a reservation.
            `preempting`: jobs of higher rank take the GPUs of jobs of lower rank. `claiming` lets owners take GPUs back
            from borrowers; the two turns with reservations use it.
A placement is a function in `placement.py`: consolidate, pack, spread. `count` is consolidate on one node that has all
            GPUs.

Three ideas make the engine fast. Keep them in mind when you extend it:
  * A set of nodes is one Python integer, bit n for node n. For each number of free GPUs, `NodeResources` keeps the set
    of nodes with that many. Best fit is a shift and a lowest bit; a leaf switch or a virtual cluster is one `&`.
  * Jobs with equal requests are interchangeable. They wait in one queue (`RequestGroup`): if the first does not fit,
    none does. The cost of a turn depends on the number of different requests, not on the number of waiting jobs.
  * No question is answered twice. If nothing was freed since the last turn, only new jobs can start. If something was
    freed, only jobs that need no more GPUs per node than are free there now can start (`ChangesSinceTurn`).
"""
