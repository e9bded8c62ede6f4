"""The forward of SGLang's model runner with rows that are taken: those are written, the others computed."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.link.prompt import Rows
from emblema.served.captures import CaptureQueue, ChunkCapture
from emblema.served.keeping import PieceKeeper
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan
from emblema.served.request_report import plain_report, report_line, report_of
from emblema.served.spans import StepRows
from emblema.sglang.batch_rewriter import RewrittenBatch, may_rewrite, rewrite_batch, share_runs, solo_batch
from emblema.sglang.encodings import encoding_of, hand_over
from emblema.sglang.pool_rows import PoolRows
from emblema.sglang.request_links import RequestLink, RequestLinks, count_linked
from emblema.sglang.requests import count_cached
from emblema.sglang.run_attention import RunAttention

_log = logging.getLogger(__name__)
Forward = Callable[..., Any]
REPORT = "emblema"
"""The key of a request's report in `meta_info`."""


class LinkedForward:
    """Carries plans out in a runner's steps, and keeps what they compute.

    Args:
        runner: SGLang's `ModelRunner`.
        allocator: of slots.
        spec: of the model.
        links: the requests' plans.
        keeper: stores chunks and forms patches.
        captures: chunks to be prefilled alone; None where none are.
        attention: that of runs, where the backend has none of its own.

    Raises:
        EmblemaError: the pool keeps rows in a form that the plugin does not know.
    """

    def __init__(
        self,
        runner: Any,
        allocator: Any,
        spec: ModelSpec,
        links: RequestLinks,
        keeper: PieceKeeper,
        captures: CaptureQueue | None,
        attention: RunAttention,
    ) -> None:
        self._runner, self._allocator, self._spec = runner, allocator, spec
        self._attention = attention
        self._links, self._keeper, self._captures = links, keeper, captures
        self._rows = PoolRows(runner.token_to_kv_pool, spec.layouts, spec.dtype)
        # SGLang's own buffers, and those of attention backends, have so many places for sequences.
        size = int(runner.req_to_token_pool.size)
        self._places = min(size, int(runner.memory_pool_config.max_running_requests or size))
        self._stock: Forward | None = None

    @property
    def runner(self) -> Any:
        """Whose steps these are."""
        return self._runner

    def __call__(self, stock: Forward, batch: Any, *given: Any, **named: Any) -> Any:
        """Run a step."""
        self._stock = stock
        mode = batch.forward_mode
        if not (mode.is_extend_without_speculative() and batch.rids and batch.extend_seq_lens_cpu):
            output = stock(self._runner, batch, *given, **named)
            if mode.is_decode():
                self.capture(idle=False)
            return output
        links = [self._links.get(name) for name in batch.rids]
        if not any(links):
            return stock(self._runner, batch, *given, **named)
        rewritten = self._link(batch, links)
        if rewritten:
            with self._attention.of_runs():
                for earlier in rewritten[:-1]:
                    stock(self._runner, earlier.batch, *given, **named)
                output = stock(self._runner, rewritten[-1].batch, *given, **named)
            rewritten[-1].restore(output)
        else:
            output = stock(self._runner, batch, *given, **named)
        reports = [self._finish(batch, index, link) for index, link in enumerate(links)]
        for name, report in zip(batch.rids, reports, strict=True):
            if report is not None and "pieces" not in report:
                _log.info("emblema: %s", report_line(str(name), report))
        if any(report is not None for report in reports) and output.logits_output is not None:
            output.logits_output.customized_info = {**(output.logits_output.customized_info or {}), REPORT: reports}
        return output

    def _bounds(self, batch: Any, index: int) -> Rows:
        start = int(batch.extend_prefix_lens_cpu[index])
        return start, start + int(batch.extend_seq_lens_cpu[index])

    def _slots(self, batch: Any, index: int, rows: int) -> Tensor:
        """Return the slots [rows] int64 of a request's first rows, on the host."""
        table = self._runner.req_to_token_pool.req_to_token
        return table[batch.req_pool_indices[index], :rows].to("cpu", torch.int64)

    def _link(self, batch: Any, links: Sequence[RequestLink | None]) -> list[RewrittenBatch]:
        """Write the rows that a step takes, and return the forwards of the others; none where it computes all."""
        if not may_rewrite(batch):
            return []
        runs: list[tuple[Rows, ...]] = []
        linked = False
        for index, (name, link) in enumerate(zip(batch.rids, links, strict=True)):
            bounds = self._bounds(batch, index)
            rows = None if link is None else link.step_rows(*bounds)
            if link is not None and link.plan is not None:
                self._hand_over(name, link.plan, batch, index)
            if link is not None and rows is not None and self._write(name, link, batch, index, rows):
                runs.append(rows.computed)
                linked = True
            else:
                runs.append((bounds,))
        if not linked:
            return []
        forwards = share_runs(runs, self._places)
        return [rewrite_batch(batch, part, part is forwards[-1]) for part in forwards]

    def _write(self, name: str, link: RequestLink, batch: Any, index: int, rows: StepRows) -> bool:
        plan, staged = link.plan, self._links.staged(name)
        if plan is None or staged is None:
            return False
        try:
            start, stop = self._bounds(batch, index)
            slots = self._slots(batch, index, max(stop, 1))
            whole = torch.full((plan.prompt.tokens,), -1, dtype=torch.int64)
            whole[: min(stop, plan.prompt.tokens)] = slots[: plan.prompt.tokens]
            staged.write(self._spec, self._rows, whole, rows.taken)
        except Exception as error:
            # No error may end the server: the rows are computed.
            _log.warning("emblema: rows could not be written and are computed: %s", error, exc_info=True)
            plan.fail()
            return False
        link.stand_in = rows.stand_in
        plan.linked += count_linked(rows.taken, start)
        return True

    def _hand_over(self, name: str, plan: RequestPlan, batch: Any, index: int) -> None:
        """Have SGLang find what the encoder made of a request's pictures, where that is stored."""
        staged, media = self._links.staged(name), None if batch.mm_inputs is None else batch.mm_inputs[index]
        if staged is not None and staged.encodings and media is not None:
            hand_over(media.mm_items, staged.encodings, self._spec.device)

    def _finish(self, batch: Any, index: int, link: RequestLink | None) -> dict[str, object] | None:
        """Keep what a step computed of a prompt, if it is all there now; return the request's report."""
        if link is None or link.complete or self._bounds(batch, index)[1] < _tokens(link):
            return None
        name, plan = batch.rids[index], link.plan
        self._links.complete(name, link)
        if plan is None:
            return plain_report(link.request, link.refusal)
        if not link.counted:
            count_cached(plan.request.source, plan.linked)
        link.counted = True
        if self._captures is not None and plan.request.options.get("forget") is True:
            self._captures.drop(plan)
            self._keeper.forget(plan.request.store_salt, [chunk.id for _, chunk in plan.prompt.chunk_segments])
        elif self._captures is not None and plan.request.options.get("capture", True) is not False:
            self._captures.request(plan)
            if plan.needs:
                slots = self._slots(batch, index, plan.prompt.tokens)
                self._keeper.form_patches(
                    plan.request.store_salt,
                    plan.prompt,
                    plan.needs,
                    lambda segment: self._read(slots[segment.start : segment.stop]),
                )
        return report_of(plan, self._spec)

    def _read(self, slots: Tensor) -> list[LayerRows]:
        """Return copies of rows at slots, by layer."""
        where = slots.to(self._spec.device)
        return [self._rows.read(layer, where) for layer in range(len(self._spec.layouts))]

    # chunks alone

    def capture(self, idle: bool) -> bool:
        """Prefill chunks alone that the store lacks, if the moment is quiet; return whether any was.

        Args:
            idle: whether no request is there.
        """
        queue = self._captures
        if queue is None or self._stock is None or not queue.waiting:
            return False
        captured, now = False, time.monotonic()
        queue.idle_time.look(now)
        for _ in range(min(queue.idle_time.captures(now, idle), len(queue.waiting))):
            queue.idle_time.begin(now)
            if not self._capture(queue.waiting[0]):
                break
            queue.finish(queue.waiting.popleft().chunk.id)
            queue.idle_time.end(time.monotonic())
            captured = True
        return captured

    def _capture(self, wanted: ChunkCapture) -> bool:
        """Prefill a chunk; return False where there is no room for it now."""
        pool = self._runner.req_to_token_pool
        page = int(self._allocator.page_size)
        needed = -(-wanted.tokens // page) * page
        if wanted.tokens > pool.req_to_token.shape[1]:
            return True
        if self._allocator.available_size() < needed or pool.available_size() < 1:
            return False
        (row,) = pool.alloc_rows(1)
        slots = self._allocator.alloc(needed)
        try:
            self._prefill(wanted, row, slots[: wanted.tokens].to(torch.int64))
        except Exception:
            # A server that cannot store what it computes still serves.
            _log.exception("emblema: a picture could not be prefilled alone")
        finally:
            self._allocator.free(slots)
            pool.free_rows([row])
        return True

    def _prefill(self, wanted: ChunkCapture, row: int, slots: Tensor) -> None:
        self._runner.req_to_token_pool.req_to_token[row, : wanted.tokens] = slots.to(torch.int32)
        if self._stock is not None:
            self._stock(self._runner, solo_batch(wanted, row, slots))
        encoding = encoding_of(wanted.feature.mm_items[0])
        self._keeper.keep_chunk(
            wanted.salt,
            wanted.chunk,
            lambda: self._read(slots[len(wanted.anchor) :]),
            None if encoding is None else encoding.to(self._spec.dtype),
        )
        self._links.regain([wanted.chunk.id])


def _tokens(link: RequestLink) -> int:
    return len(link.request.token_ids)
