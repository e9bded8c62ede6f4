"""Tokens a second of replies that are decoded together, beside the same replies one by one."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.intervals import Interval
from benchmarks.table import Bar, Plot, Table
from benchmarks.tasks import generate
from emblema.engine.engine import Engine
from emblema.errors import ModelError
from emblema.kv.chunk import Chunk
from emblema.session.decode_batch import DecodeBatch, DecodeSequence
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode

SIZES = (1, 2, 4, 8, 16, 32)
STEPS = 32
"""Tokens of each reply."""
BAR_SIZE, BAR = 16, 4.0
"""How many together are held to how many times the tokens a second of one by one."""


@dataclass(frozen=True, slots=True)
class DecodingRound:
    """One round: seconds of decoding by the number of replies at once, 0 for one by one without a batch.

    Attributes:
        seconds: of the processor, by that number, for all tokens.
        equal: replies that are those of one by one, of all batches together, and how many were compared.
    """

    seconds: dict[int, float]
    equal: tuple[int, int]


class BatchDecoding:
    """Decodes the same prompts one by one and in batches of every size.

    Args:
        engine: on the model.
        seed: of the pages.
        steps: tokens of each reply; no end token ends it.
    """

    def __init__(self, engine: Engine, seed: int, steps: int = STEPS) -> None:
        self.engine, self.steps = engine, steps
        chunks: list[Chunk] = []
        questions: list[str] = []
        for episode in generate("maps", seed, 4):
            chunks += [chunk for page in episode.pages if isinstance(chunk := engine.add(page.image()), Chunk)]
            questions += [question.text for question in episode.questions]
        self._prompts: list[list[Chunk | str]] = [
            [*(chunks[(3 * number + place) % len(chunks)] for place in range(1 + number % 4)),
             questions[number % len(questions)]]
            for number in range(max(SIZES))
        ]  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens that each arm makes after the first ones, which come from the prompts."""
        return (self.steps - 1) * len(self._prompts)

    def round(self, number: int) -> DecodingRound:
        """Decode by every arm, another one first each time."""
        arms = [0, *SIZES]
        seconds: dict[int, float] = {}
        made: dict[int, list[list[int]]] = {}
        for size in arms[number % len(arms) :] + arms[: number % len(arms)]:
            seconds[size], made[size] = self._decode(size)
        equal = [reply == alone for size in SIZES for reply, alone in zip(made[size], made[0], strict=True)]
        return DecodingRound(seconds, (sum(equal), len(equal)))

    def _decode(self, size: int) -> tuple[float, list[list[int]]]:
        """Return the processor seconds of decoding, prefills aside, and the replies."""
        starts = [self._start(prompt) for prompt in self._prompts]
        began = time.process_time()
        made = [self._alone(start) for start in starts] if size == 0 else self._together(starts, size)
        return time.process_time() - began, made

    def _start(self, prompt: Sequence[Chunk | str]) -> DecodeStart:
        prefill = self.engine.prefill(prompt, "blind", reserve=self.steps)
        return DecodeStart.after(prefill.prompt, prefill.linked)

    def _alone(self, start: DecodeStart) -> list[int]:
        return list(decode(self.engine.adapter, start, Sampler(Sampling(max_new_tokens=self.steps)), ()))

    def _together(self, starts: Sequence[DecodeStart], size: int) -> list[list[int]]:
        """Decode as the server does: at most `size` at once, the next one taken in when one has left."""
        batch, waiting = DecodeBatch(self.engine.adapter, 10**9), deque(starts)
        made: dict[DecodeSequence, list[int]] = {}

        def admit() -> None:
            start = waiting.popleft()
            sequence = DecodeSequence(start, Sampler(Sampling(max_new_tokens=self.steps)))
            batch.admit(start, sequence)
            made[sequence] = [sequence.first.token]

        while len(batch) < size:
            admit()
        while len(batch):
            for sequence, token in batch.step():
                if isinstance(token, ModelError):
                    raise token
                made[sequence].append(token.token)
                if len(made[sequence]) == self.steps:
                    batch.remove(sequence)
                    if waiting:
                        admit()
        return list(made.values())


def measure_decoding(engine: Engine, seed: int, rounds: int, notify: Callable[[str], None]) -> Table:
    """Return the table of batched decoding, with its bar; medians over rounds.

    Args:
        notify: called with every round in words.
    """
    began = time.perf_counter()
    bench = BatchDecoding(engine, seed)
    bench.round(0)
    found: list[DecodingRound] = []
    for number in range(rounds):
        found.append(bench.round(number))
        notify(f"decoding, round {number + 1} of {rounds}")
    rows = []
    for size in (0, *SIZES):
        rates = [bench.tokens / each.seconds[size] for each in found]
        ratios = [each.seconds[0] / each.seconds[size] for each in found]
        rows.append((size, _spread(rates), _spread(ratios)))
    ratio = median(each.seconds[0] / each.seconds[BAR_SIZE] for each in found)
    same, compared = (sum(each.equal[place] for each in found) for place in (0, 1))
    note = (
        f"{max(SIZES)} prompts of one to four pages, {bench.steps} tokens each after their prefill, greedy. At most so "
        "many at once, 0: one by one as `Engine.generate` decodes. Seconds are the processor's, on one thread, which "
        f"other work on the machine disturbs least. Every round has all arms in turns; medians of {rounds} rounds with "
        f"the least and the most, ratios within a round. {same} of {compared} replies decoded together are token for "
        "token those of one by one. Taking a reply into the batch counts."
    )
    return Table(
        "decoding",
        "Replies decoded together",
        note,
        ("together", "tokens a CPU second", "times one by one"),
        tuple(rows),
        (Plot("together", "tokens a CPU second"), Plot("together", "times one by one")),
        (Bar(f"tokens a CPU second of {BAR_SIZE} together to one by one", ratio, BAR, count=rounds),),
        time.perf_counter() - began,
    )


def _spread(values: Sequence[float]) -> Interval:
    return Interval(median(values), min(values), max(values))
