"""The bundled model's bars: fresh episodes, legends visible or slid, re-prefilled or reused."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from torch import Tensor

from benchmarks.tasks import Episode, Legend, SceneClip, generate, write_clip
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.metrics import (
    Interval,
    Share,
    agreement,
    bootstrap,
    bootstrap_eta,
    divergence,
    flip_recovery,
    median_eta,
)
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.chunk import Clip as ClipPiece
from emblema.session.prompt_reader import PromptPart, slid

SETTINGS = ("visible", "slid")
FULL, BLIND = "full", "blind"
STRATEGIES = (FULL, BLIND, "patch-25%", "patch-6%")
KINDS = ("colour", "land")
HOPS = {"colour": "single-hop", "land": "multi-hop"}
SAMPLED = 20
"""One episode in so many is also checked for `prefix` against `full`, logits against logits."""


@dataclass(slots=True)
class Answers:
    """The answers of one strategy in one setting, item by item: token, right or not, nats from re-prefill."""

    tokens: list[int] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, logits: Tensor, reference: Tensor, expected: int) -> None:
        """Take in the logits of an item's answer."""
        token = int(logits.argmax())
        self.tokens.append(token)
        self.right.append(token == expected)
        self.losses.append(0.0 if logits is reference else divergence(reference.cpu().numpy(), logits.cpu().numpy()))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: a strategy on the questions of one kind in one setting.

    Attributes:
        loss: paired accuracy lost against re-prefill.
        eta, median_eta, flips, agreement: see `emblema.eval.metrics`.
    """

    setting: str
    kind: str
    strategy: str
    items: int
    accuracy: Interval
    loss: Interval
    agreement: float
    divergence: float
    eta: Interval
    median_eta: Share
    flips: Share


@dataclass(frozen=True, slots=True)
class BarsResult:
    """Everything that was measured; `exactness` is the largest |logit(prefix) - logit(full)| of the sample."""

    model: str
    task: str
    seed: int
    episodes: int
    rows: tuple[Row, ...]
    exactness: float
    exactness_items: int

    def row(self, setting: str, kind: str, strategy: str) -> Row:
        """One line."""
        return next(one for one in self.rows if (one.setting, one.kind, one.strategy) == (setting, kind, strategy))


def measure(
    engine: Engine,
    task: str,
    seed: int,
    episodes: int,
    *,
    kinds: Sequence[str] = KINDS,
    strategies: Sequence[str] = STRATEGIES,
    screen: Console | None = None,
) -> BarsResult:
    """Ask every question of `episodes` fresh episodes in both settings under every strategy.

    Within an episode the first visible question is re-prefilled by `full` and the others by `prefix`, which is exact;
    that it is, is checked on one episode in `SAMPLED`.
    """
    answers = {(setting, strategy): Answers() for setting in SETTINGS for strategy in strategies}
    owners: list[int] = []
    asked: list[str] = []
    gaps: list[float] = []
    with steps(screen or Console(quiet=True), f"{task}, seed {seed}: {episodes} episodes", episodes) as advance:
        for episode in generate(task, seed, episodes):
            with tempfile.TemporaryDirectory() as folder:
                pieces = list(pages_of(engine, episode, Path(folder)))
            questions = [one for one in episode.questions if one.kind in kinds]
            owners += [episode.item] * len(questions)
            asked += [one.kind for one in questions]
            for index, question in enumerate(questions):
                expected = answer_token(engine, question.answer)
                for setting in SETTINGS:
                    parts = [*parts_of(pieces, setting), question.text]
                    exact = FULL if index == 0 or setting == "slid" else "prefix"
                    reference = engine.prefill(parts, exact).logits
                    if exact == "prefix" and index == 1 and episode.item % SAMPLED == 0:
                        gaps.append(float((engine.prefill(parts, FULL).logits - reference).abs().max()))
                    for strategy in strategies:
                        logits = reference if strategy == FULL else engine.prefill(parts, strategy).logits
                        answers[setting, strategy].add(logits, reference, expected)
            forget(engine, pieces)
            advance()
    rows = [
        row_of(answers, np.array(owners), np.array(asked) == kind, setting, kind, strategy)
        for setting in SETTINGS
        for kind in kinds
        if kind in asked
        for strategy in strategies
    ]
    model = str(engine.adapter.model.config.name_or_path or engine.adapter.family)
    return BarsResult(Path(model).name, task, seed, episodes, tuple(rows), max(gaps, default=0.0), len(gaps))


def pages_of(engine: Engine, episode: Episode, folder: Path) -> Iterator[tuple[Chunk, bool]]:
    """The episode's chunks in order, each with whether it is a legend."""
    for index, page in enumerate(episode.pages):
        if isinstance(page, SceneClip):
            path = folder / f"{index}.mp4"
            write_clip(page, path)
            clip = engine.add(path, kind="video", frames_per_segment=page.seconds)
            if isinstance(clip, ClipPiece):
                yield from ((chunk, isinstance(scene, Legend)) for chunk, scene in zip(clip, page.scenes, strict=True))
            continue
        chunk = engine.add(page.image())
        if isinstance(chunk, Chunk):
            yield chunk, isinstance(page, Legend)


def parts_of(pieces: Sequence[tuple[Chunk, bool]], setting: str) -> list[PromptPart]:
    """The pages of a prompt; in the slid setting the window has moved past the legends."""
    return [slid(chunk) if legend and setting == "slid" else chunk for chunk, legend in pieces]


def answer_token(engine: Engine, answer: str) -> int:
    """The first token of an answer.

    Raises:
        EmblemaError: the model's vocabulary does not hold it.
    """
    tokenizer = engine.template.tokenizer
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if not ids or ids[0] == getattr(tokenizer, "unk_token_id", None):
        raise EmblemaError(f"the model's vocabulary does not hold {answer!r}: these tasks suit the bundled model")
    return int(ids[0])


def forget(engine: Engine, pieces: Sequence[tuple[Chunk, bool]]) -> None:
    """Let go of an episode's chunks, patches and prefixes."""
    engine.forget_prompts()
    for chunk, _ in pieces:
        engine.store.delete(chunk.id)


def row_of(
    answers: dict[tuple[str, str], Answers],
    owners: np.ndarray,
    chosen: np.ndarray,
    setting: str,
    kind: str,
    strategy: str,
) -> Row:
    """One line, from the items `chosen`."""
    full, blind, own = (_chosen(answers[setting, name], chosen) for name in (FULL, BLIND, strategy))
    episodes = owners[chosen]
    return Row(
        setting=setting,
        kind=HOPS.get(kind, kind),
        strategy=strategy,
        items=int(chosen.sum()),
        accuracy=bootstrap(own.right, episodes),
        loss=bootstrap(np.subtract(full.right, own.right, dtype=np.float64), episodes),
        agreement=agreement(full.tokens, own.tokens),
        divergence=float(np.mean(own.losses)),
        eta=bootstrap_eta(own.losses, blind.losses, episodes),
        median_eta=median_eta(own.losses, blind.losses),
        flips=flip_recovery(full.tokens, blind.tokens, own.tokens),
    )


def _chosen(answers: Answers, chosen: np.ndarray) -> Answers:
    places = np.flatnonzero(chosen)
    return Answers(
        [answers.tokens[place] for place in places],
        [answers.right[place] for place in places],
        [answers.losses[place] for place in places],
    )
