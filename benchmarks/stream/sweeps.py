"""Accuracy by budget, by length of the stream, and with one thing of Mosaic changed."""

from collections.abc import Sequence

from benchmarks.stream.arms import OURS
from benchmarks.stream.estimates import accuracy, counted, encoded, median_ms, questions
from benchmarks.stream.passes import Results
from benchmarks.stream.records import PassRecord
from benchmarks.stream.tables import ALL, asked_words, by_arm, kinds_of, less
from benchmarks.stream.wanted import FITS, Wanted
from benchmarks.table import Plot, Table


def budget_table(results: Results, wanted: Wanted) -> Table:
    """Figure 10."""
    rows = []
    for kind in kinds_of(wanted):
        for budget in wanted.budgets:
            own: dict[str, list[PassRecord]] = {}
            for one, record in results.items():
                if one.budget == budget and kind in (ALL, one.place.kind):
                    own.setdefault(one.arm, []).append(record)
            rows += [
                (
                    kind,
                    budget,
                    arm,
                    accuracy(records),
                    less(own[OURS], records, arm == OURS) if OURS in own else None,
                    median_ms(records),
                    median_ms(records, cpu=True),
                    questions(records),
                )
                for arm, records in own.items()
            ]
    columns = ("kind", "budget", "method", "accuracy", "mosaic less it", "TTFT ms", "TTFT CPU ms", "asked")
    note = (
        "Mosaic's figure 10: retrieved frames, Mosaic against ReKV. Both have the same window beside them. "
        f"{asked_words(wanted).replace(f'budget {wanted.budget} frames a layer, ', '')}"
    )
    plots = _plots("budget", wanted)
    return Table("budgets", "Accuracy by budget", note, columns, tuple(rows), plots)


def length_table(results: Results, wanted: Wanted) -> Table:
    """Figure 12."""
    rows = [
        (
            kind,
            frames,
            arm,
            accuracy(records),
            median_ms(records),
            median_ms(records, cpu=True),
            encoded(records),
            questions(records),
        )
        for kind in kinds_of(wanted)
        for frames in wanted.lengths
        for arm, records in by_arm(results, kind, frames).items()
    ]
    columns = ("kind", "frames", "method", "accuracy", "TTFT ms", "TTFT CPU ms", "frames/CPU s", "asked")
    note = (
        "Mosaic's figure 12: streams of several lengths, each drawn for its length. Full attention is measured to "
        f"{FITS:,} frames. "
        f"{asked_words(wanted).replace(f'Streams of {wanted.frames} frames, asked', 'Streams are asked')}"
    )
    plots = _plots("frames", wanted)
    return Table("lengths", "Accuracy by length of the stream", note, columns, tuple(rows), plots)


def ablation_table(results: Results, wanted: Wanted) -> Table:
    """Table IV, and what else was chosen where the paper left room."""
    own = by_arm(results)
    rows = [
        (
            name,
            accuracy(records),
            less(records, own[OURS], name == OURS) if OURS in own else None,
            median_ms(records, cpu=True),
            encoded(records),
            _cuts(records),
            counted(records, "clusters"),
        )
        for name, records in own.items()
    ]
    changed = "; ".join(f"{arm.name}: {arm.told}" for arm in map(wanted.arm, own) if arm.told)
    columns = ("arm", "accuracy", "less mosaic", "TTFT CPU ms", "frames/CPU s", "cuts", "clusters")
    note = (
        "Mosaic's table IV: without clusters (ReKV, which shows nothing of what it does not retrieve, and mosaic-flat, "
        "which shows a mean row of every frame), the visual level alone, the semantic level alone; then single "
        "choices, each against Mosaic as it is by default, over the same questions; an arm that is the default's own "
        f"setting is the same. {changed}. Cuts and clusters: mean over streams, all layers together. "
        f"{asked_words(wanted)}"
    )
    plots = (Plot("arm", "accuracy", bars=True), Plot("arm", "less mosaic", bars=True))
    return Table("ablation", "Mosaic with one thing changed", note, columns, tuple(rows), plots)


def _plots(x: str, wanted: Wanted) -> tuple[Plot, ...]:
    whole = kinds_of(wanted)[-1]
    return (
        Plot(x, "accuracy", "method", split="kind", doubling=True),
        Plot(x, "TTFT CPU ms", "method", only=("kind", whole), doubling=True),
    )


def _cuts(records: Sequence[PassRecord]) -> float | None:
    return counted(records, "semantic_cuts", "visual_cuts")
