"""A process that saves its stream after every block is killed again and again; what is loaded is a block that it saved.

    python -m tests.stream.crash FOLDER --rounds 20 --seed 7

Each round is a child of this process, which has loaded the model: the child goes on from what was saved, and says how
many frames each save had once it has returned. It is killed from outside, or right before its n-th change to a file.
"""

import argparse
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.engine.engines import engine
from tests.families import loaded
from tests.stream.plain import shown
from tests.stream.test_state import NAME, QUESTION, SMALL, kept

CALLS = ("rename", "replace", "unlink", "fsync", "ftruncate", "pwrite", "mkdir", "open")
BLOCK = SMALL["block"]
FRAMES = 15 * BLOCK


def run(folder: Path, rounds: int, seed: int) -> None:
    """Kill and look; AssertionError if something was lost."""
    chance, frames = random.Random(seed), shown(NAME, FRAMES)
    loaded(NAME)
    with engine(NAME).stream(**SMALL) as stream:
        expected = {}
        for start in range(0, FRAMES, BLOCK):
            stream.push(frames[start : start + BLOCK])
            expected[stream.frames] = stream.prefill(QUESTION)
    saved = kills = 0
    for number in range(rounds):
        if saved == FRAMES:
            child(lambda _: _empty(folder))
            saved = 0
        calls = chance.randint(1, 60) if chance.random() < 0.7 else None
        until = None if calls else time.monotonic() + 0.3 + 2 * chance.random()
        budget = chance.choice([None, 1, 5000])
        said, killed = child(
            lambda tell, begin=saved, at=calls, held=budget: _write(folder, frames, begin, held, at, tell), until
        )
        kills += killed
        reached = max([saved, *said])
        report, failed = child(lambda tell, least=reached: tell(_check(folder, least, expected)))
        assert not failed and len(report) == 1, f"round {number}: after {reached} frames were saved"
        saved = report[0]
    print(f"{rounds} rounds, {kills} kills, seed {seed}")


def _write(
    folder: Path, frames: list[Any], begin: int, budget: int | None, calls: int | None, tell: Callable[[int], None]
) -> None:
    with kept(folder) as made:
        if calls:
            die_at(calls)
        stream = made.load_stream("walk", template=False) if begin else made.stream(**SMALL, host_bytes=budget)
        with stream:
            for start in range(begin, FRAMES, BLOCK):
                stream.push(frames[start : start + BLOCK])
                stream.prefill(QUESTION)
                stream.save("walk")
                tell(stream.frames)


def _check(folder: Path, least: int, expected: dict[int, torch.Tensor]) -> int:
    """Return how many frames the saved stream has: as many as were last said to be saved, or a block more."""
    with kept(folder) as made:
        if not least and not list(folder.rglob("walk.safetensors")):
            return 0
        with made.load_stream("walk", template=False) as stream:
            assert stream.frames in (least, least + BLOCK), f"{stream.frames} frames, {least} were saved"
            assert stream.prefill(QUESTION).equal(expected[stream.frames]), "another answer"
            left = sorted(path.name for path in folder.rglob("streams/*/*"))
            assert len(left) == 3, f"other is left than a log, a state and a lock: {left}"
            return stream.frames


def _empty(folder: Path) -> None:
    for path in folder.rglob("streams/*/*"):
        path.unlink()


def child(act: Callable[[Callable[[int], None]], object], until: float | None = None) -> tuple[list[int], bool]:
    """Run something in a child; return the numbers that it told, and whether it did not end well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act(lambda number: os.write(writing, b"%d\n" % number))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    told = b""
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            until = None
        elif part := os.read(reading, 4096):
            told += part
        else:
            break
    os.close(reading)
    return [int(line) for line in told.split()], os.waitpid(child, 0)[1] != 0


def die_at(calls: int) -> None:
    """Kill this process right before its n-th change to a file."""
    left = [calls]

    def dying(name: str) -> None:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        setattr(os, name, call)

    for name in CALLS:
        dying(name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    run(given.folder, given.rounds, given.seed)
