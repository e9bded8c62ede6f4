"""What a stream keeps on the host: blocks hold what was written to them, and the process grows by no more than that."""

import random
import subprocess
import sys

import pytest
import torch

from emblema.kv.layout import LayerLayout
from emblema.stream.blocks import BlockStore, Transfers
from emblema.stream.buffers import LEAST_MAPPED, grown, host_buffer

LAYOUT = LayerLayout(keys=(2, 4), values=(2, 4), rotary=None)
TOKENS = 3
WIDTH = TOKENS * 16


def store() -> BlockStore:
    return BlockStore(LAYOUT, TOKENS, torch.float32, Transfers())


@pytest.mark.parametrize("seed", range(3))
def test_blocks_that_grow_and_are_divided_hold_their_lines(seed: int) -> None:
    chance, blocks = random.Random(seed), store()
    plain: dict[int, torch.Tensor] = {}
    written = torch.Generator().manual_seed(seed)
    for step in range(400):
        lines = torch.randn(chance.randint(1, 5), WIDTH, generator=written)
        if plain and chance.random() < 0.6:
            id = chance.choice(list(plain))
            if len(plain[id]) > 1 and chance.random() < 0.4:
                order = chance.sample(range(len(plain[id])), len(plain[id]))
                cut = chance.randint(1, len(order) - 1)
                parts = {1000 + 2 * step: order[:cut], 1001 + 2 * step: order[cut:]}
                blocks.divide(id, parts)
                whole = plain.pop(id)
                plain |= {new: whole[torch.tensor(of)] for new, of in parts.items()}
                continue
        else:
            id = step
        blocks.append(id, lines)
        plain[id] = torch.cat([*([plain[id]] if id in plain else []), lines])
    assert all(torch.equal(blocks.copy(id, torch.device("cpu")), lines) for id, lines in plain.items())
    again = store()
    again.restore(blocks.state())
    assert all(torch.equal(again.copy(id, torch.device("cpu")), lines) for id, lines in plain.items())
    held = sum(lines.nbytes for lines in plain.values())
    assert held <= min(again.bytes, blocks.bytes) and max(again.bytes, blocks.bytes) <= 2.5 * held
    # A copy is not changed by what is written later.
    id = next(iter(plain))
    copy = blocks.copy(id, torch.device("cpu"))
    blocks.append(id, torch.zeros(64, WIDTH))
    assert torch.equal(copy, plain[id])


def test_lines_of_blocks_that_ended_are_used_again() -> None:
    blocks = store()
    for step in range(50):
        blocks.append(step, torch.randn(9, WIDTH))
        blocks.divide(step, {1000 + step: [0, 1], 2000 + step: list(range(2, 9))})
    room = blocks.bytes
    assert room <= 1.6 * 50 * 9 * WIDTH * 4


@pytest.mark.parametrize("rows", [1, LEAST_MAPPED // 8, LEAST_MAPPED])
def test_a_buffer_that_grows_keeps_its_rows_and_zeros_follow(rows: int) -> None:
    held = host_buffer((rows, 2), torch.float32)
    assert not held.any()
    held.copy_(torch.randn(rows, 2))
    larger = grown(held, 3)
    assert torch.equal(larger[:rows], held) and not larger[rows:].any() and len(larger) == rows + 3
    assert larger.dtype == torch.float32 and grown(torch.zeros(0, 4, dtype=torch.uint8), 2).shape == (2, 4)


GROWING = """
import resource, torch
from emblema.stream.mosaic.centroids import FrameVectors

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

vectors = [FrameVectors() for _ in range(4)]
for frame in range(16): [each.add(frame, torch.ones(512)) for each in vectors]
before = resident() - sum(each.bytes for each in vectors)
for frame in range(16, 9000):
    work = [torch.ones(40_000) for _ in range(3)]
    for each in vectors: each.add(frame, torch.ones(512))
del work
print(resident() - before - sum(each.bytes for each in vectors))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the process's memory is read as Linux gives it")
def test_the_process_grows_by_what_the_buffers_hold() -> None:
    beside = int(subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True).stdout)
    assert beside < 6e6, f"{beside / 1e6:.1f} MB that nothing counts beside 73.7 MB of vectors"
