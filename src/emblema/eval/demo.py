"""The demo: the same pages asked about in six arrangements, by four strategies, each with its own history.

Every strategy has an engine of its own on the one model, so that none profits from another's prompts. A round sends all
requests once, strategy by strategy for each question, and begins with empty prefixes and no patches: a prefix hit
comes from an earlier, different prompt of the same round, never from the same prompt asked before.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from emblema.engine.conversation import PromptPart
from emblema.engine.engine import Engine
from emblema.engine.replies import Reply
from emblema.eval.demo_media import SITUATIONS, DemoMedia, Situation, chunks_of, demo_media
from emblema.eval.demo_result import STRATEGIES, DemoResult, Outcome, Request
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk, Clip
from emblema.link.policy.policy import Policy
from emblema.link.trace import Usage
from emblema.models.load import load_model

SECONDS = 50.0
"""The demo sends no further round once the next one would take it past this."""
ANSWER_TOKENS = 4


def run_demo(
    console: Console,
    model: str = "reference",
    rounds: int = 3,
    device: str | None = None,
    threads: int = 1,
    began: float | None = None,
    media: DemoMedia | None = None,
    situations: Sequence[Situation] = SITUATIONS,
) -> DemoResult:
    """Load, add, ask; shows progress on the console.

    Args:
        rounds: how often every request is sent; fewer if the demo would take longer than `SECONDS`.
        threads: of torch, for every strategy alike. On few and shared cores, one is the fastest for tensors this small.
        began: when the demo began, by `time.perf_counter`.
        media: the package's own if left out.
        situations: the arrangements, in the order in which they are asked about.
    """
    began = time.perf_counter() if began is None else began
    torch.set_num_threads(threads)
    media = demo_media() if media is None else media
    with steps(console, "loading the model", 1) as advance:
        loaded, processor = load_model(model, device=device)
        lanes = {strategy: Engine(loaded, processor, policy=Policy.quiet()) for strategy in STRATEGIES}
        advance()
    first = lanes[STRATEGIES[0]]
    added, adding_seconds = add_media(console, first, media)
    chunks = [chunk for piece in added.values() for chunk in chunks_of(piece)]
    requests = list(requests_of(media, situations))
    outcomes: dict[tuple[str, int, str], Outcome] = {}
    done = 0
    title = f"asking {len(requests)} questions, {len(lanes)} ways, {rounds} times"
    with steps(console, title, rounds * len(requests) * len(lanes)) as advance:
        for number in range(rounds):
            started = time.perf_counter()
            forget(lanes, chunks)
            for index, request in enumerate(requests):
                for turn in range(len(lanes)):
                    strategy = STRATEGIES[(turn + index + number) % len(lanes)]
                    parts = situations[request.situation].parts(media, added, request.question.text)
                    ask(lanes[strategy], strategy, request, parts, outcomes)
                    advance()
            done += 1
            took = time.perf_counter() - started
            if time.perf_counter() - began + took > SECONDS:
                break
    return DemoResult(
        model=Path(model).name,
        media=media,
        situations=tuple(situations),
        outcomes=tuple(sorted(outcomes.values(), key=_reading_order)),
        rounds=done,
        wanted=rounds,
        threads=torch.get_num_threads(),
        device=str(first.adapter.device),
        adding_seconds=adding_seconds,
        chunks=len(chunks),
        seconds=time.perf_counter() - began,
    )


def add_media(console: Console, engine: Engine, media: DemoMedia) -> tuple[dict[str, Chunk | Clip], float]:
    """Every picture and the clip, encoded and prefilled once, with the seconds that took."""
    began = time.perf_counter()
    added: dict[str, Chunk | Clip] = {}
    with steps(console, "adding pictures and clip (encode and prefill, once)", len(media.pictures) + 1) as advance:
        for name in (*media.pictures, media.clip):
            added[name] = engine.add(media.folder / name, fps=media.frames_per_second)
            advance()
    return added, time.perf_counter() - began


def requests_of(media: DemoMedia, situations: Sequence[Situation]) -> Iterator[Request]:
    """All requests of a round, in order."""
    for index, situation in enumerate(situations):
        for place, question in enumerate(situation.questions(media)):
            yield Request(index, question, place)


def forget(lanes: Mapping[str, Engine], chunks: list[Chunk]) -> None:
    """Leave every engine with the chunks alone: no kept prefixes, no patches."""
    for engine in lanes.values():
        engine.forget_prompts()
        for chunk in chunks:
            engine.store.forget_patches(chunk.id)


def ask(
    engine: Engine,
    strategy: str,
    request: Request,
    parts: list[PromptPart],
    outcomes: dict[tuple[str, int, str], Outcome],
) -> None:
    """Send a request; where it formed patches, send it once more, and time that as reuse."""

    def send() -> Reply:
        return engine.generate(parts, strategy, max_new_tokens=ANSWER_TOKENS)

    reply = send()
    paid: Usage | None = None
    if reply.usage.forming_tokens:
        paid = reply.usage
        reply = send()
    key = (strategy, request.situation, request.question.text)
    outcome = outcomes.setdefault(key, Outcome(request, strategy, reply.text, reply.token_ids, reply.usage, reply.plan))
    outcome.usage = reply.usage
    outcome.seconds.append(reply.usage.ttft_seconds)
    if paid is not None:
        outcome.forming_tokens = paid.forming_tokens
        outcome.forming_seconds.append(paid.ttft_seconds - reply.usage.ttft_seconds)


def _reading_order(outcome: Outcome) -> tuple[int, int, int]:
    return outcome.request.situation, outcome.request.place, STRATEGIES.index(outcome.strategy)
