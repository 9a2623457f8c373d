"""Batches side by side, one on each core, instead of one batch on all of them.

The products of such a small net are too short for several cores to share: two batches of one thread each are done
sooner than one after the other with two threads (docs/LOG.md, fourteenth session).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

# Batches at a time. Each takes some 300 MB with the shipped weights, most of it words that its texts may choose from.
MOST = 4


def shared_out(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in as many parts as torch may use threads, each as it stands; fewer if there are fewer items."""
    count = max(1, min(MOST, torch.get_num_threads(), len(items)))
    size = -(-len(items) // count)
    return [items[first : first + size] for first in range(0, len(items), size)] if items else []


def side_by_side(work: Callable[[T], R], items: Sequence[T], device: torch.device) -> Iterator[R]:
    """What `work` makes of each item, in order; on a CPU several at a time, sharing the threads that torch may use."""
    threads = torch.get_num_threads()
    count = min(MOST, threads, len(items))
    if count < 2 or device.type != "cpu":
        yield from map(work, items)
        return
    # How many threads torch uses is a state of each thread, but a new one begins with what was set last, wherever.
    with ThreadPoolExecutor(count, "decode", torch.set_num_threads, (threads // count,)) as pool:
        waiting = [pool.submit(work, item) for item in items]
        try:
            for one in waiting:
                yield one.result()
        finally:
            for one in waiting:
                one.cancel()
            torch.set_num_threads(threads)
