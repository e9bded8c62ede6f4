"""The embedded engine as an arm: a strategy, an engine and a store of its own on shared weights."""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load.requests import LoadRequest, Picture, Piece, Traffic
from benchmarks.load.stages import AUTO, FULL, PREFIX, LoadAnswer
from benchmarks.window.arms import RowCounter
from emblema.engine.engine import Engine
from emblema.engine.generation import GenerateRequest
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.link.policy.policy import Policy
from emblema.session.decoding import Sampling
from emblema.session.prompt_reader import slid
from emblema.session.replies import Reply, last_reply

COMPUTED = (FULL, PREFIX)
"""Methods that need no rows of a picture alone."""
KEPT_PROMPTS = (PREFIX, AUTO)
"""Methods that begin with what an earlier prompt began with."""


def answer_of(reply: Reply, ttft: float, ended: float, ran: float) -> LoadAnswer:
    """Return what came of a reply of the engine's, given its seconds and the rows that the decoder ran."""
    usage = reply.usage
    return LoadAnswer(
        text=reply.text,
        ttft=ttft,
        ended=ended,
        prompt=usage.prompt_tokens,
        computed=usage.computed_tokens + usage.repeated_tokens + usage.captured_tokens,
        tokens=len(reply.token_ids),
        ran=ran,
        fell_back=usage.margin is not None and reply.plan.recomputation is None,
    )


class EngineArm:
    """Answers requests by one strategy on the weights of `model`; pages that are not sent with prompts are added."""

    def __init__(self, name: str, model: Engine, traffic: Traffic, counter: RowCounter) -> None:
        self.name, self.traffic, self.counter = name, traffic, counter
        policy = Policy() if name == AUTO else Policy.quiet()
        self.engine = Engine(model.adapter.model, model.processor, policy=policy)
        self._encoded: dict[int, Sequence[EncodedChunk]] = {}
        self._chunks: dict[int, Chunk | Clip] = {}
        if not traffic.inline:
            self._chunks = {place: self.engine.add(page.image()) for place, page in enumerate(traffic.pages)}
        self.engine.settle()

    def __enter__(self) -> "EngineArm":
        return self

    def __exit__(self, *given: object) -> None:
        self.engine.close()

    def settle(self) -> None:
        """Do all that is left to do."""
        self.engine.settle()

    def ask(self, request: LoadRequest, tokens: int) -> LoadAnswer:
        """Answer, and do all that is left to do after it."""
        # Drawing a page is the client's work.
        drawn = {
            piece.page: self.traffic.pages[piece.page].image()
            for piece in request.pieces
            if isinstance(piece, Picture) and piece.page not in self._chunks and piece.page not in self._encoded
        }
        rows, began = self.counter.rows, time.perf_counter()
        content = [self._content(piece, drawn) for piece in request.pieces]
        sampling = Sampling(max_new_tokens=tokens)
        messages = [{"role": "user", "content": content}]
        pieces = self.engine.steps(GenerateRequest(messages, self.name, sampling))
        ttft = time.perf_counter() - began
        reply = last_reply(pieces)
        self.engine.settle()
        ended = time.perf_counter() - began
        if self.name not in KEPT_PROMPTS:
            self.engine.forget_prompts()
        return answer_of(reply, ttft, ended, self.counter.rows - rows)

    def _content(self, piece: Piece, drawn: dict[int, Any]) -> Any:
        if not isinstance(piece, Picture):
            return piece
        if piece.page in self._chunks:
            chunk = self._chunks[piece.page]
            return slid(chunk) if piece.slid else chunk
        if self.name not in COMPUTED:
            return {"type": "image", "image": drawn[piece.page]}
        # As an engine with a cache of its encoder's output; no picture is prefilled alone.
        if piece.page not in self._encoded:
            self._encoded[piece.page] = self.engine.encode(drawn[piece.page])
        return self._encoded[piece.page]
