"""How near a kernel comes to the rate of a copy: a closed queueing network of an SM (H200).

The blocks of an SM are the customers, or their warps where these wait for nobody; one delay (what a
warp waits for) and three servers (memory at the copy rate, the slots of issue, the busiest pipe),
solved by mean value analysis. Against reported figures of other kernels it is some 15 points low
for few blocks in clusters, and high for short rows with a block each: good for comparing two
versions, no measurement.
"""

from __future__ import annotations

from collections import Counter

from scripts.sass.clock import WIDTH
from scripts.sass.launches import Launch

SMS, CLOCK, COPY = 132, 1.755e9, 4.3e12  # H200: SMs, Hz under load, bytes/s read and written
LAUNCH_GAP = 250  # cycles from the exit of a block to the first instruction of the next
_LOST = 1.15  # of the slots of issue, by what the pipes of a real SM do to one another


def resident(launch: Launch, registers: int) -> int:
    """Blocks of a kernel on an SM of sm_90."""
    warps = -(-launch.threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    by_shared = 233472 // (launch.shared_bytes + 1024)
    return min(32, 2048 // launch.threads, 65536 // (of_warp * warps), by_shared)


def share_of_copy(
    launch: Launch,
    *,
    resident: int,
    alone: float,
    steps: int,
    pipes: Counter[str],
    bytes_moved: float,
    steady: bool,
    waits: bool,
) -> float:
    """The share of the copy rate.

    Args:
        resident: blocks of an SM.
        alone: cycles of a round of rows when nothing else runs.
        steps, pipes: instructions of a warp in a round, all and by pipe.
        bytes_moved: by a block in a round.
        steady: blocks go from row to row; otherwise each has one.
        waits: the warps of a block wait for each other; otherwise each is a customer of its own.
    """
    warps = -(-launch.threads // 32)
    of_block = 1 if waits else warps
    warps //= of_block
    busiest = max(count * WIDTH[name] * (name != "mem" or 0.25) for name, count in pipes.items())
    transfer = bytes_moved / of_block / (COPY / SMS / CLOCK)
    servers = [transfer, steps * warps / 4 * _LOST, busiest * warps / 4]
    delay = max(0.0, alone - steps * min(1.0, warps / 4))
    customers = resident * of_block
    rate = _throughput(customers, delay, servers)
    of_sm = launch.blocks * of_block / SMS
    if steady and of_sm > customers:
        # Blocks that do not fit wait for the first ones to end: a second, emptier wave.
        rest = of_sm % customers
        took = (of_sm - rest) / rate
        if rest >= 1:
            took += rest / _throughput(round(rest), delay, servers)
        rate = of_sm / took
    return rate * transfer


def _throughput(customers: int, delay: float, servers: list[float]) -> float:
    queues = [0.0] * len(servers)
    rate = 0.0
    for present in range(1, customers + 1):
        times = [s * (1 + q) for s, q in zip(servers, queues, strict=True)]
        rate = present / (delay + sum(times))
        queues = [rate * time for time in times]
    return rate
