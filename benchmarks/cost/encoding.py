"""Encoding pictures, over prefilling as many rows."""

from collections.abc import Sequence

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved, untimed
from benchmarks.table import Cell, Table


def encode_table(subject: CostSubject, lengths: Sequence[int], pace: Pace) -> Table:
    """Return the encoder's time by the tokens of a picture, and that of the rows' prefill alone."""
    rows: list[tuple[Cell, ...]] = []
    for wanted in lengths:
        prepared, tokens = subject.media(wanted)
        actions: dict[str, Action] = {
            "encode": untimed(subject.adapter.encode, prepared),
            "prefill": untimed(subject.adapter.capture, subject.encoded(tokens)),
        }
        found = interleaved(actions, subject.device, pace)
        again = subject.reprefill(tokens, pace)
        encode_seconds, alone = found.median("encode"), found.median("prefill")
        rows.append((tokens, 1e3 * encode_seconds, 1e3 * alone, encode_seconds / alone, encode_seconds / again))
    return Table(
        "encode",
        "Encoding a picture, and prefilling it alone",
        "Of random pixels, as many as give so many tokens. over re-prefill: over prefilling a prompt of as many rows.",
        ("rows", "encode ms", "prefill alone ms", "over prefill alone", "over re-prefill"),
        tuple(rows),
    )
