"""Rows of a prompt that attend all rows before them, in parts of any size."""

import pytest
import torch

from emblema.kv.layout import LayerRows
from emblema.vllm import packed_rows
from emblema.vllm.packed_rows import attend_before, weighed_rows


@pytest.mark.parametrize("heads, groups", [(6, 6), (8, 2)])
@pytest.mark.parametrize("weights", [2**9, 2**14, 2**18])
def test_parts_attend_what_all_rows_at_once_would(
    heads: int, groups: int, weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_rows, "WEIGHTS", weights)
    generator = torch.Generator().manual_seed(heads + weights)
    rows = torch.randperm(300, generator=generator)[:90].sort().values
    queries = torch.randn(heads, len(rows), 16, generator=generator)
    keys, values = torch.randn(2, groups, 310, 16, generator=generator)
    parts = weighed_rows(rows, heads, torch.device("cpu"))
    made, noted = torch.zeros_like(queries), torch.zeros(heads, len(rows), 310)
    for part, found, attended in attend_before(queries, LayerRows(keys, values), parts, 0.25):
        made[:, part.first : part.last] = attended
        noted[:, part.first : part.last, : part.stop] = found
    hidden = torch.arange(310) > rows[:, None]
    every_key, every_value = (part.double().repeat_interleave(heads // groups, 0) for part in (keys, values))
    scores = (queries.double() @ every_key.transpose(1, 2) * 0.25).masked_fill(hidden, float("-inf"))
    wanted = torch.softmax(scores, -1)
    assert len(parts) == 1 if weights == 2**18 else len(parts) > 1
    assert float((noted - wanted).abs().max()) < 1e-6
    assert float((made - wanted @ every_value).abs().max()) < 1e-5
