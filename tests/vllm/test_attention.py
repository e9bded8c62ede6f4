"""Packed rows in vLLM's kernel for CPUs: runs of a prompt's rows attend what they have to, and so do other requests."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from vllm import _custom_ops
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata, _get_attn_isa

from emblema.errors import EmblemaError
from emblema.link.second_pass import runs_of
from emblema.vllm.attention import PromptRuns, in_runs

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="it is the kernel for CPUs")
HEADS, GROUPS, WIDTH, SIZE, PAGES, SCALE = 4, 2, 32, 32, 24, 0.2
ROWS = torch.tensor([1, 40, 41, 42, 90, 150, 151, 199])
"""Of a prompt whose first rows, as its virtual request is shown them, stand before `FIRST`."""
FIRST, BLOCKS, OTHER = 64, [7, 3, 11, 5, 9, 2, 17], [4, 8]


class Bench:
    """A batch of a request of 5 rows, packed rows, and a request of one row."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.cache = torch.randn(PAGES, GROUPS, 2 * SIZE, WIDTH)
        self.held = torch.randn(2, GROUPS, len(BLOCKS) * SIZE, WIDTH)
        self.others = torch.randn(2, GROUPS, len(OTHER) * SIZE, WIDTH)
        isa = _get_attn_isa(torch.float32, SIZE, WIDTH, "auto")
        impl = SimpleNamespace(num_heads=HEADS, num_kv_heads=GROUPS, head_size=WIDTH, kv_cache_dtype="auto")
        self.layer = SimpleNamespace(impl=impl, isa=isa, kv_cache=self.cache)
        for blocks, rows in ((BLOCKS, self.held), (OTHER, self.others)):
            slots = (torch.tensor(blocks)[:, None] * SIZE + torch.arange(SIZE)).flatten()
            _custom_ops.cpu_attn_reshape_and_cache(*rows.transpose(1, 2).contiguous(), *self.pages(), slots, isa)
        starts = torch.tensor([0, 5, 5 + len(ROWS), 6 + len(ROWS)], dtype=torch.int32)
        table = torch.zeros(3, 8, dtype=torch.int32)
        table[0, :2] = table[2, :2] = torch.tensor(OTHER)
        table[1, : len(BLOCKS)] = torch.tensor(BLOCKS)
        self.metadata = CPUAttentionMetadata(
            num_actual_tokens=int(starts[-1]), max_query_len=len(ROWS), query_start_loc=starts,
            max_seq_len=FIRST + len(ROWS), seq_lens=torch.tensor([20, FIRST + len(ROWS), 9], dtype=torch.int32),
            block_table=table, slot_mapping=torch.zeros(0), scheduler_metadata=None,
        )  # fmt: skip
        self.queries = torch.randn(int(starts[-1]), HEADS, WIDTH)

    def pages(self) -> tuple[Tensor, Tensor]:
        keys, values = self.cache.view(PAGES, GROUPS, 2 * SIZE, WIDTH).chunk(2, dim=2)
        return keys, values

    def attended(self) -> Tensor:
        output, told = torch.zeros_like(self.queries), self.metadata
        _custom_ops.cpu_attention_with_kv_cache(
            self.queries, *self.pages(), output, told.query_start_loc, told.seq_lens, SCALE, True, None, -1,
            told.block_table, 0.0, told.scheduler_metadata, None,
        )  # fmt: skip
        return output

    def wanted(self) -> Tensor:
        rows = [*((self.others, row) for row in range(15, 20)), *((self.held, int(row)) for row in ROWS)]
        return torch.stack([self.one(place, *each) for place, each in enumerate([*rows, (self.others, 8)])])

    def one(self, place: int, held: Tensor, row: int) -> Tensor:
        keys, values = held[:, :, : row + 1].repeat_interleave(HEADS // GROUPS, 1)
        weights = (torch.einsum("hd,hnd->hn", self.queries[place], keys) * SCALE).softmax(-1)
        return torch.einsum("hn,hnd->hd", weights, values)


def test_each_row_attends_what_is_before_it_in_its_prompt() -> None:
    bench = Bench()
    changes = in_runs(bench.metadata, bench.layer, {5: PromptRuns(BLOCKS, runs_of(ROWS))})
    assert changes is not None
    for name, value in changes.items():
        setattr(bench.metadata, name, value)
    assert bench.metadata.seq_lens.tolist() == [20, 2, 43, 91, 152, 200, 9] and bench.metadata.max_query_len == 5
    torch.testing.assert_close(bench.attended(), bench.wanted(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "first, blocks, rows", [(5, [7, 3, 11, 5, 9, 2, 16], ROWS), (4, BLOCKS, ROWS), (5, BLOCKS, ROWS[1:])]
)
def test_what_is_not_in_the_batch_changes_nothing(first: int, blocks: list[int], rows: Tensor) -> None:
    bench = Bench()
    with pytest.raises(EmblemaError, match="batch"):
        in_runs(bench.metadata, bench.layer, {first: PromptRuns(blocks, runs_of(rows))})
    assert bench.metadata.seq_lens.tolist() == [20, FIRST + len(ROWS), 9]


def test_metadata_of_other_kernels_stay_as_they_are() -> None:
    assert in_runs(SimpleNamespace(query_start_loc=torch.zeros(1)), None, {}) is None
