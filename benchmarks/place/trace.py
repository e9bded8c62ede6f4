"""Requests of conversations about albums of pictures: skewed, with whole conversations sent again at each turn."""

import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from emblema.scale.placement import RoutedRequest

ALBUM = 20
"""Pictures of an album, which a conversation draws from."""
FEWEST, MOST = 2, 8
"""Pictures that a conversation begins with."""
TURNS = 8
"""Turns of a conversation, at most."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What traffic is like.

    Attributes:
        chunks: distinct pictures.
        requests: that are sent.
        skew: exponent of the albums' popularity (Zipf); 0 makes all alike.
        churn: share of conversations about an album that nobody has seen, which then counts among the others.
        open: conversations that go on at once.
        again: share of requests that are the next turn of a conversation.
    """

    chunks: int
    requests: int
    skew: float = 0.9
    churn: float = 0.0
    open: int = 4_000
    again: float = 0.7


@dataclass(slots=True)
class _Conversation:
    session: str
    album: int
    pictures: list[int]
    turns: int


def make_trace(options: TraceOptions, seed: int) -> list[RoutedRequest]:
    """Return requests in order; the digests are numbers of pictures, each once in a request."""
    return list(_requests(options, random.Random(seed)))


def _requests(options: TraceOptions, rng: random.Random) -> Iterator[RoutedRequest]:
    albums = max(1, options.chunks // ALBUM)
    weights = list(accumulate((rank + 1) ** -options.skew for rank in range(albums)))
    named = list(range(albums))
    talks: list[_Conversation] = []
    for number in range(options.requests):
        if talks and rng.random() < options.again:
            place = rng.randrange(len(talks))
            talk = talks[place]
            _go_on(talk, rng)
            if talk.turns <= 0:
                talks[place] = talks[-1]
                talks.pop()
        else:
            rank = min(bisect(weights, rng.random() * weights[-1]), albums - 1)
            if rng.random() < options.churn:
                # The new album takes the rank, and with it the popularity.
                named[rank] = albums + number
            own = [named[rank] * ALBUM + index for index in rng.sample(range(ALBUM), rng.randint(FEWEST, MOST))]
            talk = _Conversation(f"talk-{number}", named[rank], own, rng.randint(1, TURNS))
            talks.append(talk)
            if len(talks) > options.open:
                talks.pop(0)
        yield RoutedRequest(tuple(talk.pictures), talk.session)


def _go_on(talk: _Conversation, rng: random.Random) -> None:
    """Give a conversation its next turn: in another order, slid by one picture, or as it is."""
    talk.turns -= 1
    kind = rng.random()
    if kind < 0.35:
        rng.shuffle(talk.pictures)
    elif kind < 0.7 and len(talk.pictures) > 2:
        shown = [*talk.pictures[1:], talk.album * ALBUM + rng.randrange(ALBUM)]
        talk.pictures = list(dict.fromkeys(shown))
