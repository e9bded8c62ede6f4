"""Whether a question needs a part: the answers with and without it, side by side."""

from dataclasses import dataclass

from torch import Tensor

from emblema.session.replies import Reply


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
