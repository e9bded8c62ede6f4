"""Rows on their way into a device's memory, on a simulated device: nothing runs before somebody waits for it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.store.arriving import ArrivingRows
from emblema.store.settings import StoreSettings
from emblema.store.uploads import ALIGNMENT, STAGES, LayerUploader, RowUploader

LAYERS = 7


class Copies:
    """A stream of copies: queued, and run in order when an event behind them is waited for."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []
        self.done = self.follows = 0
        self.staged: list[Tensor] = []
        self.joined: list[int] = []
        self.targets: list[Tensor] = []

    def follow(self) -> None:
        self.follows += 1

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.staged.append(torch.zeros(shape, dtype=dtype))
        return self.staged[-1]

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.targets.append(target)
        self.queue.append(lambda: self.memory(target).copy_(source))

    def mark(self) -> "Event":
        return Event(self, len(self.queue))

    def memory(self, target: Tensor) -> Tensor:
        """The numbers of a tensor on the device, which `meta` stands for."""
        return self.numbers.setdefault(id(target), torch.zeros(target.shape, dtype=target.dtype))

    @property
    def numbers(self) -> dict[int, Tensor]:
        return self.__dict__.setdefault("_numbers", {})  # type: ignore[no-any-return]


class Event:
    def __init__(self, stream: Copies, count: int) -> None:
        self.stream, self.count = stream, count

    def join(self, tensors: Sequence[Tensor]) -> None:
        self.stream.joined.append(self.count)
        self.wait()

    def wait(self) -> None:
        for call in self.stream.queue[self.stream.done : self.count]:
            call()
        self.stream.done = max(self.stream.done, self.count)


def layer(number: int) -> LayerRows:
    """Keys and values of unlike sizes and dtypes, that do not end where memory is aligned."""
    chance = torch.Generator().manual_seed(number)
    return LayerRows(torch.randn(2, 3, 5, generator=chance), torch.randn(1, 3, 7, generator=chance).bfloat16())


def test_every_layer_arrives_whole_though_buffers_and_rows_are_used_again() -> None:
    stream, layers = Copies(), [layer(number) for number in range(LAYERS)]
    uploader = RowUploader(torch.device("meta"), stream, [each.bytes for each in layers])
    arriving = ArrivingRows("a" * 64, [each.bytes for each in layers])
    for index, rows in enumerate(layers):
        given = LayerRows(rows.keys.clone(), rows.values.clone())
        found, event = uploader.upload(given)
        arriving.arrive(index, found, event)
        # Whoever gave them may use their memory at once.
        given.keys.fill_(9)
        given.values.fill_(9)
    assert stream.done <= 2 * (LAYERS - STAGES), "the loading thread waits for the buffer of the next layer alone"
    assert len(stream.staged) == STAGES and stream.follows == 1
    for index, rows in enumerate(layers):
        found = arriving[index]
        assert stream.joined[-1] == 2 * (index + 1), "a reader's stream waits for its own layer's copies"
        assert stream.memory(found.keys).equal(rows.keys) and stream.memory(found.values).equal(rows.values)
        assert found.keys.shape == rows.keys.shape and found.values.dtype == rows.values.dtype
    assert all(target.storage_offset() * target.itemsize % ALIGNMENT == 0 for target in stream.targets)


def test_the_end_waits_for_all() -> None:
    stream, layers = Copies(), [layer(number) for number in range(LAYERS)]
    uploader = RowUploader(torch.device("meta"), stream, [each.bytes for each in layers])
    for rows in layers:
        uploader.upload(rows)
    uploader.finish()
    assert stream.done == len(stream.queue) == 2 * LAYERS


def test_rows_that_stay_in_host_memory_are_handed_on() -> None:
    rows = layer(1)
    found, event = RowUploader.of(torch.device("cpu"), [rows.bytes]).upload(rows)
    assert found.keys is rows.keys and event is None


def test_each_layer_goes_to_its_device() -> None:
    devices = [torch.device(name) for name in ("cpu", "meta", "meta", "cpu")]
    layers = [layer(number) for number in range(4)]
    uploader = LayerUploader(devices, [each.bytes for each in layers])
    for index, rows in enumerate(layers):
        found, _ = uploader.upload(index, rows)
        assert found.keys.device == found.values.device == devices[index]
    uploader.finish()


def test_layers_of_other_models_go_to_the_stores_device() -> None:
    devices = (torch.device("cpu"), torch.device("meta"))
    settings = StoreSettings(device="cpu", layer_devices=devices)
    assert settings.row_devices(2) == devices and settings.devices == frozenset(devices)
    assert settings.row_devices(3) == (torch.device("cpu"),) * 3
