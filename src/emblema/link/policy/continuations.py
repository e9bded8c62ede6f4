"""How often a later prompt begins with one that was met: conversations that are sent whole at each turn do."""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from blake3 import blake3

from emblema.link.policy.margins import wilson_interval
from emblema.link.prompt import Prompt, TextPart

SOON, LONGEST = 32, 256
"""Prompts after which one that none began with counts as left, for now, and after which for good."""
LEAST, KEPT = 8, 256
"""New prompts that the share is over: fewer tell nothing, and older ones are forgotten."""
KNOWN = 2048
"""Latest prompts that are no longer new when they come again."""


class Continuations:
    """Counts of a tenant's new prompts how many a later prompt began with, up to their last chunk.

    A prompt that is computed in full leaves an exact prefix, which is worth as much as it is likely to be gone on from.
    Prompts that go on from another are counted apart from those that open something new: a conversation that slides
    grows at first, and then nothing goes on from its turns.
    """

    def __init__(self) -> None:
        self._met = 0
        self._waiting: OrderedDict[bytes, tuple[int, bool]] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._outcomes: dict[bool, deque[bool]] = {goes_on: deque(maxlen=KEPT) for goes_on in (False, True)}

    def note(self, prompt: Prompt) -> None:
        """Note a prompt that was answered; one without chunks counts for nothing."""
        openings = list(openings_of(prompt))
        if not openings:
            return
        self._met += 1
        longest = next((opening for opening in reversed(openings) if opening in self._waiting), None)
        if longest is not None:
            self._outcomes[self._waiting.pop(longest)[1]].append(True)
        if openings[-1] not in self._known:
            self._waiting[openings[-1]] = self._met, self._goes_on(openings)
        self._known[openings[-1]] = None
        self._known.move_to_end(openings[-1])
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        while self._waiting and self._met - next(iter(self._waiting.values()))[0] > LONGEST:
            _, (_, goes_on) = self._waiting.popitem(last=False)
            self._outcomes[goes_on].append(False)

    def share(self, prompt: Prompt) -> float:
        """Return the share of new prompts like this one that are gone on from, as much as is sure.

        0 after too few of them. What counts as alike is whether it goes on from another itself.
        """
        openings = list(openings_of(prompt))
        alike = self._goes_on(openings)
        outcomes = self._outcomes[alike]
        left = sum(self._met - number >= SOON for number, goes_on in self._waiting.values() if goes_on == alike)
        count = len(outcomes) + left
        return max(0.0, wilson_interval(sum(outcomes), count)[0]) if count >= LEAST else 0.0

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
