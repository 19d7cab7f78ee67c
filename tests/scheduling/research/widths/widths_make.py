"""Views of small clusters for policies of elastic jobs."""

import math

import numpy as np

from scheduling.research.widths.values import WidthForecast, WidthJob, WidthView

ROUND_S = 120.0


class PowerLaw(WidthForecast):
    """A job whose speed is a power of its width, on any nodes. `speed`: on one GPU."""

    def __init__(self, exponent=1.0, work=1000.0, speed=1.0):
        self.exponent, self.work, self.speed = exponent, work, speed

    def speeds(self, gpus, nodes):
        return self.speed * np.asarray(gpus, float) ** self.exponent

    def seconds_left(self, gpus, nodes):
        return self.work / self.speed / gpus**self.exponent


def job(
    number,
    *,
    places=(),
    requested=1,
    widest=64,
    age_s=3600.0,
    used=0.0,
    restarts=0,
    restarting=False,
    deadline=math.inf,
    **forecast,
):
    return WidthJob(
        number=number,
        age_s=age_s,
        attained_gpu_s=used,
        restarts=restarts,
        restart_s=30.0,
        is_restarting=restarting,
        requested=requested,
        widest=widest,
        places=places,
        forecast=PowerLaw(**forecast),
        deadline_s=deadline,
    )


def view(*jobs, nodes=2, node_gpus=4, now=0.0):
    return WidthView(now=now, round_s=ROUND_S, nodes=nodes, node_gpus=node_gpus, jobs=jobs)
