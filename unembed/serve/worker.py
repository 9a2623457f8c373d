"""The one thread that owns the net. Requests wait in a bounded line; all texts under way share each forward pass.

Other threads only touch the lines, under `_turn`; the net and the pool are the worker's alone, and it never holds
`_turn` while the net works. What it has to say goes to the event loop in one call a round.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np
import torch

from unembed.decode import DecodeConfig, Inversion, Step
from unembed.errors import UnembedError
from unembed.serve.jobs import Finished, Job, Message, Queued, Stepped
from unembed.serve.limits import Limits, Refusal, failed, internal, stopping, too_long, too_many

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.inverter import Inverter

log = logging.getLogger(__name__)

SMOOTHING = 0.1  # of the measured time of a text: the last ten or so count


class Worker:
    """Start it, `submit` jobs from the event loop, and `leave` when a client is gone."""

    def __init__(self, inverter: Inverter, limits: Limits) -> None:
        self.inverter, self.limits = inverter, limits
        self.ready = threading.Event()
        self._turn = threading.Condition()
        self._streams: deque[Job] = deque()
        self._batches: deque[Job] = deque()  # with texts that have no place yet
        self._shares: Counter[str] = Counter()
        self._running: dict[int, tuple[Job, int, float]] = {}  # ticket: job, which of its texts, since when
        self._threads = torch.get_num_threads()
        self._stop_at = math.inf
        self._text_seconds = 0.0
        self._failed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: list[tuple[Job, Message]] = []
        self._thread = threading.Thread(target=self._run, name="unembed-worker", daemon=True)

    # --- called from the event loop ---

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load what the first request needs, then wait for jobs."""
        self._loop = loop
        self._thread.start()

    def stop(self, grace: float) -> None:
        """Take nothing more; tell who waits at once, and who runs after so many seconds."""
        with self._turn:
            self._stop_at = min(self._stop_at, time.monotonic() + grace)
            self._turn.notify()

    def join(self, timeout: float) -> bool:
        """Whether the thread has ended in that time."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_at < math.inf

    @property
    def failed(self) -> bool:
        """Whether its thread has ended though nobody stopped it."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        return self._failed or (ended and not self.stopping)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return len(self._streams) + len(self._batches)

    @property
    def running(self) -> int:
        """Texts that are decoded now."""
        return len(self._running)

    def submit(self, vectors: NDArray[np.float32], config: DecodeConfig, client: str, *, live: bool) -> Job:
        """Put vectors (n, d) in the line, or refuse them."""
        job = Job(vectors, config, client, live, time.monotonic() + self.limits.stream_seconds)
        with self._turn:
            if self.stopping:
                raise stopping()
            if self.failed:
                raise failed()
            if not self.ready.is_set():
                raise Refusal(503, "not_ready", "the server is still loading: try again in a few seconds", 2)
            if self._shares[client] >= self.limits.share:
                many = f"{self.limits.share} requests of yours are waiting or running"
                raise too_many(many, self._retry_after())
            if self.waiting >= self.limits.queue:
                full = f"{self.limits.queue} requests are waiting already"
                raise Refusal(503, "queue_full", f"{full}: try again later", self._retry_after())
            self._shares[client] += 1
            line = self._streams if live else self._batches
            position = len(line) + 1 - max(0, self.limits.capacity - self.running)
            if live and position > 0:  # there is no place for it at the next pass
                job.position = position
                job.mailbox.put_nowait(Queued(job.position, self._wait(job.position)))
            line.append(job)
            self._turn.notify()
        return job

    def leave(self, job: Job) -> None:
        """The client is gone: the job's places are free at the next step."""
        with self._turn:
            job.gone = True
            self._turn.notify()

    def _wait(self, position: int) -> float:
        """Places become free one after another, evenly spread over the time that a text takes."""
        return position * self._text_seconds / self.limits.capacity

    def _retry_after(self) -> int:
        return max(1, math.ceil(self._wait(self.waiting)))

    # --- the worker's thread ---

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # nobody would notice a thread that is gone: all would wait for ever
            log.critical("unembed: the decoder failed (%s): start the server again", place_of(error))
            with self._turn:
                self._failed = True
                jobs = {*self._streams, *self._batches, *(job for job, _, _ in self._running.values())}
                self._streams.clear()
                self._batches.clear()
                self._running.clear()
            for job in jobs:
                self._end(job, internal())
            self._post()

    def _work(self) -> None:
        use_threads(self._threads)
        self._pool = self.inverter.pool(capacity=self.limits.capacity)
        self._warm_up()
        self.ready.set()
        while True:
            with self._turn:
                while not (self._running or self.waiting or self.stopping):
                    self._turn.wait()
                tickets = self._sweep()
                starting = self._admit()
                self._announce()
                if self.stopping and not self._running and not starting:
                    break
            for ticket in tickets:
                self._pool.drop(ticket)
            self._round(starting)
            self._post()
        self._post()

    def _round(self, starting: list[Job]) -> None:
        """One step of every running text."""
        try:
            for job in starting:
                self._add(job)
            self._add_from_batches()
            self._post()  # who starts hears of it before the pass
            if self._running:
                for ticket, step in self._pool.step():
                    self._stepped(ticket, step)
        except Exception as error:  # a fault of ours must end the texts that it hit, not the server
            reason = blame(error)
            lost = [ticket for ticket in self._running if ticket not in self._pool]
            if not lost:  # no text's fault that we know of
                lost = list(self._running)
                self._pool = self.inverter.pool(capacity=self.limits.capacity)
            for ticket in lost:
                self._end(self._running.pop(ticket)[0], reason)

    def _warm_up(self) -> None:
        """The first pass is slow, and its time would be a wrong guess at the next."""
        vector = np.full(self.inverter.dim, self.inverter.dim**-0.5, np.float32)
        for _ in range(2):
            began = time.monotonic()
            self._pool.add(vector, DecodeConfig())
            while len(self._pool):
                list(self._pool.step())
            self._text_seconds = time.monotonic() - began

    def _sweep(self) -> list[int]:
        """Take out the jobs that are over; the tickets that they held."""
        now = time.monotonic()
        for line in (self._streams, self._batches):
            for job in list(line):
                if self.stopping or job.gone or job.over or now > job.expires:
                    line.remove(job)
                    self._end(job, stopping() if self.stopping else too_long())
        dropped = []
        for ticket, (job, _, _) in list(self._running.items()):
            late = now > self._stop_at
            if late or job.gone or job.over or now > job.expires:
                del self._running[ticket]
                dropped.append(ticket)
                self._end(job, stopping() if late else too_long())
        return dropped

    def _admit(self) -> list[Job]:
        """Streams get the free places first."""
        free = self.limits.capacity - len(self._running)
        return [self._streams.popleft() for _ in range(min(free, len(self._streams)))]

    def _add_from_batches(self) -> None:
        """Batches get what is left, at most half of all places: one text of each, then again."""
        while self._batches and not self.stopping:
            in_batches = sum(not job.live for job, _, _ in self._running.values())
            most = max(1, self.limits.capacity // 2)
            if in_batches >= most or len(self._running) >= self.limits.capacity:
                return
            job = self._batches[0]
            self._add(job)
            with self._turn:
                self._batches.rotate(-1)
                if job.over or job.begun_all:
                    self._batches.remove(job)

    def _announce(self) -> None:
        """Tell those whose place in the line has changed."""
        for position, job in enumerate(self._streams, 1):
            if job.position != position:
                job.position = position
                self._tell(job, Queued(position, self._wait(position)))

    def _add(self, job: Job) -> None:
        """Give the next text of a job a place."""
        now = time.monotonic()
        if not job.begun:
            job.begun = now
            self._tell(job, Queued(0, 0.0))
        try:
            if not job.parts:
                job.expect(self._pool.parts(job.vectors[job.started], job.config))
            which, part = job.parts.popleft()
            ticket = self._pool.add_part(part)
        except Exception as error:
            self._end(job, blame(error))
            return
        self._running[ticket] = (job, which, now)

    def _stepped(self, ticket: int, step: Step) -> None:
        job, which, since = self._running[ticket]
        now = time.monotonic()
        if job.live:
            self._tell(job, Stepped(step, now - job.begun))
        if step.inversion is not None:
            del self._running[ticket]
            self._text_seconds += SMOOTHING * (now - since - self._text_seconds)
            self._result(job, which, step.inversion)

    def _result(self, job: Job, which: int, found: Inversion) -> None:
        job.take(which, found)
        if job.done:
            self._end(job, Finished(job.results(), job.begun - job.submitted, time.monotonic() - job.begun))

    def _end(self, job: Job, message: Message) -> None:
        """The last word to a job; its client may send another."""
        if job.over:
            return
        job.over = True
        self._tell(job, message)
        with self._turn:
            self._shares[job.client] -= 1
            if self._shares[job.client] <= 0:
                del self._shares[job.client]

    def _tell(self, job: Job, message: Message) -> None:
        if not job.gone:
            self._outbox.append((job, message))

    def _post(self) -> None:
        """Everything since the last time, in one call: the loop must not be woken for each of 32 texts."""
        if not self._outbox or self._loop is None:
            return
        letters, self._outbox = self._outbox, []
        try:
            self._loop.call_soon_threadsafe(_deliver, letters)
        except RuntimeError:  # the loop is closed: nobody listens any more
            log.debug("the event loop has ended before the worker")


def use_threads(count: int) -> None:
    """Let torch use so many threads for the work of the calling one; it has no say over others."""
    torch.get_num_threads()  # settles what this thread would else take over from whoever set a number last
    torch.set_num_threads(count)


def _deliver(letters: list[tuple[Job, Message]]) -> None:
    for job, message in letters:
        job.mailbox.put_nowait(message)


def blame(error: Exception) -> Refusal:
    """An error of the library is about the input and safe to show; any other is a fault of ours, for the log."""
    if isinstance(error, UnembedError):
        return Refusal(422, "bad_input", str(error))
    log.error("decoding failed: %s", place_of(error))
    return internal()


def place_of(error: BaseException) -> str:
    """What failed and where, without the message, which may hold somebody's text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{where}"
