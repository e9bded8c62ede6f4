"""Hold the kernel, as Triton's interpreter runs it, to the definition of a placing pass; a process of its own."""

import sys
from dataclasses import replace

import torch

from emblema.kv.placing_torch import TorchPlacer
from emblema.kv.placing_triton import TritonPlacer
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowRange, RowSource
from emblema.link.taken_rows import LinkJob, Resources, TakenRows
from tests.kv.placing_cases import CASES, ORDERS, Case, errors_of
from tests.link.test_taken_rows import FIRST, KEY, LAYOUTS, PROMPT, RANK, SECOND, Model, OpenTable, patch


def cases() -> list[Case]:
    """Every case in bfloat16, some in every dtype, and three of them in memory of every order."""
    found = [replace(case, dtype=torch.bfloat16) for case in CASES.values()]
    patched = [CASES["pairs, patched"], CASES["axes, patched"]]
    found += [replace(case, dtype=dtype) for case in patched for dtype in (torch.float32, torch.float16)]
    for order in ORDERS:
        for name in ("half, patched", "part of a row, patched", "no band"):
            found.append(replace(CASES[name], order=order, scattered=order != "dense", dtype=torch.bfloat16, seed=1))
    return found


def plan_is_written_alike() -> bool:
    """Whether a plan's rows, of every layout and in part patched, are written as torch writes them."""
    layers = (0, len(LAYOUTS))
    ranges = (
        RowRange(0, 3, RowSource.COMPUTED, layers),
        RowRange(3, 7, RowSource.TAKEN, layers, ChunkOrigin(FIRST.id)),
        RowRange(7, 10, RowSource.COMPUTED, layers),
        RowRange(10, 15, RowSource.TAKEN, layers, ChunkOrigin(SECOND.id, 1), PatchUse(KEY, RANK - 1)),
        RowRange(15, 16, RowSource.COMPUTED, layers),
    )
    job = LinkJob(LinkPlan("test", PROMPT.tokens, len(LAYOUTS), ranges), PROMPT, Resources({KEY: patch(6)}))
    sinks = [OpenTable(PROMPT.tokens) for _ in range(2)]
    for sink, placer in zip(sinks, (TritonPlacer(), TorchPlacer()), strict=True):
        taken = TakenRows(Model(), sink, torch.arange(PROMPT.tokens), job, placer)
        # The kernel writes all layers at the first.
        for layer in range(1 if placer.takes_layers_together else len(LAYOUTS)):
            taken.write(layer)
    pairs = [(getattr(one, slot), getattr(two, slot)) for one, two in zip(sinks[0].layers, sinks[1].layers, strict=True)
             for slot in ("keys", "values")]  # fmt: skip
    return all(bool(one.any()) and torch.allclose(one, two, atol=1e-5) for one, two in pairs)


def main() -> None:
    wrong = [f"{case}: {worst:g}" for case in cases() if (worst := errors_of(TritonPlacer(), case).max()) > 1]
    if not plan_is_written_alike():
        wrong.append("a plan's rows")
    print("\n".join(wrong))
    print(len(cases()), "cases")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
