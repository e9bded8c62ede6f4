"""Whether a part is still needed for a question: the answers with and without it, side by side."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from torch import Tensor

from emblema.errors import WindowError
from emblema.window.laying import Serving
from emblema.window.seam import A, Answer
from emblema.window.state import State

N = TypeVar("N", bound=Answer)
Rest = Literal["clean", "kept", "fresh"]


@dataclass(frozen=True, slots=True)
class Need(Generic[A]):
    """What a part is worth to a question.

    Attributes:
        needed: whether the answer is another one without it.
        margin: by how much the first token's logit stands above the next best one's, with the part.
        margin_without: the same token's logit without the part, above the best of the others; below 0 where it loses.
        answer: the answer with the part.
        answer_without: the answer without it.
    """

    needed: bool
    margin: float
    margin_without: float
    answer: A
    answer_without: A


def rest_served(state: State, at: int, rest: Rest) -> dict[int, Serving]:
    """How the parts of a window are served that a part before the place `at` has left.

    Raises:
        WindowError: there is no such way.
    """
    if rest not in get_args(Rest):
        raise WindowError(f"rest is {rest!r}: what stands behind a part can be clean, kept or fresh")
    serving: dict[int, Serving] = {part.number: "settled" for part in state.all}
    for part in state.parts[at:] if rest != "kept" else ():
        serving[part.number] = "canonical" if rest == "clean" and part.sources else "fresh"
    return serving


def compared(logits: Tensor, without: Tensor, answer: N, answer_without: N) -> Need[N]:
    """The need that two answers and their first logits [vocab] show."""
    token = int(logits.argmax())
    return Need(
        answer.text != answer_without.text, _margin(logits, token), _margin(without, token), answer, answer_without
    )


def _margin(logits: Tensor, token: int) -> float:
    others = logits.clone()
    others[token] = float("-inf")
    return float(logits[token] - others.max())
