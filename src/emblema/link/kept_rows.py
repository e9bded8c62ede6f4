"""Rows that a conversation's requests had for their pictures and texts, set into a request that comes after them.

A request that sends a conversation again without some of its pictures takes the rows of what stays, as a window does
(Kamera, section 5). Such rows are memory: they hold what they absorbed of pictures that are not shown any more. A
picture is recognised by its id, and a text by the pictures around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from emblema.kv.chunk import Chunk, ChunkKind
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, Segment, TextPart

TEXT: ChunkKind = "text"
SHORTEST = 4
"""Rows of the shortest text that is taken: fewer are computed as fast."""
START = ""
"""Stands for the picture before the first text."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Rows of a picture, or of the text between two pictures, as an earlier request had them.

    Attributes:
        piece: a chunk that holds them; its `base` is the position that they were written at.
        antecedents: ids of the pictures before it then.
        absorbed: ids of every picture that the rows may hold something of, a picture's own included.
        first: its first row in the prompt that it was kept of.
    """

    piece: Chunk
    antecedents: tuple[str, ...]
    absorbed: frozenset[str]
    first: int = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.piece.encoded.token_ids.tolist())

    def cut(self, start: int, stop: int) -> "KeptRows":
        """Return rows `start` to `stop` of a text."""
        piece, encoded = self.piece, self.piece.encoded
        own = replace(
            encoded,
            token_ids=encoded.token_ids[start:stop],
            embeds=encoded.embeds[start:stop],
            positions=encoded.positions[:, : stop - start],
            span=stop - start,
            visual=encoded.visual[start:stop],
            groups=encoded.groups[start:stop],
        )
        rows = tuple(layer.slice(start, stop) for layer in piece.rows)
        made = Chunk(new_id(), TEXT, piece.model, own, rows, base=piece.base + start)
        return replace(self, piece=made, first=self.first + start)


@dataclass(frozen=True, slots=True, eq=False)
class KeptConversation:
    """What is kept of a conversation.

    Attributes:
        pictures: by id.
        texts_before, texts_after: texts by the id of the picture after them, and before them.
    """

    pictures: dict[str, KeptRows]
    texts_before: dict[str, KeptRows]
    texts_after: dict[str, KeptRows]

    @property
    def all(self) -> tuple[KeptRows, ...]:
        """All of it, each once."""
        # A text that nothing comes after is found by what is before it alone, and all others by both.
        return (*self.pictures.values(), *self.texts_after.values())

    def without(self, deleted: frozenset[str]) -> "KeptConversation":
        """Return what holds nothing of some pictures."""

        def clean(held: dict[str, KeptRows]) -> dict[str, KeptRows]:
            return {name: own for name, own in held.items() if own.absorbed.isdisjoint(deleted)}

        return KeptConversation(clean(self.pictures), clean(self.texts_before), clean(self.texts_after))


@dataclass(frozen=True, slots=True)
class PromptRun:
    """A picture of a prompt, or all the text between two.

    Attributes:
        part: of the picture; None for text.
        before, after: ids of the pictures around it; None after the last.
        antecedents: ids of all pictures before it.
        start, stop: its rows.
        position: that its first row is counted from.
    """

    part: ChunkPart | None
    before: str
    after: str | None
    antecedents: tuple[str, ...]
    start: int
    stop: int
    position: int

    @property
    def name(self) -> str:
        return "" if self.part is None else self.part.name


def place_kept(prompt: Prompt, kept: KeptConversation, trusted: frozenset[str]) -> tuple[Prompt, dict[str, KeptRows]]:
    """Return a prompt with the kept rows of a conversation, and these by the ids of their pieces in it.

    Args:
        prompt: what is asked.
        kept: what is kept of the conversation.
        trusted: kinds of content whose rows may be taken after other pictures; after the same ones they always may.
    """
    left, parts, used = dict(kept.pictures), list[Part](), dict[str, KeptRows]()

    def written(own: KeptRows, run: PromptRun) -> ChunkPart:
        used[own.piece.id] = own
        moved = own.antecedents != run.antecedents
        return ChunkPart(own.piece, False, RowState.WRITTEN, run.name, kept_after_slide=moved)

    for run in runs_of(prompt):
        if run.part is None:
            head, rest, tail = _placed_text(prompt, run, kept, trusted)
            parts += [written(own, run) for own in head] + [TextPart(rest)] + [written(own, run) for own in tail]
            continue
        own, part = left.get(run.name), run.part
        if own is None or part.slid or part.state is RowState.WRITTEN or not _may_take(own, run, trusted):
            parts.append(part)
            continue
        del left[run.name]
        parts.append(written(own, run))
    return Prompt.of(parts, prompt.axes), used


def runs_of(prompt: Prompt) -> Iterator[PromptRun]:
    """Yield a prompt's pictures and the texts between them, in order; parts without a name are text."""
    before, text = START, list[Segment]()

    def joined(after: str | None) -> Iterator[PromptRun]:
        if text:
            first = text[0]
            antecedents = prompt.antecedents(first)
            yield PromptRun(None, before, after, antecedents, first.start, text[-1].stop, first.position)
            text.clear()

    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, TextPart) or not part.name:
            text.append(segment)
            continue
        yield from joined(part.name)
        yield PromptRun(part, before, None, prompt.antecedents(segment), *segment.rows, segment.position)
        before = part.name
    yield from joined(None)


def _placed_text(
    prompt: Prompt, run: PromptRun, kept: KeptConversation, trusted: frozenset[str]
) -> tuple[list[KeptRows], tuple[int, ...], list[KeptRows]]:
    """Return what of a text is taken at its beginning and at its end, and the token ids between these.

    They are what the text after the same picture began with, and what the text before the same picture ended with.
    """
    token_ids = tuple(prompt.token_ids[run.start : run.stop].tolist())
    head, tail = list[KeptRows](), list[KeptRows]()
    own = kept.texts_after.get(run.before)
    if own is not None and _may_take(own, run, trusted):
        count = _shared(token_ids, own.token_ids)
        if count >= SHORTEST:
            head, token_ids = [own.cut(0, count)], token_ids[count:]
    own = None if run.after is None else kept.texts_before.get(run.after)
    if own is not None and _may_take(own, run, trusted):
        count = _shared(token_ids[::-1], own.token_ids[::-1])
        if count >= SHORTEST:
            stop = len(own.token_ids)
            tail, token_ids = [own.cut(stop - count, stop)], token_ids[: len(token_ids) - count]
    return head, token_ids, tail


def _may_take(own: KeptRows, run: PromptRun, trusted: frozenset[str]) -> bool:
    return own.antecedents == run.antecedents or own.piece.kind in trusted


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many equal tokens two texts begin."""
    most = min(len(one), len(other))
    return next((place for place in range(most) if one[place] != other[place]), most)


def new_id() -> str:
    return uuid4().hex + uuid4().hex
