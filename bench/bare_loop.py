"""A baseline: an event loop of fifty lines with only FIFO or SJF and exact placement on equal nodes.

It has no reasons, quotas, reports, policies or preemption. What a simulator costs beyond this is the price of features.
"""

from heapq import heapify, heappop, heappush


def bare_loop(submit, runtime, gpus, *, nodes, per_node=8, shortest=False):
    """Return the start time of each job."""
    count = len(submit)
    start = [0.0] * count
    buckets = [[] for _ in range(per_node + 1)]  # nodes by free GPUs; entries may be stale
    free = [per_node] * nodes
    buckets[per_node] = list(range(nodes))
    heapify(buckets[per_node])
    ends, queue, arrived = [], [], 0

    def fullest_node(need):
        for level in range(need, per_node + 1):
            bucket = buckets[level]
            while bucket:
                if free[bucket[0]] == level:
                    return bucket[0]
                heappop(bucket)
        return None

    def find_placement(need):
        if need <= per_node:
            node = fullest_node(need)
            return None if node is None else [(node, need)]
        whole, rest = divmod(need, per_node)
        empty = sorted({node for node in buckets[per_node] if free[node] == per_node})[: whole + bool(rest)]
        if len(empty) < whole + bool(rest):
            return None
        return [(node, per_node) for node in empty[:whole]] + ([(empty[-1], rest)] if rest else [])

    while arrived < count or ends:
        now = ends[0][0] if ends and (arrived == count or ends[0][0] <= submit[arrived]) else submit[arrived]
        while ends and ends[0][0] == now:
            for node, held in heappop(ends)[2]:
                free[node] += held
                heappush(buckets[free[node]], node)
        while arrived < count and submit[arrived] == now:
            heappush(queue, (runtime[arrived] if shortest else arrived, arrived))
            arrived += 1
        while queue and (places := find_placement(gpus[queue[0][1]])) is not None:
            job = heappop(queue)[1]
            start[job] = now
            heappush(ends, (now + runtime[job], job, places))
            for node, held in places:
                free[node] -= held
                heappush(buckets[free[node]], node)
    return start
