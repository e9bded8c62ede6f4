"""The kernel of the placing pass, compiled ahead of time for GPUs that are not here: registers, spills, widths."""

import os
import re
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.kv.layout import RotaryBand
from emblema.kv.patch import Factors
from emblema.kv.placing import SlotRows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("triton") is None and "EMBLEMA_REQUIRE_TRITON" not in os.environ, reason="triton is not installed"
    ),
]

WHOLE = RotaryBand("keys", "half", 0, 128, "", (0,) * 64, tuple(range(64)))
NEIGHBOURS = RotaryBand("values", "pairs", 0, 64, "", (0,) * 32, tuple(range(32)))
SHAPES = {
    "keys": (4, 128, 0, WHOLE),
    "values": (4, 128, 0, None),
    "patched keys": (4, 128, 32, WHOLE),
    "patched values": (4, 128, 32, None),
    "patched rotary key": (1, 64, 32, NEIGHBOURS),
    "patched latent": (1, 512, 32, None),
}
"""Heads, width, rank and band: of Qwen2.5-VL-7B, and of Kimi-K2.5."""
MOST_REGISTERS = 184
"""Of a thread: with `WARPS` of them, what a multiprocessor has room for once."""


def slot(heads: int, width: int, rank: int, band: RotaryBand | None) -> SlotRows:
    """Return bfloat16 rows without their numbers, in a table with whole heads."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta")

    factors = Factors(empty(64, rank), empty(rank, heads * width)) if rank else None
    return SlotRows((empty(heads, 64, width),), (factors,), band, empty(4, 16, heads, width))


def compiled(architecture: int, held: SlotRows) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    from emblema.kv.placing_triton import WARPS, constants, place_rows

    # Where the interpreter was asked for, the decorator made no function to compile.
    kernel = place_rows if isinstance(place_rows, JITFunction) else JITFunction(place_rows.fn)
    known = constants(held, aligned=True, interpreted=False)
    names = kernel.arg_names
    floats = {"turn_cos", "turn_sin", "home_cos", "home_sin"}
    tables = {"tiles", "slots", "pieces", "memories"}
    kinds = {
        name: "constexpr" if name in known else "*fp32" if name in floats else "*i64" if name in tables else "i32"
        for name in names
    }
    divided = {"page", "row", "head_step"} | floats | tables
    return triton.compile(
        ASTSource(
            fn=kernel,
            signature=kinds,
            constexprs={(names.index(name),): value for name, value in known.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in divided},
        ),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": WARPS},
    )


def usage(binary: bytes) -> dict[str, int]:
    """Return what a kernel's thread takes, as NVIDIA's tool says: registers, stack."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", told)}


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_fits_a_gpu_and_moves_rows_in_whole_words(
    architecture: int, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spill; rows and phases in 16 bytes a load, products on tensor cores."""
    from emblema.kv.placing_triton import RANK_BLOCK, TILE_ROWS, WARPS

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    held = slot(*SHAPES[shape])
    made = compiled(architecture, held)
    found = usage(made.asm["cubin"])
    assert found["REG"] <= MOST_REGISTERS and found["STACK"] == 0 and found["LOCAL"] == 0
    text = made.asm["ptx"]
    loads, stores = (re.findall(rf"{kind}\.global\S*", text) for kind in ("ld", "st"))
    assert stores and all(".v4" in store for store in stores)
    assert any(".v4" in load for load in loads)
    # Left factors alone may have rows of any length: one number a load.
    left = 0 if held.factors[0] is None else TILE_ROWS * RANK_BLOCK // (32 * WARPS)
    assert len([load for load in loads if ".v4" not in load and "b16" in load]) == left
    assert bool(re.search(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", text)) == (held.factors[0] is not None)
