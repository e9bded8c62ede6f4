"""Work of a thread beside the model's on a GPU, on a stream of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

HIGH = -1
"""Priority of the model's own recorded steps; what is done beside it has the lowest, 0."""


@contextmanager
def beside_model(device: torch.device) -> Iterator[None]:
    """Have what the block tells a GPU run beside the model, and wait until it is done; elsewhere it runs as it is.

    It begins behind all that the device's default stream has been told by now. What the block makes lies in memory of
    its stream: hand out copies made after it, or the memory may be used anew while the model still reads it.
    """
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        # What it reads may be let go of after the block.
        stream.synchronize()
