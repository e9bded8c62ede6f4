"""Memories that are compared: those of the package, and others with the same window, written from their papers."""

from collections.abc import Mapping

from benchmarks.stream.methods.full import FullAttention
from benchmarks.stream.methods.livevlm import LiveVlm, LiveVlmByRanks
from benchmarks.stream.methods.nocache import NoCache
from benchmarks.stream.methods.rekv import Rekv, RekvByAttention, RekvByRanks, RekvOnePart
from benchmarks.stream.methods.sliding import Sliding
from benchmarks.stream.methods.streammem import StreamMem
from emblema.stream import methods
from emblema.stream.method import Method, StreamContext
from emblema.stream.mosaic.paper import PaperMosaic


class PaperVisual(PaperMosaic):
    """Mosaic whose layers follow its visual clusters (its table IV)."""

    name = "mosaic-paper-visual"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context, levels="visual")


class PaperSemantic(PaperMosaic):
    """Mosaic with one visual cluster (its table IV)."""

    name = "mosaic-paper-semantic"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context, levels="semantic")


METHODS: Mapping[str, type[Method]] = {
    **methods.METHODS,
    **{
        kind.name: kind
        for kind in (
            *(FullAttention, Sliding, NoCache, Rekv, LiveVlm, StreamMem),
            *(RekvByAttention, RekvByRanks, RekvOnePart, LiveVlmByRanks, PaperVisual, PaperSemantic),
        )
    },
}
"""Name to method."""
