"""A method that serves traffic: an engine and a store of its own, and what each request cost it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.traffic.requests import EarlierAnswer, Picture, Piece, Traffic, TrafficRequest, Turn
from benchmarks.window.arms import RowCounter
from emblema.engine.engine import Engine
from emblema.engine.generation import GenerateRequest
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.link.plan import LinkPlan
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.session.decoding import Sampling
from emblema.session.prompt_reader import slid
from emblema.session.replies import last_reply
from emblema.store.keys import ArtifactKey, ArtifactKind

FULL, PREFIX, AUTO, QUERY = "full", "prefix", "auto", "query-12%"
METHODS = (FULL, PREFIX, "mpic-32", "cacheblend-15", "epic-8", "patch-25%", QUERY, AUTO)
STILL = "auto-still"
"""`auto`, but for a policy from half of the requests on under which it learns nothing more."""
COMPUTED = (FULL, PREFIX)
"""Methods that need no rows of a picture alone."""
KEPT_PROMPTS = (PREFIX, AUTO, STILL)
"""Methods that begin with what an earlier prompt began with."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request as one method answered it.

    Attributes:
        text: the answer's one token, as text; `token` its id, -1 where the answer ended at once.
        prompt: rows of the prompt.
        computed: rows computed before the answer, by the reply's own count: in the prompt, a second time, alone.
        ran: every row that the decoder ran, also alone and after the answer; one that ran in some layers alone counts
            as that share of one.
        ttft, wall, processor: seconds to the first token, until nothing was left to do, and of the processor.
        kept: bytes in the store then.
        margin: of the second pass; None without one.
        fell_back: whether the prompt was computed in full because the second pass was not sure.
        lane: what was taken.
        learnt: bytes of patches and pairs then; 0 where it is not counted.
    """

    text: str
    token: int
    prompt: int
    computed: int
    ran: float
    ttft: float
    wall: float
    processor: float
    kept: int
    margin: float | None
    fell_back: bool
    lane: str
    learnt: int = 0


class TrafficMethod:
    """Answers requests by one strategy, on a store of its own.

    Args:
        name: the strategy.
        model: an engine that has loaded the model; its weights are shared, and nothing else.
        traffic: whose pages are shown. Where they are not sent with the prompt they are added here.
        counter: of the rows that the model runs.
        count_learnt: count the bytes of what is learnt, and what of it is taken.
    """

    def __init__(
        self, name: str, model: Engine, traffic: Traffic, counter: RowCounter, count_learnt: bool = False
    ) -> None:
        self.name, self.traffic, self.counter = name, traffic, counter
        self._count_learnt, self._taken, self._served = count_learnt, set[ArtifactKey](), 0
        policy = Policy() if name in (AUTO, STILL) else Policy.quiet()
        self.engine = Engine(model.adapter.model, model.processor, policy=policy)
        self._encoded: dict[int, Sequence[EncodedChunk]] = {}
        self._chunks: dict[int, Chunk | Clip] = {}
        if not traffic.inline:
            self._chunks = {place: self.engine.add(page.image()) for place, page in enumerate(traffic.pages)}
        self.engine.settle()
        self._added = self.engine.store.statistics.bytes

    @property
    def pieces(self) -> tuple[int, int]:
        """How many patches and pairs the store keeps of the pages, and how many of them a request took."""
        store = self.engine.store
        kept = {key for chunk in store.ids() for key in store.artifact_keys(chunk)}
        return len(kept), len(kept & self._taken)

    def _strategy(self) -> str | Auto:
        """Return the strategy of the next request."""
        self._served += 1
        if self.name != STILL:
            return self.name
        return Auto(replace(Policy(), forming=False) if 2 * self._served > len(self.traffic.requests) else None)

    def _learnt(self, plan: LinkPlan) -> int:
        """Have what was learnt written into the store, note what a plan took of it, and return its bytes."""
        for decision in plan.decisions:
            key = decision.key
            if key is not None and key.kind is ArtifactKind.PAIRS:
                key = ArtifactKey(key.model, key.chunk, kind=ArtifactKind.PAIR)
            self._taken |= set() if key is None else {key}
        self.engine.policy_runtime.pairs().flush()
        return self.engine.store.statistics.bytes - self._added

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()

    def serve(self, request: TrafficRequest, answers: Mapping[int, str]) -> Served:
        """Answer with one token, and do all that is left to do after it.

        Args:
            answers: what was answered to earlier requests, by number.
        """
        # Drawing a page is the client's work.
        drawn = {
            piece.page: self.traffic.pages[piece.page].image()
            for turn in request.turns
            for piece in turn.pieces
            if isinstance(piece, Picture) and piece.page not in self._chunks and piece.page not in self._encoded
        }
        rows, began, spent = self.counter.rows, time.perf_counter(), time.process_time()

        def content(piece: Piece) -> Any:
            if isinstance(piece, EarlierAnswer):
                return answers[piece.request]
            if isinstance(piece, str):
                return piece
            if piece.page in self._chunks:
                chunk = self._chunks[piece.page]
                return slid(chunk) if piece.slid else chunk
            if self.name in COMPUTED:
                # As an engine with a cache of its encoder's output; no picture is prefilled alone.
                if piece.page not in self._encoded:
                    self._encoded[piece.page] = self.engine.encode(drawn[piece.page])
                return self._encoded[piece.page]
            return {"type": "image", "image": drawn[piece.page]}

        def written(turn: Turn) -> Any:
            found = [content(piece) for piece in turn.pieces]
            return found[0] if turn.role == "assistant" else found

        messages = [{"role": turn.role, "content": written(turn)} for turn in request.turns]
        pieces = self.engine.steps(GenerateRequest(messages, self._strategy(), Sampling(max_new_tokens=1)))
        ttft = time.perf_counter() - began
        reply = last_reply(pieces)
        self.engine.settle()
        wall, processor = time.perf_counter() - began, time.process_time() - spent
        if self.name not in KEPT_PROMPTS:
            self.engine.forget_prompts()
        usage, held = reply.usage, self.engine.store.statistics
        return Served(
            text=reply.text,
            token=reply.token_ids[0] if reply.token_ids else -1,
            prompt=usage.prompt_tokens,
            computed=usage.computed_tokens + usage.repeated_tokens + usage.captured_tokens,
            ran=self.counter.rows - rows,
            ttft=ttft,
            wall=wall,
            processor=processor,
            kept=held.bytes + held.prefix_bytes,
            margin=usage.margin,
            fell_back=usage.margin is not None and reply.plan.recomputation is None,
            lane=usage.lane,
            learnt=self._learnt(reply.plan) if self._count_learnt else 0,
        )
