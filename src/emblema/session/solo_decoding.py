"""Decoding one reply at a time, by recorded steps where the device has them."""

from collections.abc import Collection, Iterator

from emblema.errors import EmblemaError
from emblema.models.adapter import Adapter
from emblema.models.decode_steps import StepRecorder
from emblema.session.decode_batch import DecodeBatch, DecodeSequence
from emblema.session.decoding import DecodeStart, Sampler, decode


class SoloDecoding:
    """Decodes replies of one model, one after another; steps that were recorded for one serve the next.

    Args:
        adapter: the model; one thread owns it.
        recorder: records steps; None runs each of them.
    """

    def __init__(self, adapter: Adapter, recorder: StepRecorder | None) -> None:
        self._adapter = adapter
        # Whether a reply is under way in the batch.
        self._busy = False
        self._batch = None if recorder is None else DecodeBatch(adapter, 0, recorder)

    def tokens(self, start: DecodeStart, sampler: Sampler, ends: Collection[int]) -> Iterator[int]:
        """Yield new tokens as `decode` does. While one reply is under way, others beside it are run.

        Raises:
            EmblemaError: no token can be chosen.
        """
        if self._batch is None or self._busy:
            yield from decode(self._adapter, start, sampler, ends)
            return
        self._busy = True
        try:
            yield from _tokens(self._batch, start, sampler, ends)
        finally:
            self._busy = False


def _tokens(batch: DecodeBatch, start: DecodeStart, sampler: Sampler, ends: Collection[int]) -> Iterator[int]:
    sequence = DecodeSequence(start, sampler)
    token, left = sequence.first.token, sampler.sampling.max_new_tokens - 1
    yield token
    if token in ends or left == 0:
        return
    batch.admit(start, sequence)
    try:
        while token not in ends and left > 0:
            ((_, made),) = batch.step()
            if isinstance(made, EmblemaError):
                raise made
            token, left = made.token, left - 1
            yield token
    finally:
        batch.remove(sequence)
