"""`emblema why`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from emblema.cli.options import Json, Plain
from emblema.errors import EmblemaError

if TYPE_CHECKING:
    from emblema.link.miss_log import MissSummary


def why(
    log: Annotated[str, typer.Argument(help="Log of a server, or replies, a line each; - for the standard input.")],
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Say why pictures were computed and not taken, what that cost, and what to change."""
    from emblema.cli.screen import console, show_json, table
    from emblema.link.miss_log import summarize

    with _opened(log) as file:
        summary = summarize(file)
    found = _lines(summary)
    if as_json:
        whole = {"requests": summary.requests, "rows": summary.rows, "broken_lines": summary.broken_lines}
        show_json({**whole, "reasons": found})
        return
    screen = console(plain)
    if summary.broken_lines:
        first = ", ".join(map(str, summary.broken))
        screen.print(f"{summary.broken_lines} of its lines cannot be read, the first: {first}", markup=False)
    if not summary.requests:
        raise EmblemaError(f"{log} tells of no request with pictures: give a server's log, as JSON, or replies")
    numbers = ("pieces", "rows", "share")
    shown = table(
        "reason", *numbers, "for example", "what to change", right=numbers, title="Why pictures were computed"
    )
    for line in found:
        example = f"line {line['line']}, picture {line['part']}" + (f": {line['detail']}" if line["detail"] else "")
        counts = (str(line["pieces"]), str(line["rows"]), f"{line['share']:.1%}")
        shown.add_row(*(_plain(cell) for cell in (line["reason"], *counts, example, line["change"])))
    screen.print(shown)
    missed = sum(summary.missed.values())
    screen.print(
        f"{missed} of {summary.rows} rows of {summary.requests} requests were computed for want of stored ones. "
        "share: of all rows. docs/troubleshooting.md has every reason."
    )


def _plain(text: str) -> str:
    """Return a cell's text, in which brackets mean nothing."""
    from rich.markup import escape

    return escape(text.replace("`", ""))


def _lines(summary: "MissSummary") -> list[dict[str, Any]]:
    """Return a line for each reason, the most rows first."""
    from emblema.link.miss_reasons import ADVICE, MissReason

    lines = []
    for reason, rows in summary.missed.most_common():
        example, known = summary.examples[reason][1], reason in set(MissReason)
        advice = ADVICE[MissReason(reason)] if known else None
        lines.append(
            {
                "reason": reason, "pieces": summary.pieces[reason], "rows": rows,
                "share": rows / summary.rows if summary.rows else 0.0,
                "request": example.request, "line": example.line, "part": example.part, "detail": example.detail,
                "cause": "this version does not know it" if advice is None else advice.cause,
                "change": "ask the version that wrote it" if advice is None else advice.change,
            }
        )  # fmt: skip
    return lines


@contextmanager
def _opened(log: str) -> Iterator[BinaryIO]:
    """Open a log, or the standard input; `EmblemaError` where it cannot be read."""
    try:
        if log == "-":
            yield sys.stdin.buffer
        else:
            with Path(log).open("rb") as file:
                yield file
    except OSError as error:
        raise EmblemaError(f"{log} cannot be read ({error.strerror or error}): give a server's log") from error
