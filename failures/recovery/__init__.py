"""Recovery, from the verdict about a failure to the effect on its job and nodes. Each layer imports those below it.

api, pages                          users read, approve, decline and undo decisions, and set modes
loop, spare_nodes                   undecided failures → reads → rules → decisions; due decisions → steps
steps                               carries out a decision, or undoes it, through `jobs.actions`
decisions                           records a decision and the answers to it
reads                               the facts of one failure, its history, the policy of its team; and replays
node_evidence, checkpoint_listing   what telemetry, the cluster and the storage say
rules                               what helps, and how far it may go without approval; pure
"""
