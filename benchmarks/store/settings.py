"""How much is measured: all of it, or a little of everything."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """The extent of a run.

    Attributes:
        sizes: bytes of KV in the files that are written and read.
        rounds: interleaved rounds of reading and writing, and of linked prompts.
        pictures: pictures of a linked prompt, and pixels along their sides.
        larger: the same of the larger random model; no pictures leave it out.
        larger_rounds: rounds of its linked prompts.
        entries: sizes of the index.
        lookups: look-ups timed at each size.
        catalogue: distinct chunks of the Zipf trace.
        requests: requests of the Zipf trace.
        marks: after how many new queries the gain is measured.
        contexts: contexts that share one set of chunks.
        episodes: fresh episodes of the comparison of compressions.
    """

    sizes: tuple[int, ...]
    rounds: int
    pictures: tuple[int, int]
    larger: tuple[int, int]
    larger_rounds: int
    entries: tuple[int, ...]
    lookups: int
    catalogue: int
    requests: int
    marks: tuple[int, ...]
    contexts: int
    episodes: int


FULL = Settings(
    sizes=(16 * MIB, 64 * MIB, 256 * MIB),
    rounds=9,
    pictures=(6, 224),
    larger=(4, 448),
    larger_rounds=7,
    entries=(10_000, 100_000, 1_000_000),
    lookups=20_000,
    catalogue=400,
    requests=2000,
    marks=(1, 100, 1000),
    contexts=40,
    episodes=30,
)
QUICK = Settings(
    sizes=(MIB, 4 * MIB),
    rounds=3,
    pictures=(3, 112),
    larger=(0, 0),
    larger_rounds=0,
    entries=(1000, 4000),
    lookups=1000,
    catalogue=60,
    requests=120,
    marks=(1, 5, 45),
    contexts=4,
    episodes=2,
)
