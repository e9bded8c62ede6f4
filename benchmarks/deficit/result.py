"""What was measured on which model: facts about it, its log, and arrays for the figures."""

from dataclasses import dataclass, field

import numpy as np

from benchmarks.deficit.answerlog import AnswerLog
from benchmarks.deficit.gather import items_of
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

LEAST = 4
"""Items from which half can teach and half be held out."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What kind of model was measured; `widths` are numbers kept per token and layer, keys and values apart."""

    name: str
    family: str
    kind: str
    layers: int
    widths: tuple[int, int]
    heads: int
    experts: int
    rotary: str


@dataclass
class Examples:
    """Arrays for figures, of the first held-out item: planes [layers, features, tokens], and curves by token."""

    planes: np.ndarray | None = None
    attention: np.ndarray | None = None
    moved: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeficitOptions:
    """What to measure on: items of a task, and the task whose directions are carried to it.

    Attributes:
        questions: multi-hop questions an item; one single-hop question stands beside them.

    Raises:
        EmblemaError: too few items or questions, or a task that there is not.
    """

    task: str = "maps"
    carried: str = "clip"
    seed: int = 0
    items: int = 40
    questions: int = 2

    def __post_init__(self) -> None:
        if self.items < LEAST:
            raise EmblemaError(f"--items {self.items}: give {LEAST} or more; half of them teach, half are held out")
        if self.questions < 1:
            raise EmblemaError(f"{self.questions} questions an item: give one or more")
        for task in (self.task, self.carried):
            items_of(task, self.seed, 1)


@dataclass
class DeficitResult:
    """One model's log, with what it was measured on.

    Attributes:
        pairs: for each chunk, its deficit's relative size and what `selectors.redundancy` sets beside it.
        left_out: items that had no chunk behind another.
        binds: False for a model that was taken along because it should not.
    """

    model: ModelFacts
    wanted: DeficitOptions
    log: AnswerLog
    examples: Examples
    pairs: list[tuple[float, dict[str, float]]]
    left_out: int = 0
    binds: bool = True


def facts(engine: Engine, name: str) -> ModelFacts:
    """What an engine holds."""
    adapter = engine.adapter
    layout = adapter.layouts[-1]
    band, config = layout.rotary, adapter.config
    experts = next(
        (int(getattr(config, key)) for key in ("n_routed_experts", "num_experts", "num_local_experts")
         if getattr(config, key, None)), 0)  # fmt: skip
    axes = 1 if band is None else len(set(band.axes))
    rotary = "none"
    if band is not None:
        width = layout.keys[1] if band.slot == "keys" else layout.values[1]
        rotary = f"{band.pairing}, {band.width} of {width} rotated, {axes} axes"
    return ModelFacts(
        name, adapter.family, layout.kind, len(adapter.layouts),
        (layout.keys[0] * layout.keys[1], layout.values[0] * layout.values[1]), layout.keys[0], experts, rotary,
    )  # fmt: skip
