"""One of several processes that encode at once: `python -m benchmarks.stream.systems.worker JOB`, a job as JSON.

It loads, says `ready`, waits for a line, encodes, and says what that took as JSON.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.stream.systems.clock import timed
from benchmarks.tasks.streams import make_stream, random_of
from emblema.engine.engine import Engine
from emblema.stream.settings import StreamSettings, change_settings


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker does: `frames` of a film of its own, behind a first block that is not counted."""

    model: str
    device: str
    kind: str
    frames: int
    seed: int
    item: int
    settings: Mapping[str, Any]


def main(told: str) -> None:
    """Do a job."""
    torch.set_num_threads(1)
    job = Job(**json.loads(told))
    settings = change_settings(StreamSettings(), job.settings)
    block, frames = settings.block, job.frames + settings.block
    film = make_stream(random_of(job.kind, frames, job.seed, job.item), job.kind, frames, job.seed, job.item)
    pictures = list(film.frames())
    with Engine.load(job.model, device=job.device) as engine, engine.stream("mosaic", settings) as stream:
        stream.push(pictures[:block])
        print("ready", flush=True)
        sys.stdin.readline()
        _, spent = timed(lambda: [stream.push(pictures[at : at + block]) for at in range(block, frames, block)])
    print(json.dumps(asdict(spent)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
