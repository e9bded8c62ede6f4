"""What was measured of every lane, by model and kind of content."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from emblema.errors import StoreError
from emblema.link.lanes import Lane, LaneVerdict
from emblema.link.policy.certificate import PROVISIONAL
from emblema.link.policy.expectations import LATEST, draw_unsure_share
from emblema.link.policy.lane_stats import LaneReport, LaneStats, read_count, read_text, unmeasured
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample
from emblema.link.prompt import Prompt

VERSION = 2
"""Of the log's file."""
MOST_LANES = 1024
"""Lanes in one file, at most."""
UNSAVED = 4096
"""Changes that are remembered until they are written: the latest."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class MeasuredLanes:
    """What was measured of one model's lanes, as `auto` asks it; by default, nothing.

    Attributes:
        verdict: returns whether a lane may be taken for a kind of content, under a policy.
        least_margin: returns the margin that an answer over some kinds and lanes has to have to stand, under a policy.
        plateau: rank from which on the model's patches were measured not to gain; None where that is not known.
    """

    verdict: Callable[[str, Lane, Policy], LaneVerdict] = lambda kind, lane, policy: unmeasured(policy)
    least_margin: Callable[[Iterable[tuple[str, Lane]], Policy], float] = lambda lanes, policy: PROVISIONAL
    plateau: int | None = None


class FidelityLog:
    """One tenant's measurements by model, kind of content and lane, and each model's rank plateau. Thread-safe.

    Tenants have logs of their own, as their contents differ.

    Args:
        shared: whether others measure for the same tenant: changes are remembered until `forget`, so that `merge` can
            add them to what the others measured.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._lock = threading.Lock()
        # Changes that are written nowhere yet, with their numbers.
        self._unsaved: deque[tuple[int, Callable[[], object]]] | None = deque(maxlen=UNSAVED) if shared else None
        self._changes = 0
        self._lanes: dict[tuple[str, str, Lane], LaneStats] = {}
        self._plateaus: dict[str, int] = {}

    def measured(self, model: str) -> MeasuredLanes:
        """Return what was measured of a model's lanes, as it is whenever it is asked."""
        plateau = self._plateaus.get(model)
        return MeasuredLanes(partial(self.verdict, model), partial(self.least_margin, model), plateau)

    def least_margin(self, model: str, lanes: Iterable[tuple[str, Lane]], policy: Policy) -> float:
        """Return the margin that an answer over some kinds and lanes has to have to stand: the largest of theirs."""
        with self._lock:
            stats = [self._lanes.get((model, *lane)) for lane in lanes]
            return max((PROVISIONAL if known is None else known.least_margin(policy) for known in stats), default=0.0)

    def is_certified(self, model: str, lanes: Iterable[tuple[str, Lane]]) -> bool:
        """Return whether all of some kinds and lanes have a certificate."""
        with self._lock:
            stats = [self._lanes.get((model, *lane)) for lane in lanes]
            return all(known is not None and known.certificate.margin is not None for known in stats)

    def note_accepted(self, model: str, lanes: Collection[tuple[str, Lane]], accepted: bool, policy: Policy) -> None:
        """Note whether an answer over some kinds and lanes stood."""

        def note() -> None:
            for kind, lane in lanes:
                self._stats((model, kind, lane), policy).rejected.append(not accepted)

        with self._lock:
            self._change(note)

    def unsure_share(self, model: str, prompt: Prompt) -> float:
        """Draw the share of a model's answers after a second pass that are computed in full after all."""
        with self._lock:
            rejected = [
                each
                for (name, _, lane), stats in self._lanes.items()
                if name == model and lane is Lane.QUERY
                for each in list(stats.rejected)[-LATEST:]
            ]
            return draw_unsure_share(rejected, prompt)

    def record(
        self, model: str, kind: str, lane: Lane, sample: Sample, policy: Policy, *, accepted: bool = True
    ) -> bool:
        """Add a measurement; return whether it closed or opened the lane. See `LaneStats.add`."""
        with self._lock:
            name = (model, kind, lane)
            return self._change(lambda: self._stats(name, policy).add(sample, policy, lane, accepted=accepted))

    def verdict(self, model: str, kind: str, lane: Lane, policy: Policy) -> LaneVerdict:
        """Return whether a lane may be taken."""
        with self._lock:
            stats = self._lanes.get((model, kind, lane))
            return unmeasured(policy) if stats is None else stats.verdict(policy, lane)

    def set_plateau(self, model: str, rank: int) -> None:
        """Keep a measured plateau."""
        with self._lock:
            self._change(lambda: self._plateaus.update({model: rank}))

    def plateaus(self) -> dict[str, int]:
        """Return every model's plateau."""
        with self._lock:
            return dict(self._plateaus)

    def reports(self) -> list[LaneReport]:
        """Return what was measured, by model, kind and lane."""
        with self._lock:
            return [stats.report(*name) for name, stats in sorted(self._lanes.items()) if stats.measured]

    @property
    def unsaved(self) -> bool:
        """Whether there are changes to be merged and written."""
        return bool(self._unsaved)

    def merge(self, stored: Any | None) -> int:
        """Take the log that others wrote in place of this one, with this one's unsaved changes added to it.

        Args:
            stored: plain data as `to_json` gives it; None for an empty log.

        Returns:
            The number of the last change that was added, to be forgotten once the outcome is written.

        Raises:
            StoreError: it is not a log.
        """
        others = FidelityLog() if stored is None else FidelityLog.from_json(stored)
        with self._lock:
            self._lanes, self._plateaus = others._lanes, others._plateaus
            for _, change in self._unsaved or ():
                change()
            return self._changes

    def forget(self, last: int) -> None:
        """Forget the changes up to a number, which are written now."""
        with self._lock:
            while self._unsaved and self._unsaved[0][0] <= last:
                self._unsaved.popleft()

    def _change(self, change: Callable[[], Outcome]) -> Outcome:
        self._changes += 1
        if self._unsaved is not None:
            self._unsaved.append((self._changes, change))
        return change()

    def _stats(self, name: tuple[str, str, Lane], policy: Policy) -> LaneStats:
        """Return the measurements of a model, kind and lane, begun where there are none."""
        if name not in self._lanes:
            self._lanes[name] = LaneStats.begun(policy)
        return self._lanes[name]

    def to_json(self) -> dict[str, Any]:
        """Return the log as plain data."""
        with self._lock:
            lanes = [
                {"model": model, "kind": kind, "lane": str(lane), **stats.to_json()}
                for (model, kind, lane), stats in sorted(self._lanes.items())
            ]
            return {"version": VERSION, "lanes": lanes[:MOST_LANES], "plateaus": dict(self._plateaus)}

    @classmethod
    def from_json(cls, data: Any) -> "FidelityLog":
        """Return the log of plain data.

        Raises:
            StoreError: it is not a log, or one of another version.
        """
        try:
            if data["version"] != VERSION or len(data["lanes"]) > MOST_LANES:
                raise ValueError("another version, or too long")
            log = cls()
            for lane in data["lanes"]:
                name = (read_text(lane["model"]), read_text(lane["kind"]), Lane(lane["lane"]))
                log._lanes[name] = LaneStats.from_json(lane)
            log._plateaus = {read_text(model): read_count(rank, 1) for model, rank in dict(data["plateaus"]).items()}
            return log
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise StoreError(f"this is no log of measured lanes: {error}") from error
