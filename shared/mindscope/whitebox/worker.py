"""The one place models run: a single worker thread, behind one process-wide lock.

nnsight is not thread-safe, and even a plain forward pass in another thread breaks a trace. So every use of
any model, whoever asks and from whichever thread or event loop, is a function handed to this worker:

    run(lambda: ...)                # waits for the result
    await run_async(lambda: ...)    # the same without blocking the event loop

Gradient mode and inference mode are per thread: set them inside the function, not around the call. Code that
must use a model in its own thread (a trainer, a peer library in a benchmark) does so inside `with
exclusive():`.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_lock = threading.RLock()
_thread = threading.local()
_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mindscope-whitebox")


@contextmanager
def exclusive() -> Iterator[None]:
    """Keep every other use of a model out while this thread uses one. May be nested."""
    with _lock:
        outer = _is_ours()
        _thread.holds = True
        try:
            yield
        finally:
            _thread.holds = outer


def run(fn: Callable[[], T]) -> T:
    """`fn()` in the worker thread, in the order asked. Called from within such a function, it runs `fn` at
    once."""
    if _is_ours():
        return fn()
    return _submit(fn).result()


async def run_async(fn: Callable[[], T]) -> T:
    """`run` for coroutines: the event loop goes on meanwhile. Cancelled while it waits its turn, `fn` never
    runs."""
    if _is_ours():
        return fn()
    return await asyncio.wrap_future(_submit(fn))


def _submit(fn: Callable[[], T]) -> Future[T]:
    def alone() -> T:
        with exclusive():
            return fn()

    return _worker.submit(alone)


def _is_ours() -> bool:
    return getattr(_thread, "holds", False)
