"""Half precision: rows relocated by the store's own arithmetic, against the rows that vLLM itself turned there.

In the first layer a key depends on its token and its place alone. So a picture's keys, captured alone and relocated,
are the keys that vLLM computes in the prompt, but for rounding: vLLM turns twice, with cosines in half precision.
"""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema.kv.rotation import PhaseBook, relocate
from emblema.served import keeping

MOST = 2.0
"""Units in the last place, at the length of a pair of features."""
MISSED = {("qwen2.5-vl", "float16"): 3.0, ("deepseek-v2", "float16"): 3.0}
"""What misses that, by model and data type, and how far it may: in one of six places a feature is 3 units off. It is
shown as missed. One turn of vLLM's alone is up to 1.7 units from float64 (4,000 random rows), and two are compared.
Keys that were captured after an anchor are turned once more.
"""


def units(one: Tensor, other: Tensor, pairs: Tensor) -> float:
    """Return the largest difference of some rows [.., width], in units in the last place at the length of each pair.

    Args:
        pairs: [width] the other feature of each one's pair.
    """
    wide = one.double()
    length = (wide.square() + wide[..., pairs].square()).sqrt().clamp_min(torch.finfo(one.dtype).smallest_normal)
    unit = torch.exp2(length.log2().floor()) * torch.finfo(one.dtype).eps
    return float(((wide - other.double()).abs() / unit).max())


COMMIT = [("qwen2.5-vl", "bfloat16"), ("deepseek-v2", "float16")]
NIGHTLY = [
    ("qwen2.5-vl", "float16"),
    ("deepseek-v2", "bfloat16"),
    *product(["llava-onevision"], ["bfloat16", "float16"]),
]


@pytest.mark.parametrize(
    ("name", "dtype"), [*COMMIT, *(pytest.param(*each, marks=pytest.mark.nightly) for each in NIGHTLY)]
)
def test_relocated_keys_are_those_that_vllm_turns_itself(
    name: str, dtype: str, bench: Any, subjects: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:  # fmt: skip
    seen: list[tuple[float, float, float]] = []
    stock = keeping.deficits_of

    def noted(spec: Any, table: Any, prompt: Any, segment: Any, canonical: Any, layers: Any) -> Any:
        layout, band = spec.layouts[0], spec.layouts[0].rotary
        places = prompt.positions[:, segment.start : segment.stop]
        books = [PhaseBook(spec.tables, each) for each in (segment.part.chunk.encoded.positions, places)]
        computed, moved = table.read(0, segment.start, segment.stop), relocate(canonical[0], layout, *books)
        turned = (computed.keys, moved.keys) if band.slot == "keys" else (computed.values, moved.values)
        still = (computed.values, moved.values) if band.slot == "keys" else (computed.keys, moved.keys)
        inside = torch.arange(band.width)
        pairs = (inside + band.width // 2) % band.width if band.pairing == "half" else inside ^ 1
        one, other = (part[..., band.start : band.start + band.width] for part in turned)
        before = getattr(canonical[0], band.slot)[..., band.start : band.start + band.width]
        own = torch.arange(still[0].shape[-1])
        seen.append((units(one, other, pairs), units(one, before, pairs), units(still[0], still[1], own)))
        return stock(spec, table, prompt, segment, canonical, layers)

    monkeypatch.setattr(keeping, "deficits_of", noted)
    subject = subjects(name)
    served = bench.serve(subject.folder, tmp_path, subject.vocabulary, dtype=dtype)
    for lead, seed in ((40, 1), (1500, 2)):
        given = subject.prompt(3, seed=seed, lead=lead)
        for _ in range(2):
            served.forget_prefixes()
            served.ask(given.token_ids, given.pictures, {"strategy": "patch-1"})
            served.settle()
    assert len(seen) >= 4, "patches of two prompts"
    for off, unmoved, still in seen:
        record_property(f"{name} {dtype} units", (off, unmoved, still))
        assert still == 0, "what is not turned is the same"
        assert unmoved > 20 * MOST, "the control: keys that were not relocated"
    worst = max(off for off, _, _ in seen)
    if MOST < worst <= MISSED.get((name, dtype), 0.0):
        pytest.xfail(f"missed: {name}, {dtype}: {worst:.1f} units against {MOST:.0f}")
    assert worst <= MOST
