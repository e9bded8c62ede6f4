"""The worker's side without vLLM: what waits for a busy store is bounded, and a request's patches come of its rows."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from emblema.kv.device_copies import HostCopier
from emblema.kv.layout import LayerRows
from emblema.link.plan import LinkPlan
from emblema.served import keeping
from emblema.served.captures import ChunkCapture
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.shards import ShardStore
from emblema.served.staging import StagingOrder
from emblema.store import Store
from emblema.store.store import TenantStore
from emblema.vllm import kv_worker
from emblema.vllm.kv_worker import KVWorker
from emblema.vllm.step_metadata import PatchCapture, StepMetadata
from tests.kv.devices import Device
from tests.link.pieces import LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, planned, planner_of, put, request, with_encoding

ROW = SPEC.dtype.itemsize * sum(layout.features for layout in LAYOUTS)


class FakePages:
    """Pages that hold noise; `read` counts the bytes that were copied out of them."""

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = torch.empty(0)

    def slots(self, blocks: tuple[int, ...], rows: int) -> torch.Tensor:
        return torch.arange(rows)

    def locate(self, slots: torch.Tensor) -> torch.Tensor:
        return slots

    def read(self, layer: int, slots: torch.Tensor) -> LayerRows:
        shapes = (LAYOUTS[layer].keys, LAYOUTS[layer].values)
        rows = LayerRows(*(torch.randn(heads, len(slots), width) for heads, width in shapes))
        self.bytes += rows.bytes
        return rows


class BusyStore:
    """Holds every `put` up until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        done = TenantStore.put

        def put(store: TenantStore, *args: Any) -> Any:
            assert self.free.wait(60)
            return done(store, *args)

        monkeypatch.setattr(TenantStore, "put", put)


@pytest.fixture
def pages() -> FakePages:
    return FakePages()


@pytest.fixture
def worker(pages: FakePages) -> Iterator[KVWorker]:
    worker = KVWorker(SPEC, ShardStore(Store()), 32, lambda name: None, lambda spec: pages)  # type: ignore[arg-type, return-value]
    yield worker
    worker.close()


def capture(name: str) -> ChunkCapture:
    ((_, chunk),) = build_prompt(request(name), ChunkStubs(SPEC)).chunk_segments
    return ChunkCapture(b"", chunk, name, blocks=(0,))


def patches(*names: str) -> PatchCapture:
    planned = request(*names)
    prompt = build_prompt(planned, ChunkStubs(SPEC))
    from emblema.kv.keys import ArtifactKey

    needs = tuple(
        (ArtifactKey(SPEC.fingerprint, chunk.id, prompt.antecedents(segment)), 4, tuple(range(len(LAYOUTS))))
        for segment, chunk in prompt.chunk_segments
    )
    return PatchCapture(b"", prompt, needs, (0,))


@pytest.mark.parametrize(("known", "staged"), [("ab", {"b"}), ("a", {"a", "b"})])
def test_encoder_outputs_that_the_runner_has_are_not_read_for_a_prompt_that_is_computed_at_once(
    pages: FakePages, known: str, staged: set[str]
) -> None:
    store = Store()
    with_encoding(store, request("a", "b"))
    planner = planner_of(store, "full")
    planned(planner, "1", request("a", "b"))
    planner.encoded.follow(known, [])
    assert planner.admit("1", 0) == (known == "ab"), "what it waits for is kept meanwhile by nobody else"
    # The runner's cache was emptied but for one.
    here = {"a": torch.zeros(1)}
    worker = KVWorker(SPEC, ShardStore(store), 32, here.get, lambda spec: pages)  # type: ignore[arg-type, return-value]
    worker.begin_step(planner.step_metadata({}, lambda name: (), True, True))
    worker.stager.wait(30.0)
    assert worker.encodings("1").keys() == staged
    planner.note(worker.take_report())
    assert planner.admit("1", 0)
    worker.close()


def test_a_busy_store_does_not_make_rows_pile_up(
    worker: KVWorker, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 prompts while a chunk cannot be stored: what waits stays within the bound, what is dropped is counted."""
    busy = BusyStore(monkeypatch)
    most = 8 * 2 * TOKENS * ROW
    worker.keeper.most = most
    try:
        worker.save(StepMetadata(), (capture("a"),))
        dropped = 0
        for number in range(200):
            worker.save(StepMetadata(patches=(patches("a", f"b{number}"),)))
            assert worker.keeper.held <= most
        dropped = worker.keeper.take_dropped()
        assert dropped >= 190 and worker.keeper.take_dropped() == 0
        assert pages.bytes <= 12 * 2 * TOKENS * ROW, "rows that are dropped are not read either"
    finally:
        busy.free.set()
    worker.keeper.drain()
    assert len(worker.store.whole.tenant()) == 1, "what was in the queue is stored"


def test_chunks_that_find_no_room_are_dropped_too_and_one_that_is_larger_waits_alone(
    worker: KVWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = BusyStore(monkeypatch)
    worker.keeper.most = TOKENS * ROW // 2
    try:
        worker.save(StepMetadata(), tuple(capture(name) for name in "abc"))
        assert worker.keeper.take_dropped() == 2 and worker.keeper.held == TOKENS * ROW
    finally:
        busy.free.set()
    worker.keeper.drain()
    assert worker.keeper.held == 0 and len(worker.store.whole.tenant()) == 1
    worker.save(StepMetadata(), (capture("d"),))
    worker.keeper.drain()
    assert len(worker.store.whole.tenant()) == 2 and worker.keeper.take_dropped() == 0


def test_prompts_whose_chunks_never_come_make_room(worker: KVWorker) -> None:
    worker.keeper.most = 3 * 2 * TOKENS * ROW
    for number in range(10):
        worker.save(StepMetadata(patches=(patches("never", str(number)),)))
        worker.keeper.drain()
    assert worker.keeper.take_dropped() == 7 and worker.keeper.held == 3 * 2 * TOKENS * ROW
    put(worker.store.whole, request("x", "y"))
    worker.save(StepMetadata(patches=(patches("x", "y"),)))
    worker.keeper.drain()
    key = patches("x", "y").needs[1][0]
    assert worker.store.tenant().find_patch(key) is not None, "older prompts went first"


def test_what_fails_leaves_its_room(worker: KVWorker, pages: FakePages, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("no rows")

    monkeypatch.setattr(pages, "read", fail)
    worker.save(StepMetadata(patches=(patches("a", "b"),)), [capture("a")])
    monkeypatch.undo()
    monkeypatch.setattr(TenantStore, "put", fail)
    worker.save(StepMetadata(), (capture("a"),))
    worker.keeper.drain()
    assert worker.keeper.held == 0


def test_forming_yields_to_steps(worker: KVWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """While steps follow each other, patches are formed in a small share of the time; afterwards at once."""
    names = "abcdefgh"
    put(worker.store.whole, request(*names))
    formed: list[float] = []
    form = keeping.form_patch

    def slow(*args: Any) -> Any:
        formed.append(time.monotonic())
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return form(*args)

    monkeypatch.setattr(keeping, "form_patch", slow)
    worker.begin_step(StepMetadata())
    worker.save(StepMetadata(patches=(patches(*names),)))
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        worker.begin_step(StepMetadata())
        time.sleep(0.005)
    busy = len(formed)
    assert 1 <= busy <= 3, "5 % of 0.6 s are 0.03 s"
    worker.keeper.drain()
    assert len(formed) == len(names)


def test_a_burst_is_left_alone(worker: KVWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests come densely nothing is read and no patch formed, unless that lasts; empty steps are idle."""
    put(worker.store.whole, request("a", "b", "c", "d"))
    key = patches("a", "b").needs[1][0]
    monkeypatch.setattr(kv_worker, "BURST_SECONDS", 60.0)
    worker.begin_step(StepMetadata(pressed=True))
    worker.save(StepMetadata(patches=(patches("a", "b"),), pressed=True))
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        worker.begin_step(StepMetadata(pressed=True))
        worker.save(StepMetadata(patches=(replace(patches("c", "d"), alone=False),), pressed=True))
        time.sleep(0.005)
    assert worker.keeper.take_dropped() >= 5 and worker.keeper.held == 2 * TOKENS * ROW
    assert worker.store.tenant().find_patch(key) is None
    monkeypatch.setattr(kv_worker, "BURST_SECONDS", 0.05)
    until = time.monotonic() + 30
    while worker.store.tenant().find_patch(key) is None and time.monotonic() < until:
        worker.begin_step(StepMetadata(computes=False))
        time.sleep(0.005)
    worker.keeper.drain()
    assert worker.store.tenant().find_patch(key) is not None


class DevicePages(FakePages):
    """Pages on a simulated device: what is read is there when the model's stream comes to it."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.given: list[torch.Tensor] = []

    def read(self, layer: int, slots: torch.Tensor) -> LayerRows:
        shapes = (LAYOUTS[layer].keys, LAYOUTS[layer].values)
        rows = LayerRows(*(torch.zeros(heads, len(slots), width) for heads, width in shapes))
        for part in (rows.keys, rows.values):
            self.device.compute(part, layer + 1.0)
            self.given.append(part)
        return rows


def test_rows_of_a_device_are_kept_as_the_models_stream_makes_them() -> None:
    """The model's thread waits for nothing; the other one has whole rows, though their memory is used again at once."""
    device, store = Device(), Store()
    pages, output = DevicePages(device), torch.zeros(TOKENS, 4)
    worker = KVWorker(
        SPEC,
        ShardStore(store),
        32,
        lambda name: output,
        lambda spec: pages,
        copier=HostCopier(device),  # type: ignore[arg-type, return-value]
    )
    try:
        device.compute(output, 7.0)
        worker.save(StepMetadata(), (capture("a"), capture("b")))
        worker.save(StepMetadata(patches=(patches("a", "b"),)))
        for part in (output, *pages.given):
            device.reuse(part)
        worker.keeper.drain()
        for name in "ab":
            kept = store.tenant().find(capture(name).chunk.id)
            assert kept is not None and float(kept.encoded.embeds[kept.encoded.visual].min()) == 7.0
            for layer, rows in enumerate(kept.rows):
                assert bool((rows.keys == layer + 1).all()) and bool((rows.values == layer + 1).all())
        assert device.waits and threading.get_ident() not in device.waits
        (key,) = (key for key, _, _ in patches("a", "b").needs if key.antecedents)
        patch = store.tenant().find_patch(key)
        assert patch is not None and all(bool(layer.keys.left.isfinite().all()) for layer in patch.layers if layer)
    finally:
        worker.close()


def test_a_worker_whose_weights_changed_takes_and_keeps_nothing(worker: KVWorker, pages: FakePages) -> None:
    ((_, chunk),) = build_prompt(request("a"), ChunkStubs(SPEC)).chunk_segments
    plan = LinkPlan("blind", 303, len(LAYOUTS), ())
    first, second = (
        StagingOrder(number, str(number), b"", build_prompt(request("a"), ChunkStubs(SPEC)), plan) for number in (1, 2)
    )
    worker.begin_step(StepMetadata(stagings=(first,), computes=False))
    worker.stager.wait(30)
    assert worker.take_report().staged == {1: 1} and worker.stager.get("1") is not None
    worker.stop("its weights were changed")
    assert worker.stager.get("1") is None
    worker.begin_step(StepMetadata(stagings=(second,)))
    worker.save(StepMetadata(patches=(patches("a", "b"),)), [capture("a")])
    report = worker.take_report()
    assert (report.unstaged, report.captured, report.staged) == ({2}, {chunk.id: 1}, {})
    worker.keeper.drain()
    assert pages.bytes == 0 and not worker.store.whole.tenant().ids()
