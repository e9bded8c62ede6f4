"""A session as plain data: turns, and a request for each, which sends the whole conversation again.

A turn is what the agent says, what its tool answers, a screenshot and a question. A rule decides which screenshots a
request shows. What it shows again is the same to the byte. A conversation that would be longer than the model allows
begins anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.agents.rules import RULES, Kept, KeptPicture, RuleLimits, left
from benchmarks.agents.worlds import WORLDS, AgentQuestion, World, world_of
from benchmarks.tasks.building import stream
from benchmarks.tasks.tiles import CELL
from emblema.errors import PromptError

SYSTEM, TASK = "you are a helpful assistant .", "look at each picture and answer the question ."
MESSAGE_TOKENS, WRAPPED = 6, 2
"""Tokens that a template writes around a message, and around a picture; for estimates."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The shape of sessions.

    Attributes:
        size: pixels along a screenshot's side; a picture has about a token for 28 x 28 of them.
        length: tokens of a conversation, estimated by words; one that would be longer begins anew.
    """

    world: str = "tasks"
    requests: int = 100
    size: int = 448
    length: int = 4_096
    limits: RuleLimits = RuleLimits()

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise PromptError(f"unknown world {self.world!r}: choose one of {', '.join(WORLDS)}")
        if self.requests < 1 or self.size < 4 * CELL or self.size % (2 * CELL):
            raise PromptError(f"{self.requests} requests of {self.size} px: give one, and a multiple of {2 * CELL} px")
        if self.length < 2 * self.tokens(KeptPicture(0)):
            raise PromptError(
                f"a conversation of {self.length} tokens holds no two pictures: give more, or a smaller size"
            )

    def tokens(self, picture: KeptPicture) -> int:
        """Return an estimate of a picture's tokens."""
        side = self.size // CELL
        return (side // 2 if picture.cropped else side) ** 2 + WRAPPED


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """What a turn adds: what the agent said before, what the tool answers, and what is asked."""

    said: str
    told: str
    question: AgentQuestion


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A request: the turns from `start` to `turn`, and the pictures that it shows.

    Attributes:
        gone: pictures of the request before that it does not show as they were.
        anew: whether the conversation begins here.
    """

    turn: int
    start: int
    kept: Kept
    gone: Kept
    anew: bool


@dataclass(frozen=True, eq=False)
class AgentSession:
    """Turns, requests and their screens under one rule."""

    settings: SessionSettings
    rule: str
    world: World
    turns: tuple[SessionTurn, ...]
    requests: tuple[SessionRequest, ...]

    def messages(self, request: SessionRequest, show: Callable[[KeptPicture], Any]) -> list[dict[str, Any]]:
        """Return a request's messages in OpenAI's form; `show` returns the part of a picture, or parts."""
        shown = {picture.turn: picture for picture in request.kept}
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for number in range(request.start, request.turn + 1):
            turn = self.turns[number]
            told = TASK if number == request.start else turn.told
            if number > request.start:
                messages.append({"role": "assistant", "content": turn.said})
            content: list[Any] = [{"type": "text", "text": f"{told}\n"}]
            content += [show(shown[number])] if number in shown else []
            messages.append({"role": "user", "content": [*content, {"type": "text", "text": turn.question.text}]})
        return messages


def session_of(settings: SessionSettings, rule: str, seed: int) -> AgentSession:
    """Return the session of a seed under a rule; fewer requests are the first of more.

    Rules have different screens, so that nothing of one is known to a server from another.

    Raises:
        PromptError: there is no rule of that name.
    """
    if rule not in RULES:
        raise PromptError(f"unknown rule {rule!r}: choose one of {', '.join(RULES)}")
    world = world_of(settings.world, stream(f"agents-{rule}", seed, settings.size), settings.size)
    turns, requests = list[SessionTurn](), list[SessionRequest]()
    start, before, said = 0, Kept(), ""
    for index in range(settings.requests):
        told = world.act()
        kept = RULES[rule]((*before, KeptPicture(index)), settings.limits, settings.tokens)
        anew = index == 0 or _estimate(settings, turns[start:], kept) > settings.length
        if anew:
            start, kept = index, (KeptPicture(index),)
        question = world.ask(kept, start)
        turns.append(SessionTurn(said, told, question))
        requests.append(SessionRequest(index, start, kept, left(before, kept), anew))
        before, said = kept, question.said
    return AgentSession(settings, rule, world, tuple(turns), tuple(requests))


def _estimate(settings: SessionSettings, turns: list[SessionTurn], kept: Kept) -> int:
    """Return an estimate of the tokens of some turns and one more, with the pictures that are kept."""
    words = [f"{turn.said} {turn.told} {turn.question.text}".split() for turn in turns]
    most = max(map(len, words), default=0)
    texts = sum(map(len, words)) + most + 2 * MESSAGE_TOKENS * (len(words) + 1)
    return texts + sum(map(settings.tokens, kept))
