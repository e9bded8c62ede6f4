"""Prompts whose rows a worker makes beside steps, while their requests wait as for KV from elsewhere."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.prompt import Rows
from emblema.vllm.side_rows import SideRun
from emblema.vllm.step_metadata import LinkOrder, ReadingOrder, SidePrompt, StepMetadata

_log = logging.getLogger(__name__)
HandOver = Callable[[str, Tensor], None]
"""Gives an encoder output to the model's runner before this step's forward."""


class StagedPrompts(Protocol):
    """What prompts take, staged."""

    def take(self, name: str, prompt: SidePrompt, taken: tuple[Rows, ...]) -> dict[str, Tensor]:
        """Write the rows that a prompt takes into its pages.

        Args:
            name: by which it is staged.
            prompt: it.
            taken: the rows.

        Returns:
            What the encoder made of its pictures, by their names in the prompt, as far as it is staged.

        Raises:
            EmblemaError: the rows are not there.
        """

    def keep_encodings(self, chunks: Iterable[tuple[str, str]]) -> None:
        """Keep what the encoder made of pictures, whose prompts' rows are kept afterwards.

        Args:
            chunks: of the pictures, with the runner's name of each before it.
        """


class LoadedPrompt(Protocol):
    """A prompt whose rows are being made.

    Attributes:
        order: what is made.
        encodings: what the encoder made of its pictures, by their names in the order, as far as it is staged.
        encoded: names of its pictures that the runner has.
        lost: whether this worker missed something; its rows go on as the other workers' do.
    """

    encodings: dict[str, Tensor]
    encoded: set[str]
    lost: bool

    @property
    def order(self) -> LinkOrder | ReadingOrder: ...


Made = TypeVar("Made", bound=LoadedPrompt)


class PromptLoads(ABC, Generic[Made]):
    """The prompts of one worker whose requests wait, as `SideRows`.

    All workers of a model add the same rows to the same steps: what they do depends on what the scheduler's side says
    alone. An error of one worker is a loss that it reports, and the request is computed.

    Args:
        staged: has the rows that prompts take.
        hand_over: see `HandOver`; None where nothing takes encoder outputs.
        agree: returns which of some facts are so on all workers.
    """

    def __init__(
        self,
        staged: StagedPrompts,
        hand_over: HandOver | None,
        agree: Callable[[list[bool]], list[bool]] = list,
    ) -> None:
        self._staged, self._hand_over, self._agree = staged, hand_over, agree
        self._under_way: dict[str, Made] = {}
        self._count = 0
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._unneeded: set[str] = set()

    @abstractmethod
    def begin_step(self, step: StepMetadata) -> None:
        """Take what the scheduler's side says of a step."""

    @abstractmethod
    def runs(self, rows: int, slots: int, encoded: Container[str]) -> Sequence[SideRun]:
        """Return what to compute in this step; see `SideRows`."""

    @abstractmethod
    def settle(self) -> None:
        """Take what the forward made."""

    def leave(self, ended: Iterable[str]) -> None:
        """Let go of requests that have ended; their pages are kept until that is said."""
        for name in ended:
            if name in self._under_way:
                self._end(self._under_way[name], failed=False)

    def finish_step(self) -> Iterable[str]:
        """Return the names of pictures whose encoder outputs no prompt needs any more."""
        unneeded, self._unneeded = self._unneeded, set()
        return unneeded

    def take_results(self) -> tuple[set[str], set[str]]:
        """Return the requests that are done with since the last call, and those of them that are to be computed."""
        finished, failed = self._finished, self._failed
        self._finished, self._failed = set(), set()
        return finished, failed

    def _run(self, made: Made, rows: Rows, encoded: Container[str], given: set[str]) -> SideRun:
        """Return some rows of a prompt as a run of their own.

        Pictures among them that the runner lacks are encoded, or what the encoder made of them is handed over.

        Args:
            made: the prompt.
            rows: them.
            encoded: names of pictures that the runner has.
            given: names of those that it gets in this step; some are added.
        """
        self._count += 1
        prompt, hand_over = made.order.prompt, self._hand_over
        shown = [each.name for each in prompt.features if each.start < rows[1] and rows[0] < each.stop]
        lacking = [name for name in shown if name not in encoded and name not in given]
        staged = [hand_over is not None and name in made.encodings for name in lacking]
        # All workers run the encoder together or not at all.
        staged = self._agree(staged) if staged else staged
        if hand_over is not None:
            for name in (name for name, here in zip(lacking, staged, strict=True) if here):
                hand_over(name, made.encodings[name])
        given.update(lacking)
        made.encoded.update(lacking)
        wanted = {name for name, here in zip(lacking, staged, strict=True) if not here}
        encode = tuple(index for index, each in enumerate(prompt.features) if each.name in wanted)
        return SideRun(prompt, f"{made.order.request_id}\0gap-{self._count}", rows[0], rows[1] - rows[0], encode)

    def _guarded(self, made: Made, work: Callable[[Made], None]) -> None:
        """Do a part of a prompt; what fails is a loss."""
        try:
            work(made)
        except Exception as error:
            made.lost = True
            expected = isinstance(error, EmblemaError)
            _log.warning("emblema: a prompt is computed plainly: %s", error, exc_info=not expected)

    def _end(self, made: Made, failed: bool) -> None:
        name = made.order.request_id
        del self._under_way[name]
        self._finished.add(name)
        if made.order.keeps:
            shown = [each for each in made.order.prompt.features if each.name in made.encoded]
            self._staged.keep_encodings([(each.name, made.order.keeps[each.known_as]) for each in shown])
        self._unneeded |= made.encoded
        if failed:
            self._failed.add(name)
