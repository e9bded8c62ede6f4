"""What smaller rows on disk cost: bytes, and how far answers move, for each compression of the format.

Chunks go through the format's own bytes and back. Patches are those formed from the rows as computed, as a store that
compresses on its way to disk has them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.intervals import Interval, bootstrap
from benchmarks.table import Plot, Table
from benchmarks.tasks import Legend, generate
from benchmarks.tasks.prompts import answer_token
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, StoreError
from emblema.eval.metrics import agreement
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.policy.fidelity import divergence, first_token
from emblema.link.policy.policy import Policy
from emblema.session.prompt_reader import PromptPart, slid
from emblema.store import codec, format
from emblema.store.compression import COMPRESSIONS, Compression
from emblema.store.record import SHARED

SETTINGS = ("visible", "slid")
STRATEGIES = ("blind", "patch-25%")
KINDS = ("colour", "land")


@dataclass(frozen=True, slots=True)
class CompressionFidelity:
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
    lines: tuple[CompressionFidelity, ...]

    def line(self, compression: str, strategy: str, setting: str) -> CompressionFidelity:
        """Return the line of a case."""
        wanted = (compression, strategy, setting)
        return next(line for line in self.lines if (line.compression, line.strategy, line.setting) == wanted)


Answers = list[np.ndarray]
"""Logits, question by question."""


def measure(model: Any, processor: Any, episodes: int, seed: int, screen: Console) -> CompressionResult:
    """Ask the questions of fresh episodes in both settings, of every compression."""
    quiet = Policy.quiet()
    engines: dict[Compression, Engine] = {
        name: Engine(model, processor, policy=quiet) for name in COMPRESSIONS if name != "none"
    }
    original = Engine(model, processor, policy=quiet)
    every_engine: dict[Compression, Engine] = {"none": original, **engines}
    answers: dict[tuple[str, str, str], Answers] = {}
    references: dict[str, Answers] = {setting: [] for setting in SETTINGS}
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
            for question in (question for question in episode.questions if question.kind in KINDS):
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
                    references[setting].append(original.prefill(parts, "full").logits.numpy())
                    share_patches(original, engines.values(), parts)
                    # On uncompressed rows, which come back from the format bit by bit, `original` answers.
                    for name, engine in every_engine.items():
                        for strategy in STRATEGIES:
                            logits = engine.prefill(parts, strategy).logits.numpy()
                            answers.setdefault((name, strategy, setting), []).append(logits)
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
    """Return a chunk as it comes back from a file, with the file's bytes and those of the rows in it."""
    whole = replace(chunk, rows=tuple(chunk.rows))
    record = codec.chunk_record(whole, SHARED, compression=compression, created=0.0)
    contents = b"".join(format.buffers(record))

    def fill(offset: int, target: memoryview) -> None:
        target[:] = contents[offset : offset + target.nbytes]

    with format.open_source(fill, len(contents), chunk.id) as reader:
        rows = tuple(codec.read_layers(reader))
        own = sum(size for name, size in reader.header.sizes.items() if name.startswith("layers."))
        if compression == "none" and not all(map(same_rows, rows, whole.rows)):
            raise StoreError(f"{chunk.id[:12]} did not come back from its file as it was, uncompressed")
        return replace(chunk, encoded=codec.read_encoded(reader), rows=rows), len(contents), own


def same_rows(own: LayerRows, other: LayerRows) -> bool:
    """Return whether rows are equal bit by bit."""
    return torch.equal(own.keys, other.keys) and torch.equal(own.values, other.values)


def share_patches(original: Engine, engines: Iterable[Engine], parts: Sequence[PromptPart]) -> None:
    """Form a prompt's patches from the rows as computed, and hand them to every engine."""
    plan = original.prefill(parts, STRATEGIES[-1]).plan
    for key in {part.patch.key for part in plan.ranges if part.patch is not None}:
        patch = original.store.find_patch(key)
        for engine in engines:
            if patch is not None:
                engine.store.put_artifact(key, patch)


def _line(
    every: dict[tuple[str, str, str], Answers],
    reference: Answers,
    expected: Sequence[int],
    owners: Sequence[int],
    name: str,
    strategy: str,
    setting: str,
) -> CompressionFidelity:
    own, whole = every[name, strategy, setting], every["none", strategy, setting]
    away = _losses(reference, own)
    right, before = (np.equal(_tokens(answers), expected).astype(np.float64) for answers in (own, whole))
    return CompressionFidelity(
        compression=name,
        strategy=strategy,
        setting=setting,
        items=len(own),
        moved=bootstrap(_losses(whole, own), owners),
        divergence=bootstrap(away, owners),
        further=bootstrap(np.subtract(away, _losses(reference, whole)), owners),
        lost=bootstrap(before - right, owners),
        same=agreement(_tokens(whole), _tokens(own)),
    )


def _losses(reference: Answers, method: Answers) -> list[float]:
    return [divergence(first, second) for first, second in zip(reference, method, strict=True)]


def _tokens(answers: Answers) -> list[int]:
    return [first_token(logits) for logits in answers]


def compression_table(found: CompressionResult) -> Table:
    """Return bytes and fidelity of every compression, by setting and strategy."""
    files = ", ".join(f"{name} {size / found.files['none']:.3f}" for name, size in found.files.items())
    return Table(
        "compression",
        "Compressed rows",
        f"{found.lines[0].items:,} questions in each setting on {found.episodes} fresh episodes, {found.chunks} "
        "chunks. rows: bytes as a share of uncompressed ones; of whole files, in which embeddings stay as they are: "
        f"{files}. KL in nats at the answer, from the same strategy on uncompressed rows and from re-prefill, with 95 "
        "% intervals by episode. same: answers as on uncompressed rows. loss: accuracy lost against them, upper "
        "bound. `none` comes back bit by bit.",
        ("setting", "strategy", "compression", "rows", "KL", "KL from re-prefill", "same", "loss"),
        tuple(
            (
                line.setting,
                line.strategy,
                line.compression,
                found.rows[line.compression] / found.rows["none"],
                line.moved,
                line.divergence,
                line.same,
                line.lost.high,
            )
            for line in found.lines
        ),
        (
            Plot("strategy", "KL", "compression", bars=True),
            Plot("compression", "rows", bars=True, only=("setting", SETTINGS[0])),
        ),
    )
