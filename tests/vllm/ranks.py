"""What tests do inside the processes of vLLM's workers, each of which keeps a share of the model's heads.

vLLM calls these functions with a worker; `Served.on_ranks` asks all ranks, in one process or in several.
"""

from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

from emblema.errors import EmblemaError
from emblema.served.shards import shard_id
from emblema.served.staging import StagedRows
from emblema.vllm.other_connectors import own_connector
from emblema.vllm.packed_rows import PackedForward
from tests.vllm.zeroed_rows import zeroing

WRITE, NOTE = StagedRows.write, PackedForward._place


def own_worker() -> Any:
    """Return the worker's side of our connector."""
    own: Any = own_connector(get_kv_transfer_group())
    return own.kv_worker


def drain(worker: Any) -> None:
    """Wait until all that a rank has read out of pages is stored, and on disk."""
    if own_worker() is not None:
        own_worker().keeper.drain()
        own_worker().store.whole.flush()


def lose(worker: Any, chunks: list[str], rank: int) -> int:
    """Delete one rank's shares of chunks, in its memory and on disk; return how many there were."""
    store = own_worker().store
    return 0 if store.rank != rank else sum(store.whole.tenant().delete(shard_id(chunk, rank)) for chunk in chunks)


def forget_encodings(worker: Any, rank: int) -> None:
    """Have one rank find no encoder output in what it staged; a negative rank has all find theirs again."""
    own = own_worker()
    for name in ("encodings", "take"):
        own.__dict__.pop(name, None)
    if own.store.rank == rank:
        take = own.take
        own.encodings = lambda request_id: {}
        own.take = lambda *given: take(*given) and {}


def fail_writes(worker: Any, rank: int) -> None:
    """Have one rank fail to write staged rows; a negative rank has all write them again."""

    def fail(own: StagedRows, *given: Any) -> None:
        raise EmblemaError("a test has it fail")

    StagedRows.write = fail if own_worker().store.rank == rank else WRITE  # type: ignore[method-assign]


def fail_notes(worker: Any, rank: int) -> None:
    """Have one rank fail to find packed rows in the batch; a negative rank has all find them again."""

    def fail(own: PackedForward, *given: Any) -> None:
        raise EmblemaError("a test has it fail")

    PackedForward._place = fail if own_worker().store.rank == rank else NOTE  # type: ignore[method-assign]


def zero_values(worker: Any, on: bool) -> None:
    """Have values written as zeros, or as they are: an answer that does not change has not read them."""
    StagedRows.write = zeroing("values") if on else WRITE  # type: ignore[method-assign]


def computed(worker: Any) -> int:
    """Return how many rows a rank has computed since the last call; counts from the first call on."""
    rewriter = get_kv_transfer_group()._rewriter
    if "rewrite" not in rewriter.__dict__:
        stock, rewriter.rows = rewriter.rewrite, 0

        def rewrite(output: Any, step: Any) -> Any:
            made = stock(output, step)
            rewriter.rows += made.total_num_scheduled_tokens
            return made

        rewriter.rewrite = rewrite
    rows, rewriter.rows = int(rewriter.rows), 0
    return rows
