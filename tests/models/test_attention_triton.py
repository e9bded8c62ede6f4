"""The attention kernel, run by Triton's interpreter on a CPU in a process apart, and compiled for GPUs not here.

Whether a kernel is interpreted is decided when its module is imported.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.models.masks import TableOrder
from tests.kv.test_placing_compiled import usage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("triton") is None and "EMBLEMA_REQUIRE_TRITON" not in os.environ, reason="triton is not installed"
    ),
]
SHAPES = {"Qwen2.5-VL-7B": (7, 128), "Qwen3-VL-8B": (4, 128), "Gemma 3 4B": (2, 256), "Gemma 4 31B": (8, 512)}
"""Query heads of a key head, and their width."""
MOST_REGISTERS = 255


@pytest.mark.nightly
def test_the_kernel_attends_as_whole_masks_do() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.models.interpret_attention"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(ran.stdout.split()[-2]) > 60, ran.stdout


def compiled(architecture: int, shared: int, width: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    from emblema.models.attention_triton import WARPS, attend_rows, kernel_constants

    # Where the interpreter was asked for, the decorator made no function to compile.
    kernel = attend_rows if isinstance(attend_rows, JITFunction) else JITFunction(attend_rows.fn)
    rows = torch.empty(1, dtype=torch.int64, device="meta")
    held = torch.empty(1, 1, width, dtype=torch.bfloat16, device="meta")
    known = kernel_constants(held, held, shared, TableOrder(rows, rows, rows, rows, None, None)) | {"STEPS": 32}
    names = kernel.arg_names
    pointers = {
        **dict.fromkeys(("queries", "keys", "values"), "*bf16"),
        **dict.fromkeys(("sums", "highs", "totals"), "*fp32"),
        **dict.fromkeys(("query_rows", "query_groups", "table_rows", "table_groups", "hidden"), "*i64"),
        "scale": "fp32",
    }
    divided = {*pointers, "query_head", "query_step", "key_head", "key_step", "value_head", "value_step"} - {"scale"}
    return triton.compile(
        ASTSource(
            fn=kernel,
            signature={name: "constexpr" if name in known else pointers.get(name, "i32") for name in names},
            constexprs={(names.index(name),): value for name, value in known.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in divided},
        ),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": WARPS},
    )


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_fits_a_gpu(architecture: int, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No spill; keys and values in 16 bytes a load or by asynchronous copies, products on tensor cores."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(architecture, *SHAPES[shape])
    found = usage(made.asm["cubin"])
    print(shape, architecture, found)
    assert found["REG"] <= MOST_REGISTERS and found["STACK"] == 0 and found["LOCAL"] == 0
    text = made.asm["ptx"]
    assert re.search(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", text)
    wide = re.findall(r"cp\.async\.cg\S*|ld\.global\S*v4\S*", text)
    narrow = [load for load in re.findall(r"ld\.global\S*", text) if ".v4" not in load and "b16" in load]
    assert wide and not narrow
