"""One engine, for live clusters and for simulated time. Pure: no clock, no dice, no database.

State       `Engine` holds a `Room` (what is free on which node), the waiting jobs in lines, the running ones, and the
            books of teams' quotas. It is changed by events and never rebuilt: `submit`, `end`, `node_down`, `node_up`,
            `drain`, `quotas_changed`, `level_changed`; then `decide(now)` says who starts where and who must stop.
Two callers `live.decide` makes the state from a `Picture` of the database, asks once and turns the answer into
            `Decisions` with a sentence for every job that waits. `simulator.kernel` keeps the state between events.
            Both go through the same `decide`, so what a replay promises is what the live loop does.
A policy    is a file of its own in `policies/`: a subclass of `Rules` with an order (`key`), and one of the turns
            below; a preempting policy says with `rank` who is safe from whom, and with `next_change` when a rank
            changes by itself. The docstring names the paper and the difference to it.
A turn      is how the line is walked, one function each in `turns/`. `strict`: the first that does not fit holds back
            all behind it. `skipping`: nobody holds back anybody. `easy`: the first gets a promise, others may pass if
            they do not delay it. `conservative`: everybody gets a promise. `preempting`: who ranks higher takes the
            GPUs of who ranks lower. `claiming` lets owners take GPUs back from borrowers within the two that promise.
A placement is a function in `placement.py`: consolidate, pack, spread; `count` is consolidate on one node that has all.

Three ideas make it fast, and they are the ones to keep in mind when adding something:
  * A set of nodes is one Python integer, bit n for node n. The room keeps, for each number of free GPUs, the set of
    nodes with that many; best fit is a shift and a lowest bit, a leaf switch or a virtual cluster is one `&`.
  * Jobs that ask for the same are alike. They stand in one line (`Ask`); when the first does not fit, none of
    them does. A turn costs the number of different wishes, not the number of waiting jobs.
  * Nothing is asked twice. If nothing was freed since the last turn, only what came since can start; and where
    something was, only who needs no more GPUs of a node than are free there now (`Engine.opened`).
"""
