"""Records of a run: a line for each item, setting and strategy."""

from dataclasses import dataclass
from typing import Self

from benchmarks.fidelity.linking import LinkingCost
from benchmarks.recordfile import digest, fields_of
from benchmarks.tasks.items import TaskItem, describe


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Where an item comes from and how it is put: what tells records of the same item apart.

    Attributes:
        model: name of the model; `weights`: its fingerprint.
        seed: of generated items; -1 for a data set's.
    """

    model: str
    weights: str
    task: str
    seed: int
    style: str

    def key(self, item: TaskItem, setting: str, strategy: str, answering: str) -> str:
        """Digest of everything that a record's figures depend on."""
        told = (self.weights, self.task, self.seed, self.style, setting, strategy, answering)
        return digest(*told, describe(item))


@dataclass(frozen=True, slots=True)
class FidelityRecord:
    """One item under one strategy in one setting, question by question.

    Attributes:
        multi_hop: whether a question needs several pieces of media.
        answers: token ids of the greedy answers.
        right: whether they are right.
        divergences: KL from re-prefill at the answer's first token, nats.
        judged: overall scores of a judge, 1 to 10; empty without one.
    """

    key: str
    model: str
    task: str
    setting: str
    strategy: str
    item: str
    episode: str
    multi_hop: tuple[bool, ...]
    answers: tuple[tuple[int, ...], ...]
    right: tuple[bool, ...]
    divergences: tuple[float, ...]
    kv_bytes_share: float
    rows_computed_share: float
    judged: tuple[int, ...] = ()

    @property
    def spent(self) -> LinkingCost:
        return LinkingCost(self.kv_bytes_share, self.rows_computed_share)

    @classmethod
    def read(cls, line: str) -> Self:
        """The record of a line.

        Raises:
            ValueError: it is none.
        """
        held = fields_of(line, cls)
        made = cls(**{**held, "answers": tuple(tuple(answer) for answer in held["answers"])})
        if len({len(made.multi_hop), len(made.answers), len(made.right), len(made.divergences)}) != 1:
            raise ValueError("a record with missing questions")
        return made
