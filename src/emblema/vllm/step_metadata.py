"""What the scheduler's side tells the worker's side once a step, and what it is told. Plain data that pickles."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from torch import Tensor

from emblema.kv.keys import ArtifactKey
from emblema.link.prompt import Prompt, Rows
from emblema.models.noting import QuestionReadings
from emblema.served.captures import ChunkCapture
from emblema.served.kept_prompts import KeepOrder
from emblema.served.request_plan import PatchNeed
from emblema.served.staging import StagingOrder


@dataclass(frozen=True, slots=True)
class PlacedFeature:
    """A picture or clip in a prompt, as the model's runner is given it.

    Attributes:
        name: by which the runner's encoder cache has it.
        start: its first row.
        rows: how many it takes.
        filled: [rows] bool, which of them the encoder fills; None for all.
        known_as: vLLM's own name of it.
        source: vLLM's feature.
    """

    name: str
    start: int
    rows: int
    filled: Tensor | None
    known_as: str
    source: Any

    @property
    def stop(self) -> int:
        """The row after its last."""
        return self.start + self.rows


@dataclass(frozen=True, slots=True)
class SidePrompt:
    """A prompt whose rows are computed beside what is scheduled.

    Attributes:
        token_ids: its tokens; the list itself tells the model's runner which prompt it is.
        features: its pictures and clips in order.
        blocks: its pages in order.
    """

    token_ids: list[int]
    features: tuple[PlacedFeature, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PatchCapture:
    """A prompt that was computed plainly: patches are formed from its chunks' rows.

    Attributes:
        salt: of the tenant's store.
        prompt: whose rows the pages hold.
        needs: the patches to form.
        blocks: the request's pages in order.
        alone: whether no other request is in the step, and none comes soon, so that reading its rows holds none up.
    """

    salt: bytes
    prompt: Prompt
    needs: tuple[PatchNeed, ...]
    blocks: tuple[int, ...]
    alone: bool = True


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """A reading of `query-R%` that begins: its request waits, with pages, and its rows are staged; see `QueryReading`.

    Attributes:
        request_id: of vLLM.
        prompt: the request's, on its pages; its pictures have names of their own.
        taken: rows to write first.
        texts, question: rows to compute.
        least_margin: below this margin the answer does not stand.
        keeps: see `LinkOrder`.
    """

    request_id: str
    prompt: SidePrompt
    taken: tuple[Rows, ...]
    texts: tuple[Rows, ...]
    question: Rows
    least_margin: float
    keeps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkOrder:
    """A prompt that is linked: its request waits, with pages, and its rows are staged.

    Attributes:
        request_id: of vLLM.
        prompt: the request's, on its pages; its pictures have names of their own.
        taken, computed: rows to write first, and rows to compute, in order.
        keeps: its pictures' chunks, by vLLM's names of them, where its rows are kept afterwards.
    """

    request_id: str
    prompt: SidePrompt
    taken: tuple[Rows, ...]
    computed: tuple[Rows, ...]
    keeps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadingChoice:
    """The rows that a reading computes again; None where a worker could not say what its question attends."""

    request_id: str
    runs: tuple[Rows, ...] | None


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """What a question attends, as some workers saw it.

    Attributes:
        workers: how many.
        readings: by their heads together; None where one of them could not say.
    """

    workers: int
    readings: QuestionReadings | None

    def joined(self, other: "QuestionReport") -> "QuestionReport":
        """Return the report of all of the workers."""
        own = None if self.readings is None or other.readings is None else self.readings.joined(other.readings)
        return QuestionReport(self.workers + other.workers, own)


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """All work of one step beside vLLM's own.

    Attributes:
        stagings: what to read ahead for requests that wait.
        dropped: requests whose staged rows are not wanted any more.
        links: prompts that are linked from this step on.
        encodings: pictures that the scheduler has encoded in this step and that may be staged: by request, numbers and
            vLLM's names.
        captures: chunks to prefill alone, in this step and those after it.
        side_rows, side_slots: rows, and places in the batch, that this step has for what no request asks for.
        readings, choices: readings that begin, and rows that others go on with.
        load_rows, load_slots: rows, and places in the batch, that this step has for prompts whose requests wait.
        room: rows that this step has for both together, where prompts are loaded.
        patches: what to read after it.
        keeps: prompts whose rows are kept after it.
        kept_pictures: chunks of pictures that it encodes, of such prompts, with vLLM's name of the picture before each.
        forgotten: names of kept prompts that are kept no longer.
        computes: whether it has any rows.
        pressed: whether requests come so densely that nothing is to be kept beside them.
    """

    stagings: tuple[StagingOrder, ...] = ()
    dropped: tuple[str, ...] = ()
    links: tuple[LinkOrder, ...] = ()
    encodings: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    captures: tuple[ChunkCapture, ...] = ()
    side_rows: int = 0
    side_slots: int = 0
    readings: tuple[ReadingOrder, ...] = ()
    choices: tuple[ReadingChoice, ...] = ()
    load_rows: int = 0
    load_slots: int = 0
    room: int = 0
    patches: tuple[PatchCapture, ...] = ()
    keeps: tuple[KeepOrder, ...] = ()
    kept_pictures: tuple[tuple[str, str], ...] = ()
    forgotten: tuple[str, ...] = ()
    computes: bool = True
    pressed: bool = False


@dataclass(slots=True)
class WorkerReport:
    """What one worker, or all of them together, have done since the last step.

    Attributes:
        staged: by number of an order, how many workers have its rows.
        unstaged: orders that a worker could not stage.
        lost: ids of chunks, and keys of artifacts, whose share a worker lacks.
        captured: by chunk, how many workers are done with its pages.
        questions: what questions attend, by request.
        margins: of readings that ended, by request, as one worker saw it: by how much the probabilities of the two
            likeliest first tokens differ.
    """

    staged: dict[int, int] = field(default_factory=dict)
    unstaged: set[int] = field(default_factory=set)
    lost: set[str | ArtifactKey] = field(default_factory=set)
    captured: dict[str, int] = field(default_factory=dict)
    questions: dict[str, QuestionReport] = field(default_factory=dict)
    margins: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self != WorkerReport()

    def joined(self, other: "WorkerReport") -> "WorkerReport":
        """Return the report of both."""

        def added(one: dict[Any, int], two: dict[Any, int]) -> dict[Any, int]:
            return {key: one.get(key, 0) + two.get(key, 0) for key in one | two}

        return WorkerReport(
            added(self.staged, other.staged),
            self.unstaged | other.unstaged,
            self.lost | other.lost,
            added(self.captured, other.captured),
            _joined(self.questions, other.questions),
            other.margins | self.margins,
        )


class _Joinable(Protocol):
    def joined(self, other: Self) -> Self: ...


Name = TypeVar("Name")
Part = TypeVar("Part", bound=_Joinable)


def _joined(one: Mapping[Name, Part], two: Mapping[Name, Part]) -> dict[Name, Part]:
    """Return the reports of both; those of one name are joined."""
    both = {name: one[name].joined(two[name]) for name in one if name in two}
    return {**one, **two, **both}
