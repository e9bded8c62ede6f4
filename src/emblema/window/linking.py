"""Linking a window as a prompt of its session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emblema.link.prompt import RowState
from emblema.link.strategies.base import Strategy
from emblema.session.decoding import Sampling
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.session import DECODE_RESERVE, Session
from emblema.store.keys import ArtifactKind
from emblema.window.layout import lay_out
from emblema.window.log import LogEntry
from emblema.window.parts import WindowPart


@dataclass(frozen=True, slots=True)
class WindowQuestion:
    """A question about a window.

    Attributes:
        text: the question, as text or token ids; empty to go on after the parts.
        strategy: how canonical rows are taken: a strategy, or its name.
        sampling: how the answer is decoded; None where nothing is.
    """

    text: str | Sequence[int]
    strategy: str | Strategy
    sampling: Sampling | None = None

    @property
    def strategy_name(self) -> str:
        return self.strategy if isinstance(self.strategy, str) else self.strategy.name


def link_parts(
    session: Session,
    parts: Sequence[WindowPart],
    sources: Mapping[int, RowState],
    closing: tuple[int, ...],
    question: WindowQuestion,
    entry: LogEntry,
) -> Prefill:
    """Link parts and token ids after them as a prompt, and count what it cost.

    Args:
        session: links the prompt.
        parts: the window's, from the first.
        sources: for each part's number, which rows it takes.
        closing: token ids after the parts.
        question: says the strategy, and how many rows are decoded after the prompt.
        entry: counts the cost.

    Raises:
        PromptError: the model's context has no room.
    """
    prompt = session.prompt_of(lay_out(parts, sources, closing))
    new_tokens = 0 if question.sampling is None else question.sampling.max_new_tokens
    session.refuse_without_room(prompt, new_tokens)
    chunks = {part.chunk.id for part in prompt.chunk_parts if part.state is RowState.CANONICAL}
    stored = {key for chunk in chunks for key in session.store.patch_keys(chunk)}
    queued = session.policy_runtime.patches_queued
    prefill = session.link(LinkRequest(prompt, question.strategy, min(new_tokens, DECODE_RESERVE)))
    patches = [rows.patch.key for rows in prefill.plan.ranges if rows.patch]
    formed = {key for key in patches if key.kind is not ArtifactKind.REPAIR} - stored
    entry.count(prefill.usage, prefill.trace)
    entry.patches_formed += len(formed) + session.policy_runtime.patches_queued - queued
    return prefill
