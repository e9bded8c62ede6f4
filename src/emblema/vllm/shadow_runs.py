"""Shadows of answered prompts: a worker links one again and computes it in full, on pages of its own, and compares.

Both run as virtual requests beside what vLLM schedules, one after the other on the same pages. All workers of a model
add the same runs to the same steps. What one of them misses is a comparison that is lost, and nothing else.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.errors import EmblemaError, LoadError
from emblema.link.policy.fidelity import compare
from emblema.link.prompt import Rows
from emblema.vllm.kv_worker import Agree
from emblema.vllm.packed_rows import PackedForward, PackedRows
from emblema.vllm.side_rows import SideRun, StagedPrompts
from emblema.vllm.step_metadata import ShadowOrder, ShadowOutcome, ShadowReport, StepMetadata

_log = logging.getLogger(__name__)
KEPT_ANSWERS = 8
"""Answers of prompts that were read, whose logits are kept until one of them is asked for: the latest."""


@dataclass(slots=True, eq=False)
class Shadow:
    """One comparison under way.

    Attributes:
        order: what is compared.
        encodings: what the encoder made of its pictures, by their names in the order.
        left: runs of rows that are still to be computed in this pass.
        full: whether the prompt is computed in full now, and not linked.
        linked: logits [vocab] of the linked prompt, float32 on the CPU, once they are known.
        watched: the run of the step under way that ends the pass.
        rows: how many rows were computed.
        lost: whether this worker could not begin it.
    """

    order: ShadowOrder
    encodings: dict[str, Tensor]
    left: list[Rows]
    full: bool
    linked: Tensor | None = None
    watched: PackedRows | None = None
    rows: int = 0
    lost: bool = False


class AnswerNotes:
    """Logits of the latest answers that were read, each until it is forgotten; on the device, [vocab] float32."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, Tensor] = OrderedDict()

    def note(self, request_id: str, logits: Tensor) -> None:
        """Keep an answer's logits."""
        self._latest[request_id] = logits
        while len(self._latest) > KEPT_ANSWERS:
            self._latest.popitem(last=False)

    def take(self, request_id: str) -> Tensor | None:
        """Return an answer's logits, and keep them no longer; None where they are gone."""
        return self._latest.pop(request_id, None)


class ShadowRuns:
    """The comparisons of one worker, as `SideRows`; one at a time.

    Args:
        staged: has what the prompts take.
        seen: keeps the last row of a prompt.
        answers: of prompts that were read.
        agree: see `Agree`.
        hand_over: gives an encoder output to the runner before this step's forward.
    """

    def __init__(
        self,
        staged: StagedPrompts,
        seen: PackedForward,
        answers: AnswerNotes,
        agree: Agree,
        hand_over: Callable[[str, Tensor], None] | None,
    ) -> None:
        self._staged = staged
        self._seen, self._answers, self._agree, self._hand_over = seen, answers, agree, hand_over
        self._shadow: Shadow | None = None
        self._count = 0
        self._noted: tuple[str, Tensor] | None = None
        self._unneeded: set[str] = set()
        self._reports: dict[int, ShadowReport] = {}

    def begin_step(self, step: StepMetadata, refused: bool) -> None:
        """Take what a step brings: an answer to keep, a comparison that begins or one that is given up.

        Args:
            step: what the scheduler's side says.
            refused: whether none may go on.
        """
        if step.noted is not None:
            logits = self._answers.take(step.noted)
            self._noted = None if logits is None else (step.noted, logits.cpu())
        if self._shadow is not None and self._shadow.order.number in step.shadows_ended:
            self.drop()
        if refused:
            self.drop()
        if step.shadow is not None and refused:
            self._staged.drop(step.shadow.name)
            self._reports[step.shadow.number] = ShadowReport(1, None)
        elif step.shadow is not None:
            self._begin(step.shadow)

    def drop(self) -> None:
        """Give up the comparison under way."""
        if self._shadow is not None:
            self._end(self._shadow, None)

    def _begin(self, order: ShadowOrder) -> None:
        noted, self._noted = self._noted, None
        linked = noted[1] if noted is not None and noted[0] == order.noted else None
        full = bool(order.noted)
        shadow = Shadow(order, {}, [(0, order.tokens)] if full else list(order.computed), full, linked)
        try:
            if full and linked is None:
                raise LoadError(order.noted, "what was answered is not known any more")
            self._place(shadow)
        except Exception as error:
            shadow.lost = True
            _log_loss(error)
        (placed,) = self._agree([not shadow.lost])
        if placed:
            self._shadow = shadow
        else:
            self._end(shadow, None)

    @torch.inference_mode()
    def _place(self, shadow: Shadow) -> None:
        """Write the rows that a prompt takes into its pages."""
        order = shadow.order
        if self._hand_over is None:
            raise EmblemaError("nothing takes what the encoder made of its pictures")
        shadow.encodings = self._staged.take(order.name, order.prompt, () if shadow.full else order.taken)

    def runs(self, rows: int, slots: int, encoded: Container[str]) -> Sequence[SideRun]:
        shadow = self._shadow
        made: list[SideRun] = []
        while shadow is not None and shadow.left and rows > 0 and slots > 0:
            start, end = shadow.left[0]
            stop = min(end, start + rows)
            shadow.left[:1] = [(stop, end)] if stop < end else []
            self._count += 1
            run = (start, stop)
            made.append(SideRun(shadow.order.prompt, f"emblema\0shadow-{self._count}", start, stop - start))
            rows, slots, shadow.rows = rows - (stop - start), slots - 1, shadow.rows + stop - start
            self._show(shadow, run)
            if stop == shadow.order.tokens:
                shadow.watched = PackedRows(shadow.order.prompt.blocks, torch.arange(*run), start, None)
        watched = None if shadow is None else shadow.watched
        self._seen.begin_step(() if watched is None else (watched,))
        return made

    def _show(self, shadow: Shadow, run: Rows) -> None:
        """Hand over the encoder outputs of the pictures that have rows in a run."""
        for feature in shadow.order.prompt.features:
            if feature.start < run[1] and run[0] < feature.stop and self._hand_over is not None:
                self._hand_over(feature.name, shadow.encodings[feature.name])

    def settle(self) -> None:
        """Take what the forward made."""
        shadow = self._shadow
        if shadow is not None and shadow.watched is not None:
            watched, shadow.watched = shadow.watched, None
            # Workers work logits out together, whatever one of them has lost.
            logits = self._seen.last_logits(watched)
            made = None if logits is None else logits.cpu()
            if shadow.full:
                self._end(shadow, made)
            else:
                shadow.linked, shadow.left, shadow.full = made, [(0, shadow.order.tokens)], True
        self._seen.end_step()

    def _end(self, shadow: Shadow, full: Tensor | None) -> None:
        """Report what a comparison showed; nothing where `full`, the logits of full prefill, are not known."""
        outcome: ShadowOutcome | None = None
        if full is not None and shadow.linked is not None:
            sample = compare(full.numpy(), shadow.linked.numpy())
            outcome = ShadowOutcome(sample.kl, sample.agrees, sample.margin, shadow.rows)
        self._reports[shadow.order.number] = ShadowReport(1, outcome)
        self._unneeded |= shadow.encodings.keys()
        self._staged.drop(shadow.order.name)
        self._shadow = None

    def finish_step(self) -> Iterable[str]:
        """Return the names of pictures whose encoder outputs no comparison needs any more."""
        unneeded, self._unneeded = self._unneeded, set()
        return unneeded

    def take_reports(self) -> dict[int, ShadowReport]:
        """Return what comparisons showed since the last call, by their numbers."""
        reports, self._reports = self._reports, {}
        return reports


def _log_loss(error: Exception) -> None:
    expected = isinstance(error, EmblemaError)
    _log.warning("emblema: a linked prompt is not compared: %s", error, exc_info=not expected)
