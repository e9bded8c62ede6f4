"""Many requests at once on one model: the tokens of each alone, turns, limits, deadlines, and an end in time."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from queue import Queue

import pytest

from benchmarks.tasks import Episode, generate
from emblema import AsyncEngine, Engine, Store
from emblema.engine.generation import GenerateRequest, Generation
from emblema.engine.request_queue import SchedulerLimits
from emblema.engine.scheduler import Scheduler
from emblema.errors import BusyError, DeadlineError, EmblemaError, ModelError, StrategyError
from emblema.kv.chunk import Chunk, Encoded
from emblema.link.lanes import Lane
from emblema.models.families.base import Prepared
from emblema.session.decoding import Sampling
from emblema.session.replies import Piece, Reply

QUESTION = "on which land does the moon stand ?"
LONG = Sampling(max_new_tokens=400, temperature=50.0, seed=1)


class Client:
    """What one request is given."""

    def __init__(
        self,
        parts: list[object],
        sampling: Sampling | None = None,
        seconds: float | None = None,
        strategy: str = "blind",
    ) -> None:
        self.pieces: Queue[Piece | Exception] = Queue()
        deadline = None if seconds is None else time.perf_counter() + seconds
        request = GenerateRequest(parts, strategy, sampling or Sampling(max_new_tokens=12))
        self.generation = Generation(request, self.pieces.put, deadline, rows=100)

    def next(self) -> Piece:
        piece = self.pieces.get(timeout=60)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def reply(self) -> Reply:
        while (piece := self.next()).reply is None:
            pass
        return piece.reply


@pytest.fixture
def engine(reference: Engine) -> Engine:
    return reference.on(Store())


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[Scheduler]:
    made = Scheduler(engine, SchedulerLimits(waiting=4, block_rows=32))
    yield made
    made.close(0)


@pytest.fixture
def chunks(engine: Engine, episode: Episode) -> list[Chunk]:
    return [chunk for page in episode.pages if isinstance(chunk := engine.add(page.image()), Chunk)]


def test_many_at_once_get_what_each_gets_alone(engine: Engine, chunks: list[Chunk]) -> None:
    prompts = [[*chunks[index % len(chunks) :], QUESTION, " ?" * (index % 5)] for index in range(24)]
    alone = [engine.generate(prompt, "blind", max_new_tokens=3 + index % 20) for index, prompt in enumerate(prompts)]
    scheduler = Scheduler(engine, SchedulerLimits(block_rows=32))
    clients = [Client(prompt, Sampling(max_new_tokens=3 + index % 20)) for index, prompt in enumerate(prompts)]
    for client in clients:
        scheduler.submit(engine, client.generation)
    replies = [client.reply() for client in clients]
    assert [reply.token_ids for reply in replies] == [reply.token_ids for reply in alone]
    assert [reply.text for reply in replies] == [reply.text for reply in alone]
    assert [reply.finish_reason for reply in replies] == [reply.finish_reason for reply in alone]
    scheduler.close()
    assert engine.adapter.pause is None and engine.adapter.block_rows == type(engine.adapter).block_rows


def test_replies_go_on_while_a_long_prompt_is_prefilled(
    engine: Engine, chunks: list[Chunk], scheduler: Scheduler
) -> None:
    """Between two blocks of the long prefill every reply under way gets a token, and no more than one."""
    first = Client([*chunks, QUESTION], LONG)
    scheduler.submit(engine, first.generation)
    first.next()
    made: list[int] = []
    stock = engine.adapter._run  # noqa: SLF001

    def whole(batch: object, table: object, wanted: int | None = None, narrow: object = None) -> object:
        made.append(first.pieces.qsize())
        return stock(batch, table, wanted, narrow)  # type: ignore[arg-type]

    engine.adapter._run = whole  # type: ignore[method-assign, assignment]
    try:
        other = Client([QUESTION * 30, *chunks, QUESTION * 30])
        scheduler.submit(engine, other.generation)
        other.reply()
    finally:
        del engine.adapter._run
    assert len(made) > 8 and [b - a for a, b in zip(made, made[1:], strict=False)] == [1] * (len(made) - 1)
    first.generation.cancel()


class RowsBetweenTokens:
    """Counts the rows that a model runs, in the encoder or as a share of the decoder, between tokens of one stream."""

    def __init__(self, engine: Engine) -> None:
        self.counts, self._adapter = [0.0], engine.adapter
        layers = engine.adapter.layers
        self._handles = [
            # The part that runs after attention: which rows it has, the layer's own hooks say.
            layer.mlp.register_forward_pre_hook(lambda part, given: self._ran(given[0].shape[1] / len(layers)))
            for layer in layers
        ]
        self._encode = engine.adapter.encode
        engine.adapter.encode = self._encoding  # type: ignore[method-assign]

    def _ran(self, rows: float) -> None:
        self.counts[-1] += rows

    def _encoding(self, prepared: Prepared) -> Encoded:
        self._ran(len(prepared.token_ids))
        return self._encode(prepared)

    def token(self, piece: Piece | Exception) -> None:
        self.counts.append(0.0)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        del self._adapter.encode


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "blind",
        "mpic-32",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("full", "patch-25%", "cacheblend-15", "auto")),
    ],
)
def test_no_stream_waits_longer_than_a_block_and_a_step(engine: Engine, strategy: str) -> None:
    """A prompt of 2,000 rows with 33 new pictures comes while a stream is read: encoded, prefilled, linked."""
    scheduler = Scheduler(engine)
    stream, begun = Client([QUESTION], LONG), threading.Event()
    counted = RowsBetweenTokens(engine)

    def deliver(piece: Piece | Exception) -> None:
        counted.token(piece)
        begun.set()

    stream.generation = Generation(stream.generation.request, deliver)
    pictures = [page.image() for episode in generate("maps", 12, 12) for page in episode.pages][:33]
    other = Client([*pictures, QUESTION * 3])
    other.generation.request = replace(other.generation.request, strategy=strategy)
    try:
        scheduler.submit(engine, stream.generation)
        assert begun.wait(60)
        scheduler.submit(engine, other.generation)
        reply = other.reply()
        assert reply.usage.prompt_tokens > 2_000
    finally:
        stream.generation.cancel()
        scheduler.close()
        counted.close()
    block = scheduler.limits.block_rows
    # A layer is not interrupted; a step of two sequences is two rows at the most.
    most = max(block, reply.usage.prompt_tokens / len(engine.adapter.layers)) + 2
    assert max(counted.counts) <= most, sorted(counted.counts)[-5:]
    assert sum(counted.counts) > 2_000 and len(counted.counts) > sum(counted.counts) / most


def test_tenants_take_turns(engine: Engine, scheduler: Scheduler) -> None:
    others = [engine.on(engine.store.parent.tenant(salt)) for salt in (b"first", b"second")]
    order: list[str] = []
    begun = threading.Event()
    scheduler.call(engine, begun.wait)
    futures = [scheduler.call(others[0], lambda: order.append("first")) for _ in range(5)]
    futures.append(scheduler.call(others[1], lambda: order.append("second")))
    begun.set()
    for future in futures:
        future.result(60)
    assert order.index("second") <= 1


def prefilling(engine: Engine, scheduler: Scheduler, chunks: list[Chunk]) -> tuple[Client, Callable[[], None]]:
    """Return a request of a long prompt that has begun and stands at its first pause, and what lets it go on."""
    long, at_pause, goes_on = Client([QUESTION * 60, *chunks, QUESTION * 60], strategy="full"), *_events(2)
    stock = scheduler._pause  # noqa: SLF001

    def pause() -> None:
        at_pause.set()
        assert goes_on.wait(60)
        stock()

    scheduler._pause = pause  # type: ignore[method-assign]
    scheduler.submit(engine, long.generation)
    assert at_pause.wait(60)
    return long, goes_on.set


def _events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def test_another_tenant_s_request_begins_in_a_long_prefill(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, scheduler: Scheduler, chunks: list[Chunk]
) -> None:
    other = engine.on(engine.store.parent.tenant(b"other"))
    alone = [engine.generate([QUESTION], "full", max_new_tokens=1).text]
    alone.append(engine.generate([QUESTION * 60, *chunks, QUESTION * 60], "full", max_new_tokens=12).text)
    monkeypatch.setattr(engine.adapter, "block_rows", 32)
    long, go_on = prefilling(engine, scheduler, chunks)
    short = Client([QUESTION], Sampling(max_new_tokens=1), strategy="full")
    own = Client([QUESTION], Sampling(max_new_tokens=1), strategy="full")
    scheduler.submit(engine, own.generation)
    scheduler.submit(other, short.generation)
    ended: list[str] = []
    for client, name in ((long, "long"), (short, "short"), (own, "own")):
        client.generation._deliver = partial(_noted, client.generation._deliver, ended, name)  # noqa: SLF001
    go_on()
    replies = [client.reply() for client in (short, long, own)]
    assert ended[0] == "short" and set(ended[:-1]) <= {"short", "long"}, "its own tenant's wait for it"
    assert [reply.text for reply in replies] == [*alone, alone[0]]


def _noted(deliver: Callable[[Piece | Exception], None], ended: list[str], name: str, piece: Piece | Exception) -> None:
    ended.append(name)
    deliver(piece)


def test_a_long_prefill_lends_no_more_than_half_of_its_time(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, scheduler: Scheduler, chunks: list[Chunk]
) -> None:
    """By a clock of which a request of another tenant takes as much as five blocks of the long one."""
    other, clock = engine.on(engine.store.parent.tenant(b"other")), [0.0]
    monkeypatch.setattr("emblema.engine.scheduler.perf_counter", lambda: clock[0])
    monkeypatch.setattr(engine.adapter, "block_rows", 32)
    stock, blocks, begun = engine.adapter._run, [0], []  # noqa: SLF001

    def whole(batch: object, table: object, wanted: int | None = None, narrow: object = None) -> object:
        if scheduler._turn is not None and scheduler._turn.outer is None:  # noqa: SLF001
            blocks[0] += 1
            clock[0] += 1.0
        else:
            begun.append(blocks[0])
            clock[0] += 5.0
        return stock(batch, table, wanted, narrow)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.adapter, "_run", whole)
    long, go_on = prefilling(engine, scheduler, chunks)
    shorts = [Client([QUESTION], Sampling(max_new_tokens=1), strategy="full") for _ in range(4)]
    for short in shorts:
        scheduler.submit(other, short.generation)
    go_on()
    long.next()
    for short in shorts:
        short.reply()
    assert len(begun) > 1 and all(after - before >= 5 for before, after in pairwise(begun)), begun
    long.generation.cancel()


def test_too_many_are_refused_with_a_time(engine: Engine, scheduler: Scheduler) -> None:
    begun = threading.Event()
    scheduler.call(engine, begun.wait)
    clients = [Client([QUESTION]) for _ in range(4)]
    for client in clients:
        scheduler.submit(engine, client.generation)
    with pytest.raises(BusyError) as refused:
        scheduler.submit(engine, Client([QUESTION]).generation)
    assert refused.value.retry_after >= 1
    begun.set()
    assert all(client.reply().text for client in clients)


def test_rows_that_wait_are_bounded(engine: Engine) -> None:
    scheduler = Scheduler(engine, SchedulerLimits(waiting_rows=150))
    begun = threading.Event()
    scheduler.call(engine, begun.wait)
    client = Client([QUESTION])
    scheduler.submit(engine, client.generation)
    with pytest.raises(BusyError):
        scheduler.submit(engine, Client([QUESTION]).generation)
    begun.set()
    assert client.reply().text
    scheduler.close()


def test_media_that_came_again_are_kept_before_a_request_that_waits(
    engine: Engine, scheduler: Scheduler, episode: Episode
) -> None:
    engine.defer_idle(True)
    pages, hold = [page.image() for page in episode.pages], threading.Event()
    scheduler.call(engine, hold.wait)
    clients = [Client([*pages[turn:], *pages[:turn], QUESTION], strategy="auto") for turn in range(3)]
    for client in clients:
        scheduler.submit(engine, client.generation)
    hold.set()
    lanes = [{decision.lane for decision in client.reply().plan.decisions} for client in clients]
    assert lanes[:2] == [{Lane.FRESH}] * 2 and Lane.FRESH not in lanes[2]


def test_a_batch_without_room_makes_the_next_wait(engine: Engine, chunks: list[Chunk]) -> None:
    scheduler = Scheduler(engine, SchedulerLimits(batch_rows=1))
    first, second = Client([*chunks, QUESTION], Sampling(max_new_tokens=30)), Client([QUESTION])
    for client in (first, second):
        scheduler.submit(engine, client.generation)
    assert first.reply().text and second.reply().text
    scheduler.close()


def test_a_deadline_ends_a_reply(engine: Engine, chunks: list[Chunk], scheduler: Scheduler) -> None:
    late = Client([*chunks, QUESTION], Sampling(max_new_tokens=2_000, temperature=50.0, seed=1), seconds=0.5)
    overdue = Client([*chunks, QUESTION], seconds=-1)
    for client in (late, overdue):
        scheduler.submit(engine, client.generation)
    for client in (late, overdue):
        with pytest.raises(DeadlineError):
            client.reply()
    assert scheduler.running == 0


def test_a_cancelled_prefill_ends_at_its_next_block(engine: Engine, chunks: list[Chunk], scheduler: Scheduler) -> None:
    running = Client([*chunks, QUESTION], LONG)
    scheduler.submit(engine, running.generation)
    running.next()
    client = Client([QUESTION * 40, *chunks, QUESTION * 40])
    stock, calls = engine.adapter._run, []  # noqa: SLF001

    def whole(batch: object, table: object, wanted: int | None = None, narrow: object = None) -> object:
        calls.append(1)
        client.generation.cancel()
        return stock(batch, table, wanted, narrow)  # type: ignore[arg-type]

    engine.adapter._run = whole  # type: ignore[method-assign, assignment]
    try:
        scheduler.submit(engine, client.generation)
        while not calls:
            time.sleep(0.01)
        scheduler.call(engine, lambda: None).result(60)
    finally:
        del engine.adapter._run
    assert len(calls) == 1 and client.pieces.empty()
    running.generation.cancel()


def test_one_wrong_request_ends_alone(engine: Engine, chunks: list[Chunk], scheduler: Scheduler) -> None:
    running = Client([*chunks, QUESTION], Sampling(max_new_tokens=30))
    wrong = Client([*chunks, QUESTION])
    wrong.generation.request = GenerateRequest([QUESTION], "best")
    for client in (running, wrong):
        scheduler.submit(engine, client.generation)
    with pytest.raises(StrategyError):
        wrong.reply()
    assert running.reply().text


def test_a_reply_that_is_not_finite_ends_alone(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, chunks: list[Chunk], scheduler: Scheduler
) -> None:
    prompts = [[*chunks, QUESTION], [chunks[-1], QUESTION]]
    alone = [engine.generate(prompt, "blind", max_new_tokens=12) for prompt in prompts]
    plain, adapter = engine.adapter.decode, engine.adapter

    def poisoned(*given: object) -> object:
        logits = plain(*given).clone()
        if len(logits) > 1:
            logits[0, 3] = math.inf
        return logits

    monkeypatch.setattr(adapter, "decode", poisoned)
    clients = [Client([*chunks, QUESTION], LONG), *(Client(prompt) for prompt in prompts)]
    for client in clients:
        scheduler.submit(engine, client.generation)
    outcomes: list[Reply | None] = []
    for client in clients:
        try:
            outcomes.append(client.reply())
        except ModelError:
            outcomes.append(None)
    ended = [outcome is None for outcome in outcomes]
    assert any(ended) and not all(ended)
    for own, reply in zip(outcomes[1:], alone, strict=True):
        assert own is None or own.token_ids == reply.token_ids


def test_closing_gives_up_after_its_grace(engine: Engine, chunks: list[Chunk]) -> None:
    scheduler = Scheduler(engine)
    client = Client([*chunks, QUESTION], Sampling(max_new_tokens=3_000, temperature=50.0, seed=1))
    scheduler.submit(engine, client.generation)
    client.next()
    scheduler.close(0.2)
    with pytest.raises(EmblemaError, match="not finished in time"):
        client.reply()
    with pytest.raises(EmblemaError, match="closed"):
        scheduler.call(engine, lambda: None)


def test_tenants_share_a_model_asynchronously(engine: Engine, episode: Episode) -> None:
    async def use() -> None:
        async with AsyncEngine(engine) as own:
            other = own.on(engine.store.parent.tenant(b"other"))
            parts = [page.image() for page in episode.pages]
            replies = await asyncio.gather(*(each.generate([*parts, QUESTION], "full") for each in (own, other)))
            assert replies[0].text == replies[1].text
            assert len(own.store) == len(other.store) and own.store.owner != other.store.owner
            await other.close()
            assert (await own.generate([*parts, QUESTION], "full")).text == replies[0].text

    asyncio.run(use())


def test_a_reply_that_cannot_be_delivered_ends_alone(engine: Engine, chunks: list[Chunk], scheduler: Scheduler) -> None:
    """Whatever a caller's own code raises, at a piece or at the error that ends a reply."""
    running = Client([*chunks, QUESTION], Sampling(max_new_tokens=30))
    scheduler.submit(engine, running.generation)
    told: list[Piece | Exception] = []

    def deliver(piece: Piece | Exception) -> None:
        told.append(piece)
        raise RuntimeError("Event loop is closed")

    for request in (GenerateRequest([QUESTION], "blind", LONG), GenerateRequest([QUESTION], "best")):
        broken = Generation(request, deliver)
        scheduler.submit(engine, broken)
        until = time.monotonic() + 60
        while not broken.cancelled:
            assert time.monotonic() < until
            time.sleep(0.001)
    assert len(told) == 2 and running.reply().text
    overdue = Generation(GenerateRequest([QUESTION], "blind"), deliver, deadline=time.perf_counter() - 1)
    scheduler.submit(engine, overdue)
    last = Client([QUESTION])
    scheduler.submit(engine, last.generation)
    assert last.reply().text


def test_a_closed_event_loop_ends_its_reply_alone(engine: Engine) -> None:
    other = asyncio.new_event_loop()
    threading.Thread(target=other.run_forever, daemon=True).start()
    own, loop = AsyncEngine(engine), asyncio.new_event_loop()

    async def begin() -> object:
        pieces = await own.generate(QUESTION, "blind", stream=True, max_new_tokens=400, temperature=50.0, seed=1)
        async for _ in pieces:
            return pieces
        return None

    held = loop.run_until_complete(begin())
    loop.close()
    answer = asyncio.run_coroutine_threadsafe(own.generate(QUESTION, "blind", max_new_tokens=3), other)
    assert answer.result(60).text and held is not None
    asyncio.run_coroutine_threadsafe(own.close(), other).result(60)
    other.call_soon_threadsafe(other.stop)


def test_a_thread_that_ends_fails_what_waits_and_takes_nothing_more(
    engine: Engine, chunks: list[Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, hold, holding = Scheduler(engine), threading.Event(), threading.Event()
    running = Client([*chunks, QUESTION], LONG)
    scheduler.submit(engine, running.generation)
    running.next()
    held = scheduler.call(engine, lambda: holding.set() or hold.wait())
    assert holding.wait(60)
    waiting = Client([QUESTION])
    scheduler.submit(engine, waiting.generation)
    call = scheduler.call(engine, lambda: None)

    def broken() -> None:
        raise SystemExit(1)

    monkeypatch.setattr(scheduler, "_give_up", broken)
    hold.set()
    held.result(60)
    for client in (running, waiting):
        with pytest.raises(EmblemaError, match="thread has ended"):
            client.reply()
    with pytest.raises(EmblemaError, match="thread has ended"):
        call.result(60)
    assert not scheduler.alive
    with pytest.raises(EmblemaError, match="thread has ended"):
        scheduler.submit(engine, Client([QUESTION]).generation)
    scheduler.close()
