"""What a stream keeps on the host: rows as they were written, and a process that grows by no more than that."""

import mmap
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.stream.buffers import LEAST_LARGE, LEAST_MAPPED, grown, host_buffer
from emblema.stream.host_rows import HostRows, RowFetcher, Transfers
from emblema.stream.mosaic.frame_keys import FrameKeys

LAYOUT = LayerLayout(keys=(2, 4), values=(2, 4), rotary=None)
TOKENS = 3
WIDTH = TOKENS * 16


def store() -> HostRows:
    return HostRows(LAYOUT, TOKENS, torch.float32, Transfers())


def drawn(frames: int, generator: torch.Generator) -> LayerRows:
    keys, values = torch.randn(2, 2, frames * TOKENS, 4, generator=generator).unbind()
    return LayerRows(keys, values)


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_back_as_they_were_written(seed: int) -> None:
    chance, held = random.Random(seed), store()
    written, rows = torch.Generator().manual_seed(seed), []
    first = stop = chance.randint(0, 9)
    while stop < first + 500:
        count = chance.randint(1, 90)
        rows.append(drawn(count, written))
        held.append(range(stop, stop + count), rows[-1])
        stop += count
    assert held.frames == range(first, stop)
    whole = LayerRows(torch.cat([part.keys for part in rows], 1), torch.cat([part.values for part in rows], 1))
    frames = numpy.sort(numpy.array(chance.sample(range(first, stop), 40)))
    lines = held.copy(frames, torch.device("cpu"))
    found, places = held.rows(lines), torch.from_numpy(frames - first)
    wanted = (places[:, None] * TOKENS + torch.arange(TOKENS)).flatten()
    assert torch.equal(found.keys, whole.keys[:, wanted]) and torch.equal(found.values, whole.values[:, wanted])
    assert held.bytes == (stop - first) * WIDTH * 4
    # A copy is not changed by what is written later.
    lines = held.copy(frames, torch.device("cpu"))
    before = lines.clone()
    held.append(range(stop, stop + 64), drawn(64, written))
    assert torch.equal(lines, before)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_fetched_does_not_depend_on_what_was_prefetched(seed: int) -> None:
    chance, transfers = random.Random(seed), Transfers()
    held = HostRows(LAYOUT, TOKENS, torch.float32, transfers)
    held.append(range(7, 300), drawn(293, torch.Generator().manual_seed(seed)))
    fetcher = RowFetcher([held, held], transfers, torch.device("cpu"))
    for guessed in (0, 5, 60):
        wanted, guess = (numpy.sort(numpy.array(chance.sample(range(7, 300), n), dtype=int)) for n in (40, guessed))
        fetcher.prefetch(1, guess)
        hits = transfers.hits
        assert torch.equal(fetcher.fetch(1, wanted), held.copy(wanted, torch.device("cpu")))
        assert transfers.hits - hits == len(set(wanted.tolist()) & set(guess.tolist()))
        fetcher.clear()
        assert fetcher.bytes == 0
    fetcher.close()
    # Runs of consecutive frames are one transfer each.
    before = transfers.fetches
    held.fetch(numpy.array([7, 8, 9, 20, 22, 23]), torch.device("cpu"))
    assert transfers.fetches - before == 3


@pytest.mark.parametrize("rows", [1, LEAST_MAPPED // 8, LEAST_MAPPED])
def test_a_buffer_that_grows_keeps_its_rows_and_zeros_follow(rows: int) -> None:
    held = host_buffer((rows, 2), torch.float32)
    assert not held.any()
    held.copy_(torch.randn(rows, 2))
    larger = grown(held, 3)
    assert torch.equal(larger[:rows], held) and not larger[rows:].any() and len(larger) == rows + 3
    assert not grown(held, 3, 1)[0].any() and torch.equal(grown(held, 3, 1)[1:rows], held[1:])
    assert larger.dtype == torch.float32 and grown(torch.zeros(0, 4, dtype=torch.uint8), 2).shape == (2, 4)


def wants_large_pages(address: int) -> bool:
    """Return whether large pages were asked for where an address lies."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if "-" in name and not name.endswith(":"):
            start, end = (int(number, 16) for number in name.split("-"))
            inside = start <= address < end
        elif inside and name == "VmFlags:":
            return "hg" in words
    raise ValueError("nothing lies there")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="the system has no large pages to ask for"
)
def test_keys_lie_in_large_pages_also_after_a_load() -> None:
    keys, loaded = FrameKeys(4, 4, 64), FrameKeys(4, 4, 64)
    keys.add(range(7, 7 + 2**13), torch.randn(2**13, 4, 4, 64))
    loaded.restore(keys.state(), *keys.index_of(range(7, 7 + 2**13)))
    for own in (keys, loaded):
        assert own._keys.nbytes >= 2 * LEAST_LARGE and wants_large_pages(own._keys.data_ptr() + LEAST_LARGE)
    held = host_buffer((LEAST_LARGE,), torch.uint8)
    assert not wants_large_pages(held.data_ptr() + LEAST_LARGE // 2)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the process's memory is read as Linux gives it")
def test_memory_is_given_back_before_a_row() -> None:
    keys, whole = FrameKeys(4, 4, 64), torch.randn(2**15, 4, 4, 64)
    keys.add(range(7, 7 + len(whole)), whole)
    before, bytes_before = resident(), keys.bytes
    for start, until in ((7, 3), (7, 9000), (9000, 19000), (19000, 1000)):
        keys.clear(torch.arange(start, max(start, until)))
        keys.drop(until)
    given = bytes_before - keys.bytes
    assert given == 18993 * 16 * 66 and before - resident() > 0.9 * given
    assert torch.allclose(keys.of(torch.tensor([19000])), (whole - keys.centre)[18993:18994], atol=0.05)
    keys.add(range(7 + len(whole), 7 + 2 * len(whole)), whole)
    assert not keys.of(torch.tensor([7, 18999])).any() and torch.equal(
        keys.of(torch.tensor([20000])), keys.of(torch.tensor([20000 + len(whole)]))
    )


GROWING = """
import resource, torch
from emblema.stream.lines import FrameLines

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

lines = [FrameLines(1024, torch.float16) for _ in range(4)]

def go_on(frames):
    for frame in frames:
        work = [torch.ones(40_000) for _ in range(3)]
        for each in lines: each.append(range(frame, frame + 1), torch.ones(1, 1024, dtype=torch.float16))

go_on(range(1000))
before = resident() - sum(each.bytes for each in lines)
go_on(range(1000, 10_000))
print(resident() - before - sum(each.bytes for each in lines))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the process's memory is read as Linux gives it")
def test_the_process_grows_by_what_the_buffers_hold() -> None:
    beside = int(subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True).stdout)
    assert beside < 6e6, f"{beside / 1e6:.1f} MB that nothing counts beside 73.7 MB of rows"
