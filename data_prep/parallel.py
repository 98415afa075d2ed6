"""Work on chunks of lines on several cores, in order, holding only a few chunks at a time."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from tqdm import tqdm

from .text import PrepError

CHUNK = 5000
WORTH_IT = 8  # chunks: with fewer, starting processes takes longer than they save

In = TypeVar("In")
Out = TypeVar("Out")


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def watch(items: Iterable[In], what: str, unit: str = " pairs") -> Iterator[In]:
    """With a progress bar, for work that takes a while."""
    yield from tqdm(items, desc=what, unit=unit, disable=None, delay=2)


def map_chunks(
    function: Callable[[list[In]], Out], items: Iterable[In], workers: int
) -> Iterator[Out]:
    """``function(chunk)`` of every chunk of items, in order, whatever the number of workers.

    ``function`` must be picklable.
    """
    source = iter(items)
    chunks = iter(lambda: list(islice(source, CHUNK)), [])
    ahead = list(islice(chunks, WORTH_IT))
    if workers == 1 or len(ahead) < WORTH_IT:
        yield from map(function, chain(ahead, chunks))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, die_with_parent) as pool:
        pending: deque[Future[Out]] = deque(pool.submit(function, chunk) for chunk in ahead)
        try:
            for chunk in chunks:
                pending.append(pool.submit(function, chunk))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise PrepError("a worker process was killed: is there enough memory?") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def die_with_parent() -> None:
    """A worker whose parent was killed would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
