"""What `auto` expects of a prompt: what linking costs, how seldom its answer stands, and what comes after it."""

import random
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from emblema.kv.chunk import Chunk
from emblema.latest import LatestDict
from emblema.link.policy.certificate import wilson_interval
from emblema.link.prompt import Prompt, Rows, TextPart

SURE = 0.9
"""A second pass has to be expected to cost less than this share of what it saves."""
UNSURE, PRIOR = 0.1, 3.0
"""Share of the prompts with a second pass that are not sure enough, where none was answered, and how many answers that
counts as."""
LATEST = 32
"""Answers of a kind of content that the share is over."""
SIGHTINGS = 4096
"""Lists of chunks that are remembered: those met last."""
SOON, LONGEST = 32, 256
"""Prompts after which one that none began with counts as left, for now, and after which for good."""
LEAST_NEW, MOST_NEW = 8, 256
"""New prompts that the share of continued ones is over: fewer tell nothing, and older ones are forgotten."""
KNOWN = 2048
"""Latest prompts that are no longer new when they come again."""


class Costs(Protocol):
    """What linking is expected to cost beside computing: in rows for an engine of ours, in steps for a server."""

    def second_pass_pays(self, prompt: Prompt, rows: int, share: float) -> bool:
        """Return whether a second pass is expected to pay.

        Args:
            prompt: the prompt.
            rows: rows of the chunks that it is for.
            share: of them that is computed again.
        """

    def capturing_pays(self, prompt: Prompt, rows: int, share: float, new: Collection[Chunk], known: int) -> bool:
        """Return whether a second pass is expected to pay that some new chunks have to be prefilled alone for.

        Args:
            prompt, rows, share: see `second_pass_pays`; the new chunks are among the rows.
            new: chunks without stored rows.
            known: rows of the others.
        """

    def taking_pays(self, prompt: Prompt, taken: Sequence[Rows]) -> bool:
        """Return whether taking some rows of a prompt is expected to pay, where all others are computed."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Costs in computed rows.

    Attributes:
        forward: what a forward costs beside its rows.
        taken: what a row costs that is read, relocated and perhaps patched.
        unsure: returns the share of second passes for prompts like one whose answers are likely not to stand.
        continued: returns the share of new prompts like one that a later prompt began with.
        seen: returns whether a new chunk came before, by its id: it is prefilled alone in any case then.
    """

    forward: float = 64.0
    taken: float = 0.1
    unsure: Callable[[Prompt], float] = lambda prompt: UNSURE
    continued: Callable[[Prompt], float] = lambda prompt: 0.0
    seen: Callable[[str], bool] = lambda chunk: False

    def capturing_pays(self, prompt: Prompt, rows: int, share: float, new: Collection[Chunk], known: int) -> bool:
        """Return whether it pays; see `Costs`. At least half of the chunks' rows have to be known."""
        if sum(chunk.tokens for chunk in new) > known:
            return False
        return self.second_pass_pays(prompt, rows, share, sum(chunk.tokens for chunk in new if not self.seen(chunk.id)))

    def second_pass_pays(self, prompt: Prompt, rows: int, share: float, alone: float = 0.0) -> bool:
        """Return whether a second pass is expected to cost a tenth less than computing the rows that it is for.

        Rows that are computed leave an exact prefix. Where prompts are gone on from, a second pass now has them
        computed the next time all the same.

        Args:
            prompt, rows, share: see `Costs.second_pass_pays`.
            alone: rows that are prefilled alone before.
        """
        first, last = prompt.question_rows
        again = rows * share + last - first + self.forward + self.taken * rows
        before = alone + self.forward if alone else 0.0
        later = self.unsure(prompt) * (prompt.tokens + self.forward) + self.continued(prompt) * rows
        return before + again + later < SURE * rows

    def taking_pays(self, prompt: Prompt, taken: Sequence[Rows]) -> bool:
        """Return that it pays: a taken row costs less than a computed one."""
        return True


def draw_unsure_share(rejected: Sequence[bool], prompt: Prompt) -> float:
    """Draw how many answers after a second pass will not stand, from the latest (Thompson sampling, beta distribution).

    What is seldom sure is so tried now and then, and is noticed once it is sure again. A prompt's draw changes with the
    answers alone.

    Args:
        rejected: whether each of the latest answers did not stand; `UNSURE` is returned where there is none.
        prompt: the one that a second pass would be for.
    """
    if not rejected:
        return UNSURE
    names = [part.name for part in prompt.chunk_parts]
    draws = random.Random(f"{names} {prompt.token_ids[-LATEST:].tolist()} {list(rejected)}")
    lost = sum(rejected)
    return draws.betavariate(PRIOR * UNSURE + lost, PRIOR * (1 - UNSURE) + len(rejected) - lost)


class RecentSightings:
    """Counts how often lists of names were met, of the lists that were met last."""

    def __init__(self, most: int = SIGHTINGS) -> None:
        self._counts: LatestDict[bytes, int] = LatestDict(most)

    def add(self, names: Sequence[str]) -> int:
        """Count a list once more; return how often it was met, this time included."""
        count = self.count(names) + 1
        self._counts[_digest(names)] = count
        return count

    def count(self, names: Sequence[str]) -> int:
        """Return how often a list was met lately."""
        return self._counts.get(_digest(names), 0)


def _digest(names: Sequence[str]) -> bytes:
    return blake3("\n".join(names).encode()).digest(16)


@dataclass(frozen=True, slots=True)
class _WaitingPrompt:
    """A prompt that nothing has gone on from yet: its number, whether it went on from another, its chunks' names."""

    number: int
    goes_on: bool
    names: frozenset[str]


class Continuations:
    """Counts of a tenant's new prompts how many a later prompt began with, up to their last chunk.

    A prompt that is computed in full leaves an exact prefix, which is worth as much as it is likely to be gone on from.
    Prompts that go on from another are counted apart from those that open something new: a conversation that slides
    grows at first, and then nothing goes on from its turns. While few of a kind are known, and more of these were gone
    on from than left, it counts as both kinds do.
    """

    def __init__(self) -> None:
        self._count = 0
        # By the digest up to the last chunk.
        self._waiting: dict[bytes, _WaitingPrompt] = {}
        self._known: LatestDict[bytes, None] = LatestDict(KNOWN)
        self._outcomes: dict[bool, deque[bool]] = {goes_on: deque(maxlen=MOST_NEW) for goes_on in (False, True)}

    def note(self, prompt: Prompt) -> None:
        """Note a prompt that was answered; one without chunks counts for nothing."""
        openings, names = list(openings_of(prompt)), frozenset(part.name for part in prompt.chunk_parts)
        if not openings:
            return
        self._count += 1
        longest = next((opening for opening in reversed(openings) if opening in self._waiting), None)
        if longest is not None:
            self._outcomes[self._waiting.pop(longest).goes_on].append(True)
        elif openings[-1] not in self._known:
            self._leave(names)
        if openings[-1] not in self._known:
            self._waiting[openings[-1]] = _WaitingPrompt(self._count, self._goes_on(openings), names)
        self._known[openings[-1]] = None
        while self._waiting and self._count - next(iter(self._waiting.values())).number > LONGEST:
            left = self._waiting.pop(next(iter(self._waiting)))
            self._outcomes[left.goes_on].append(False)

    def _leave(self, names: frozenset[str]) -> None:
        """Count the latest prompt as left of which another shows half of the chunks or more, and does not begin with.

        So a conversation shows at once that something has left it.
        """
        alike = (
            opening
            for opening, waiting in reversed(self._waiting.items())
            if 2 * len(names & waiting.names) >= len(waiting.names)
        )
        opening = next(alike, None)
        if opening is not None:
            self._outcomes[self._waiting.pop(opening).goes_on].append(False)

    def share(self, prompt: Prompt) -> float:
        """Return the share of new prompts like this one that are gone on from, as much as is sure.

        0 after too few of them. What counts as alike is whether it goes on from another itself.
        """
        alike = self._goes_on(list(openings_of(prompt)))
        for kinds in ((alike,), (False, True)):
            outcomes = [outcome for kind in kinds for outcome in self._outcomes[kind]]
            late = (each for each in self._waiting.values() if self._count - each.number >= SOON)
            count = len(outcomes) + sum(each.goes_on in kinds for each in late)
            if count >= LEAST_NEW:
                return max(0.0, wilson_interval(sum(outcomes), count)[0])
            if 2 * sum(outcomes) <= count:
                break
        return 0.0

    def _goes_on(self, openings: Sequence[bytes]) -> bool:
        """Whether a prompt begins with the whole of another, up to the other's last chunk, and has more chunks."""
        return any(opening in self._known for opening in openings[:-1])


def openings_of(prompt: Prompt) -> Iterator[bytes]:
    """Yield a digest of a prompt up to the end of each of its chunks, in order."""
    digest = blake3()
    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, TextPart):
            digest.update(b"text %d " % part.tokens)
            digest.update(array("q", part.token_ids).tobytes())
        else:
            digest.update(f"chunk {part.name} {part.slid} ".encode())
            yield digest.digest()
