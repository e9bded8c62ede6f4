"""Chunks that the store lacks, prefilled alone in quiet moments, on slots of SGLang's pool that are taken for that."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.plugin.quiet import QuietMoments
from emblema.plugin.request_plan import RequestPlan
from emblema.sglang.requests import solo_media

WAITING_CAPTURES = 64
REMEMBERED_CAPTURES = 4096
RECAPTURE_SECONDS = 10.0
"""How long a chunk that was captured is not captured again, as it may not be stored yet."""


@dataclass(frozen=True, slots=True)
class SoloCapture:
    """A chunk to be prefilled alone: whose store it goes to, and its picture as SGLang's model takes it."""

    salt: bytes
    chunk: Chunk
    media: Any


class SoloQueue:
    """What is to be captured, each chunk once.

    Attributes:
        quiet: says when.
    """

    def __init__(self) -> None:
        self.quiet = QuietMoments()
        self._waiting: deque[SoloCapture] = deque(maxlen=WAITING_CAPTURES)
        self._requested: OrderedDict[str, float] = OrderedDict()

    def request(self, plan: RequestPlan) -> None:
        """Have the chunks of a prompt captured that are missing."""
        missing, now = {chunk.id for chunk in plan.missing}, time.monotonic()
        for item, (_, chunk) in zip(plan.request.items, plan.prompt.chunk_segments, strict=True):
            if chunk.id not in missing or now - self._requested.get(chunk.id, -math.inf) < RECAPTURE_SECONDS:
                continue
            self._requested[chunk.id] = now
            while len(self._requested) > REMEMBERED_CAPTURES:
                self._requested.popitem(last=False)
            # SGLang lets go of a request's pictures when it is answered.
            media = solo_media(plan.request.source, item, chunk)
            self._waiting.append(SoloCapture(plan.request.store_salt, chunk, media))

    def drop(self, plan: RequestPlan) -> None:
        """Let go of the chunks of a prompt that wait, as they are deleted."""
        chunks = {chunk.id for _, chunk in plan.prompt.chunk_segments}
        kept = [wanted for wanted in self._waiting if wanted.chunk.id not in chunks]
        self._waiting = deque(kept, maxlen=WAITING_CAPTURES)

    def run(self, idle: bool, capture: Callable[[SoloCapture], bool]) -> bool:
        """Capture what a moment has time for; return whether that was anything.

        Args:
            idle: whether no request is there.
            capture: prefills a chunk; returns False where there is no room for it now.
        """
        if not self._waiting:
            return False
        captured, now = False, time.monotonic()
        self.quiet.look(now)
        for _ in range(min(self.quiet.captures(now, idle), len(self._waiting))):
            self.quiet.begin(now)
            wanted = self._waiting.popleft()
            if not capture(wanted):
                self._waiting.appendleft(wanted)
                break
            captured = True
            self._requested[wanted.chunk.id] = time.monotonic()
            self.quiet.end(time.monotonic())
        return captured


def solo_batch(chunk: Chunk, media: Any, row: int, slots: Tensor) -> Any:
    """Return a `ForwardBatch` that prefills a chunk alone.

    Args:
        chunk: without rows.
        media: the picture as SGLang's model takes it, at its place in the chunk.
        row: of `req_to_token`, which names the slots.
        slots: [tokens] int64, where the rows go.
    """
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    device, tokens = slots.device, chunk.tokens
    (item,) = media.mm_items
    ((start, last),) = item.offsets
    ids = chunk.encoded.token_ids.clone()
    ids[start : last + 1] = torch.tensor(item.padding_sequence(last + 1 - start), dtype=ids.dtype)
    places = chunk.encoded.positions.to(device)

    def whole(number: int, dtype: torch.dtype, place: torch.device = device) -> Tensor:
        return torch.tensor([number], dtype=dtype, device=place)

    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=1,
        input_ids=ids.to(device),
        req_pool_indices=whole(row, torch.int64),
        seq_lens=whole(tokens, torch.int64),
        out_cache_loc=slots,
        seq_lens_sum=tokens,
        orig_seq_lens=whole(tokens, torch.int32),
        seq_lens_cpu=whole(tokens, torch.int64, torch.device("cpu")),
        top_logprobs_nums=[0],
        token_ids_logprobs=[None],
        mm_inputs=[media],
        lora_ids=[None],
        rids=[f"emblema-{chunk.id[:16]}"],
        capture_hidden_mode=CaptureHiddenMode.NULL,
        positions=torch.arange(tokens, device=device),
        mrope_positions=places if len(places) == 3 else None,
        extend_num_tokens=tokens,
        extend_seq_lens=whole(tokens, torch.int32),
        extend_prefix_lens=whole(0, torch.int32),
        extend_start_loc=whole(0, torch.int32),
        extend_prefix_lens_cpu=[0],
        extend_seq_lens_cpu=[tokens],
        extend_logprob_start_lens_cpu=[tokens],
        global_num_token_non_padded_cpu=tokens,
    )
