"""Whether a question needs a part: the answers with and without it, side by side."""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from emblema.errors import WindowError
from emblema.link.prompt import RowState
from emblema.session.replies import Reply
from emblema.window.state import WindowState

RowsAfter = Literal["clean", "kept", "fresh"]


@dataclass(frozen=True, slots=True)
class NecessityCheck:
    """What a part is worth to a question.

    Attributes:
        needed: whether the answer is another without it.
        margin: the first token's logit less the next best one's, with the part.
        margin_without: the same token's logit without the part, less the best of the others; below 0 where it loses.
        answer: the answer with the part.
        answer_without: the answer without it.
    """

    needed: bool
    margin: float
    margin_without: float
    answer: Reply
    answer_without: Reply


def sources_without(state: WindowState, at: int, rows_after: RowsAfter) -> dict[int, RowState]:
    """Return which rows each part takes in a window that a part has left.

    Args:
        state: the window.
        at: place of the first part after the one that has left.
        rows_after: which rows the parts from there on take; see `Window.needed`.

    Raises:
        WindowError: `rows_after` is unknown.
    """
    if rows_after not in get_args(RowsAfter):
        raise WindowError(f"rest is {rows_after!r}: the rows after a part can be clean, kept or fresh")
    sources = {part.number: RowState.WRITTEN for part in state.all_parts}
    for part in state.parts[at:] if rows_after != "kept" else ():
        sources[part.number] = RowState.CANONICAL if rows_after == "clean" and part.sources else RowState.MISSING
    return sources


def compare_answers(logits: Tensor, without: Tensor, answer: Reply, answer_without: Reply) -> NecessityCheck:
    """Compare two answers and their first logits, [vocab] each."""
    token = int(logits.argmax())
    return NecessityCheck(
        answer.text != answer_without.text, _margin(logits, token), _margin(without, token), answer, answer_without
    )


def _margin(logits: Tensor, token: int) -> float:
    others = logits.clone()
    others[token] = float("-inf")
    return float(logits[token] - others.max())
