"""Beside the scheduler: what each request takes, how far it may jump this step, what is captured. No vLLM in here."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from emblema.link.prompt import TextPart
from emblema.store import Store
from emblema.store.tenant import TenantStore
from emblema.vllm.holes import Claim, claim, room, within
from emblema.vllm.linking import Link, link_of
from emblema.vllm.media import Asked, Item
from emblema.vllm.messages import Capture, Conditioned, Errand, Load
from emblema.vllm.settings import Settings
from emblema.vllm.shape import Shape

_log = logging.getLogger(__name__)
WAITING_CAPTURES = 64
CAPTURED_BEFORE = 4096
MOST_LINES = 256


@dataclass(slots=True)
class Step:
    """What one step has left for gaps, and what was claimed of it.

    Attributes:
        tokens: rows that gaps may still have.
        places: how many requests the batch has room for, gaps that were claimed not counted.
        claims: by request.
        used: places that gaps take.
    """

    tokens: int
    places: Callable[[], int]
    claims: dict[str, Claim] = field(default_factory=dict)
    used: int = 0

    def take(self, request: str, claimed: Claim) -> None:
        """A claim that will be carried out in this step."""
        self.claims[request] = claimed
        self.tokens -= claimed.gap_rows
        self.used += len(claimed.gaps)


@dataclass(slots=True)
class Counts:
    """What was linked since the counts were taken last: rows, bytes of them, and encoder outputs handed over."""

    linked_tokens: int = 0
    linked_bytes: int = 0
    encodings: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """A piece to be prefilled alone: whose it is, where it stands in the request that showed it, and the chunk."""

    asked: Asked
    item: Item
    capture: Capture


class Desk:
    """Plans requests and keeps account of them; one thread, the scheduler's.

    Args:
        shape: of the model.
        settings: of the plugin.
        store: which is only read here; pieces are written where the pages are.
        refusal: why nothing at all can be linked on this server; None if it can.
    """

    def __init__(self, shape: Shape | None, settings: Settings, store: Store, refusal: str | None = None) -> None:
        self.shape, self.settings, self.store, self.refusal = shape, settings, store, refusal
        self.links: dict[str, Link | None] = {}
        self.step: Step | None = None
        self.pending: tuple[str, Claim] | None = None
        self.hide: Callable[[Any, int], None] = lambda request, computed: None
        self.wishes: deque[Wish] = deque(maxlen=WAITING_CAPTURES)
        self.capturing: dict[str, Wish] = {}
        self.counts = Counts()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._said: set[str] = set()
        if refusal is not None:
            self.say_once(f"every prompt is computed plainly: {refusal}")

    def say_once(self, line: str) -> None:
        """A line for the log, the first time."""
        if line not in self._said and len(self._said) < MOST_LINES:
            self._said.add(line)
            _log.warning("emblema: %s", line)

    def link(self, request: str, ask: Callable[[], Asked]) -> Link | None:
        """The plan of a request, made when it is first asked for; None for one that is not to be linked."""
        if request not in self.links and request not in self.capturing:
            self.links[request] = self._plan(ask())
        return self.links.get(request)

    def _plan(self, asked: Asked) -> Link | None:
        if self.shape is None or self.refusal is not None or not asked.items:
            return None
        if asked.refusal is not None:
            self.say_once(f"a request is computed plainly: {asked.refusal}")
            return None
        view = TenantStore(self.store, asked.store_salt)
        try:
            made = link_of(asked, self.shape, view, self.settings.strategy, self.say_once)
        except Exception:
            # Whatever it is, it must not end the scheduler: the request is computed.
            _log.exception("emblema: a request is computed plainly, as it could not be planned")
            return None
        if self.settings.capture and asked.wishes.get("capture", True) is True:
            self._wish(made)
        return made

    def claim(self, request: str, computed: int, own: int) -> Claim | None:
        """How far a request may jump from its computed rows in this step; nothing is taken of the budgets yet.

        Args:
            own: places that the request itself will take; 0 where it runs already.
        """
        link, step = self.links.get(request), self.step
        if step is None:
            self.say_once("nothing is linked without --scheduler-cls emblema.vllm.LinkingScheduler")
        if link is None or link.off or step is None:
            return None
        return claim(link.holes, computed, step.tokens, step.places() - step.used - own, link.most)

    def before_hole(self, request: str, computed: int) -> bool:
        """Whether the next row of a request is one to be taken."""
        link = self.links.get(request)
        return link is not None and not link.off and any(start <= computed < stop for start, stop in link.holes)

    def needed(self, request: str, computed: int) -> int:
        """Rows of gaps that a request would jump over, had it all room."""
        link = self.links.get(request)
        found = None if link is None or link.off else claim(link.holes, computed, 1 << 30, 1 << 30, link.most)
        return 0 if found is None else found.gap_rows

    def room(self, request: str, computed: int) -> int | None:
        """How many rows a request may compute before its next hole; None for no bound."""
        link = self.links.get(request)
        return None if link is None or link.off else room(link.holes, computed)

    def errand(self, scheduled: dict[str, tuple[int, int]], blocks: Callable[[str], tuple[int, ...]]) -> Errand:
        """What the pages' side has to do in the step that was scheduled.

        Args:
            scheduled: by request, the row that its own rows begin at and how many there are.
            blocks: a request's pages.
        """
        claims = {} if self.step is None else self.step.claims
        loads, captures, conditioned = [], [], []
        for request, claimed in claims.items():
            link = self.links.get(request)
            if request in scheduled and link is not None:
                plan = within(link.plan, claimed)
                loads.append(Load(request, link.asked.store_salt, link.prompt, plan, claimed, blocks(request)))
                link.claimed += claimed.taken_rows
                self.counts.linked_tokens += claimed.taken_rows
                self.counts.linked_bytes += claimed.taken_rows * self._row_bytes
        for request, (start, count) in scheduled.items():
            wish, found = self.capturing.get(request), self.links.get(request)
            if wish is not None and start + count >= wish.capture.chunk.tokens:
                captures.append(replace(wish.capture, blocks=blocks(request)))
            if found is None or not found.needs or not self.settings.capture:
                continue
            if start < found.prompt.tokens <= start + count:
                needs = found.needs
                conditioned.append(Conditioned(found.asked.store_salt, found.prompt, needs, blocks(request)))
        return Errand(tuple(loads), tuple(captures), tuple(conditioned))

    def encoding(self, request: str, identifier: str) -> Tensor | None:
        """[media tokens, width]: the kept encoder output of a request's picture, by the engine's digest of it."""
        link = self.links.get(request)
        if link is None:
            return None
        view = TenantStore(self.store, link.asked.store_salt)
        for item, (_, stub) in zip(link.asked.items, link.prompt.chunk_segments, strict=True):
            chunk = view.find(stub.id) if item.identifier == identifier else None
            if chunk is not None and chunk.encoded.embeds.shape[1]:
                return chunk.encoded.embeds[chunk.encoded.visual]
        return None

    def handed(self) -> None:
        """An encoder output went along with this step."""
        self.counts.encodings += 1

    def fewer(self, request: str) -> None:
        """The encoder's budget is too small for all gaps that a request would jump over."""
        link = self.links.get(request)
        if link is not None:
            link.fewer()

    def failed(self, request: str) -> None:
        """A request's rows could not be loaded: the rest of it is computed."""
        link = self.links.get(request)
        if link is not None:
            link.off, link.claimed, link.remark = True, 0, "stored rows could not be had; they were computed"

    def finished(self, request: str) -> dict[str, object] | None:
        """Forget a request; what a reply says of it."""
        wish = self.capturing.pop(request, None)
        if wish is not None:
            # One that goes lost later may be wished for again.
            self._seen.pop(wish.capture.chunk.id, None)
        link = self.links.pop(request, None)
        if link is None:
            return None
        name = link.plan.strategy if link.holes and link.claimed else "plain"
        return {
            "strategy": name,
            "prompt_tokens": link.prompt.tokens,
            "media_tokens": sum(chunk.tokens for _, chunk in link.prompt.chunk_segments),
            "linked_tokens": link.claimed,
            "kv_bytes": link.claimed * self._row_bytes,
            "stored": not link.wanted and not link.needs,
            "remark": link.remark,
        }

    @property
    def _row_bytes(self) -> int:
        shape = self.shape
        return 0 if shape is None else shape.dtype.itemsize * sum(layout.features for layout in shape.layouts)

    def _wish(self, link: Link) -> None:
        wanted = {chunk.id: chunk for chunk in link.wanted}
        items = iter(link.asked.items)
        for segment in link.prompt.segments:
            if isinstance(segment.part, TextPart):
                continue
            item, chunk = next(items), segment.part.chunk
            if chunk.id not in wanted or chunk.id in self._seen:
                continue
            self._seen[chunk.id] = None
            while len(self._seen) > CAPTURED_BEFORE:
                self._seen.popitem(last=False)
            self.wishes.append(Wish(link.asked, item, Capture(link.asked.store_salt, chunk, item.identifier)))

    def next_wishes(self, count: int) -> Iterator[Wish]:
        """Pieces to prefill alone now, each once."""
        for _ in range(min(count, len(self.wishes))):
            wish = self.wishes.popleft()
            if wish.capture.chunk.id not in TenantStore(self.store, wish.capture.salt):
                yield wish
