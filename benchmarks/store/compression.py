"""What smaller rows on disk cost: bytes, and how far answers move, for each compression of the format.

Chunks go through the format's own bytes and back. Patches are those formed from the rows as computed, as a store that
compresses on its way to disk has them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.intervals import Interval, bootstrap
from benchmarks.tasks import Legend, generate
from benchmarks.tasks.prompts import answer_token
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, StoreError
from emblema.eval.metrics import agreement, divergence
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.policy.policy import Policy
from emblema.session.prompt_reader import PromptPart, slid
from emblema.store import codec, format
from emblema.store.compression import COMPRESSIONS, Compression
from emblema.store.record import SHARED

SETTINGS = ("visible", "slid")
STRATEGIES = ("blind", "patch-25%")
KINDS = ("colour", "land")


@dataclass(frozen=True, slots=True)
class Fidelity:
    """One compression, strategy and setting; intervals are 95 %, bootstrap by episode.

    Attributes:
        moved: KL from the same strategy on uncompressed rows, nats.
        divergence: KL from re-prefill, nats.
        further: how much further from re-prefill than uncompressed rows, nats, paired.
        lost: accuracy lost against uncompressed rows, paired.
        same: share of the answers that are as on uncompressed rows.
    """

    compression: str
    strategy: str
    setting: str
    items: int
    moved: Interval
    divergence: Interval
    further: Interval
    lost: Interval
    same: float


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """Bytes of all chunks' files and of the rows in them by compression, and every line of fidelity."""

    episodes: int
    chunks: int
    files: dict[str, int]
    rows: dict[str, int]
    lines: tuple[Fidelity, ...]

    def line(self, compression: str, strategy: str, setting: str) -> Fidelity:
        wanted = (compression, strategy, setting)
        return next(one for one in self.lines if (one.compression, one.strategy, one.setting) == wanted)


@dataclass(slots=True)
class _Answers:
    logits: list[np.ndarray] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [int(one.argmax()) for one in self.logits]


def measure(model: Any, processor: Any, episodes: int, seed: int, screen: Console) -> CompressionResult:
    """Ask the questions of fresh episodes in both settings, of every compression."""
    quiet = Policy.quiet()
    engines: dict[Compression, Engine] = {
        one: Engine(model, processor, policy=quiet) for one in COMPRESSIONS if one != "none"
    }
    original = Engine(model, processor, policy=quiet)
    everyone: dict[Compression, Engine] = {"none": original, **engines}
    answers: dict[tuple[str, str, str], _Answers] = {}
    references = {setting: _Answers() for setting in SETTINGS}
    expected: list[int] = []
    owners: list[int] = []
    files: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    count = 0
    with steps(screen, f"compressions on {episodes} episodes", episodes) as advance:
        for episode in generate("maps", seed, episodes):
            pages = [(page, original.add(page.image())) for page in episode.pages if hasattr(page, "image")]
            pieces = [(chunk, isinstance(page, Legend)) for page, chunk in pages if isinstance(chunk, Chunk)]
            count += len(pieces)
            for name, engine in engines.items():
                for chunk, _ in pieces:
                    engine.store.put(through(chunk, name)[0])
            for name in COMPRESSIONS:
                sizes = [through(chunk, name)[1:] for chunk, _ in pieces]
                files[name] += sum(whole for whole, _ in sizes)
                rows[name] += sum(own for _, own in sizes)
            for question in (one for one in episode.questions if one.kind in KINDS):
                token = answer_token(original, question.answer)
                if token is None:
                    raise EmblemaError(f"the model's vocabulary does not hold {question.answer!r}: give a bundled one")
                expected.append(token)
                owners.append(episode.item)
                for setting in SETTINGS:
                    parts: list[PromptPart] = [
                        slid(chunk) if legend and setting == "slid" else chunk for chunk, legend in pieces
                    ]
                    parts.append(question.text)
                    references[setting].logits.append(original.prefill(parts, "full").logits.numpy())
                    share_patches(original, engines.values(), parts)
                    # On uncompressed rows, which come back from the format bit by bit, `original` answers.
                    for name, engine in everyone.items():
                        for strategy in STRATEGIES:
                            logits = engine.prefill(parts, strategy).logits.numpy()
                            answers.setdefault((name, strategy, setting), _Answers()).logits.append(logits)
            for engine in (original, *engines.values()):
                engine.forget_prompts()
                for chunk, _ in pieces:
                    engine.store.delete(chunk.id)
            advance()
    lines = [
        _line(answers, references[setting], expected, owners, name, strategy, setting)
        for setting in SETTINGS
        for strategy in STRATEGIES
        for name in COMPRESSIONS
    ]
    return CompressionResult(episodes, count, dict(files), dict(rows), tuple(lines))


def through(chunk: Chunk, compression: Compression) -> tuple[Chunk, int, int]:
    """A chunk as it comes back from a file, with the file's bytes and those of the rows in it."""
    whole = replace(chunk, rows=tuple(chunk.rows))
    record = codec.chunk_record(whole, SHARED, compression=compression, created=0.0)
    contents = b"".join(format.buffers(record))

    def fill(offset: int, target: memoryview) -> None:
        target[:] = contents[offset : offset + target.nbytes]

    with format.open_source(fill, len(contents), chunk.id) as reader:
        rows = tuple(codec.read_layers(reader))
        own = sum(size for name, size in reader.header.sizes.items() if name.startswith("layers."))
        if compression == "none" and not all(map(_equal, rows, whole.rows)):
            raise StoreError(f"{chunk.id[:12]} did not come back from its file as it was, uncompressed")
        return replace(chunk, encoded=codec.read_encoded(reader), rows=rows), len(contents), own


def _equal(one: LayerRows, other: LayerRows) -> bool:
    return torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)


def share_patches(original: Engine, engines: Iterable[Engine], parts: Sequence[PromptPart]) -> None:
    """Form a prompt's patches from the rows as computed, and hand them to every engine."""
    plan = original.prefill(parts, STRATEGIES[-1]).plan
    for key in {part.patch.key for part in plan.ranges if part.patch is not None}:
        patch = original.store.find_patch(key)
        for engine in engines:
            if patch is not None:
                engine.store.put_patch(key, patch)


def _line(
    answers: dict[tuple[str, str, str], _Answers],
    reference: _Answers,
    expected: Sequence[int],
    owners: Sequence[int],
    name: str,
    strategy: str,
    setting: str,
) -> Fidelity:
    own, whole = answers[name, strategy, setting], answers["none", strategy, setting]
    away = _losses(reference, own)
    right, before = (np.equal(one.tokens, expected).astype(np.float64) for one in (own, whole))
    return Fidelity(
        compression=name,
        strategy=strategy,
        setting=setting,
        items=len(own.logits),
        moved=bootstrap(_losses(whole, own), owners),
        divergence=bootstrap(away, owners),
        further=bootstrap(np.subtract(away, _losses(reference, whole)), owners),
        lost=bootstrap(before - right, owners),
        same=agreement(whole.tokens, own.tokens),
    )


def _losses(reference: _Answers, method: _Answers) -> list[float]:
    return [divergence(one, other) for one, other in zip(reference.logits, method.logits, strict=True)]
