"""Rows that a conversation's requests had for their pictures and texts, set into a request that comes after them.

A request that sends a conversation again without some of its pictures takes the rows of what stays, as a window does
(Kamera, section 5). Such rows are memory: they hold what they absorbed of pictures that are not shown any more. A
picture is recognised by its id, and a text by the pictures around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from uuid import uuid4

from emblema.kv.chunk import Chunk, ChunkKind
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, Segment, TextPart

TEXT: ChunkKind = "text"
SHORTEST = 4
"""Rows of the shortest text that is taken: fewer are computed as fast."""
SEAM = 3
"""Tokens that may differ where a picture has left."""
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


@dataclass(frozen=True, eq=False)
class KeptConversation:
    """What is kept of a conversation.

    Attributes:
        runs: its pictures, by id, and the texts between them, without a name; in order.
        past: ids of all pictures of the requests before it, whose rows it took: any of its rows may hold them.
    """

    runs: tuple[tuple[str, KeptRows], ...]
    past: frozenset[str] = frozenset()

    @cached_property
    def absorbed(self) -> frozenset[str]:
        """Ids of all pictures that any of its rows may hold something of."""
        return self.past.union(*(own.absorbed for _, own in self.runs))

    @cached_property
    def pictures(self) -> dict[str, KeptRows]:
        """Its pictures by id."""
        return {name: own for name, own in self.runs if name}

    def without(self, deleted: frozenset[str]) -> "KeptConversation":
        """Return what holds nothing of some pictures."""
        if not self.past.isdisjoint(deleted):
            return KeptConversation(())
        return KeptConversation(tuple(run for run in self.runs if run[1].absorbed.isdisjoint(deleted)), self.past)

    def texts(self, before: str, after: str | None) -> list[KeptRows]:
        """Return the texts between two pictures, where others may have stood too.

        Args:
            before: id of the first, `START` for none; where it is not kept, the text right before the other is meant.
            after: id of the second, None for none; where it is not kept, all texts to the end are meant.
        """
        names = [name for name, _ in self.runs]
        last = names.index(after) if after in self.pictures and after is not None else len(names)
        if before == START:
            first = 0
        elif before in self.pictures:
            first = names.index(before)
        else:
            first = last - 1 if last < len(names) else last
        return [own for name, own in self.runs[max(0, first) : last] if not name]


@dataclass(frozen=True, slots=True)
class PromptRun:
    """A picture of a prompt, or all the text between two.

    Attributes:
        part: of the picture; None for text.
        before, after: ids of the pictures around it; None after the last.
        antecedents: ids of all pictures before it.
        start, stop: its rows.
        position: that its first row is counted from.
        moved: whether rows of it were kept though something before them has left.
    """

    part: ChunkPart | None
    before: str
    after: str | None
    antecedents: tuple[str, ...]
    start: int
    stop: int
    position: int
    moved: bool

    @property
    def name(self) -> str:
        return "" if self.part is None else self.part.name

    @property
    def written_after(self) -> tuple[str, ...]:
        """What its rows were written after: after no list of pictures where they were kept after a slide."""
        return (START, *self.antecedents) if self.moved else self.antecedents


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
        left = tuple(name for name in own.antecedents if name != START) != run.antecedents
        return ChunkPart(own.piece, False, RowState.WRITTEN, run.name, kept_after_slide=moved, left_since=left)

    for run in runs_of(prompt):
        if run.part is None:
            parts += [
                part if isinstance(part, TextPart) else written(part, run)
                for part in _placed_text(prompt, run, kept, trusted)
            ]
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
            moved = any(isinstance(each.part, ChunkPart) and each.part.kept_after_slide for each in text)
            yield PromptRun(None, before, after, antecedents, first.start, text[-1].stop, first.position, moved)
            text.clear()

    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, TextPart) or not part.name:
            text.append(segment)
            continue
        yield from joined(part.name)
        moved, antecedents = part.kept_after_slide, prompt.antecedents(segment)
        yield PromptRun(part, before, None, antecedents, *segment.rows, segment.position, moved)
        before = part.name
    yield from joined(None)


def _placed_text(
    prompt: Prompt, run: PromptRun, kept: KeptConversation, trusted: frozenset[str]
) -> list[TextPart | KeptRows]:
    """Return a text as what is taken of it and what is not, in order.

    Where pictures have left, the texts around them follow one another, perhaps with other tokens at the seams.
    """
    left = tuple(prompt.token_ids[run.start : run.stop].tolist())
    texts = [own for own in kept.texts(run.before, run.after) if _may_take(own, run, trusted)]
    parts, tail = list[TextPart | KeptRows](), list[TextPart | KeptRows]()
    for place, own in enumerate(texts):
        if place == len(texts) - 1 and run.after is not None:
            # What stands right before the same picture is found from its end.
            size = len(own.token_ids)
            count = _shared(left[::-1], own.token_ids[::-1])
            if count >= SHORTEST:
                tail, left = [own.cut(size - count, size)], left[: len(left) - count]
                continue
        found = _aligned(left, own.token_ids)
        if found is not None:
            skipped, first, count = found
            parts += [TextPart(left[:skipped]), own.cut(first, first + count)]
            left = left[skipped + count :]
    return [*parts, TextPart(left), *tail]


def _aligned(text: Sequence[int], other: Sequence[int]) -> tuple[int, int, int] | None:
    """Return where two texts begin to be the same, within a few tokens of either's start, and for how long.

    None where they are not for long enough.
    """
    seams = sorted(product(range(SEAM + 1), repeat=2), key=sum)
    found = ((one, two, _shared(text[one:], other[two:])) for one, two in seams)
    return next((match for match in found if match[2] >= SHORTEST), None)


def _may_take(own: KeptRows, run: PromptRun, trusted: frozenset[str]) -> bool:
    return own.antecedents == run.antecedents or own.piece.kind in trusted


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many equal tokens two texts begin."""
    most = min(len(one), len(other))
    return next((place for place in range(most) if one[place] != other[place]), most)


def new_id() -> str:
    return uuid4().hex + uuid4().hex
