"""Rows counted at the worker: what the scheduler asked for, and what the model's runner was given to compute."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from emblema.link.prompt import Rows
from emblema.vllm.connectors import StepMessage


@dataclass(slots=True)
class StepCount:
    """A step as the runner got it.

    Attributes:
        requests, rows: of the batch; `scheduled` is how many rows the scheduler asked for.
        encoded: how many pictures its vision tower was told to run on.
    """

    scheduled: int
    requests: int
    rows: int
    encoded: int


@dataclass(slots=True)
class RequestRows:
    """What became of a request's rows.

    Attributes:
        computed: for each row that was scheduled or linked whether it was computed, at last.
        scheduled: the rows of each of its steps.
        count: rows computed, each time counted.
        earlier: what `computed` was each time when the request was preempted.
        read: the first row that was not there, of each time when it began to be read; what is computed for that is
            counted and nothing else.
    """

    computed: dict[int, bool] = field(default_factory=dict)
    scheduled: list[Rows] = field(default_factory=list)
    count: int = 0
    earlier: list[dict[int, bool]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def taken_each(self, rows: int) -> list[tuple[Rows, ...]]:
        """Return `taken` at last, and each time when the request was preempted."""
        return [self.taken(rows, computed) for computed in (self.computed, *self.earlier)]

    def taken(self, rows: int, computed: dict[int, bool] | None = None) -> tuple[Rows, ...]:
        """Return the runs of the first `rows` rows that were scheduled and not computed."""
        runs: list[tuple[int, int]] = []
        known = self.computed if computed is None else computed
        for row in sorted(row for row, was in known.items() if row < rows and not was):
            if runs and runs[-1][1] == row:
                runs[-1] = (runs[-1][0], row + 1)
            else:
                runs.append((row, row + 1))
        return tuple(runs)


class RowMeter:
    """Counts at one worker, from when it is made.

    Attributes:
        steps: those with rows.
        requests: by vLLM's name.
        preempted: how often a request was.
    """

    def __init__(self, worker: Any) -> None:
        self.steps: list[StepCount] = []
        self.requests: dict[str, RequestRows] = {}
        self.preempted = 0
        self._scheduled = 0
        self._parts = (worker, worker.model_runner)
        self._follow(worker, self._ask)
        self._follow(worker.model_runner, self._compute)

    def forget(self) -> None:
        """Count from the start."""
        self.steps.clear()
        self.requests.clear()
        self.preempted = 0

    def detach(self) -> None:
        """Count no further."""
        for part in self._parts:
            del part.execute_model

    @staticmethod
    def _follow(part: Any, note: Callable[[Any], None]) -> None:
        stock = part.execute_model

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            note(scheduler_output)
            return stock(scheduler_output, *args, **kwargs)

        part.execute_model = execute_model

    def _ask(self, output: Any) -> None:
        self._scheduled = output.total_num_scheduled_tokens
        for name in output.preempted_req_ids or ():
            self.preempted += 1
            known = self.requests.setdefault(name, RequestRows())
            known.earlier.append(dict(known.computed))
        message = output.kv_connector_metadata
        for link in message.step.links if isinstance(message, StepMessage) else ():
            known = self.requests.setdefault(link.request_id, RequestRows())
            known.computed.update({row: False for rows in link.taken for row in range(*rows)})
        for order in message.step.readings if isinstance(message, StepMessage) else ():
            first = min(start for start, _ in (*order.taken, *order.texts, order.question))
            self.requests.setdefault(order.request_id, RequestRows()).read.append(first)
        for name, start, stop in ranges(output):
            known = self.requests.setdefault(name, RequestRows())
            known.computed.update(dict.fromkeys(range(start, stop), False))
            known.scheduled.append((start, stop))

    def _compute(self, output: Any) -> None:
        counts = output.num_scheduled_tokens
        if counts:
            encoded = sum(len(indices) for indices in output.scheduled_encoder_inputs.values())
            assert output.total_num_scheduled_tokens == sum(counts.values())
            self.steps.append(StepCount(self._scheduled, len(counts), sum(counts.values()), encoded))
        runs: dict[str, set[Rows]] = {}
        for name, start, stop in ranges(output):
            # A virtual request has its request's name before a zero byte.
            own, _, part = name.partition("\0")
            if part.startswith("query-"):
                self.requests.setdefault(own, RequestRows()).count += stop - start
            else:
                runs.setdefault(own, set()).add((start, stop))
        for name, found in runs.items():
            known = self.requests.setdefault(name, RequestRows())
            for start, stop in found:
                known.computed.update(dict.fromkeys(range(start, stop), True))
                known.count += stop - start


def ranges(output: Any) -> Iterator[tuple[str, int, int]]:
    """Yield each request's rows in a step of vLLM's."""
    cached = output.scheduled_cached_reqs
    starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
    starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for name, count in output.num_scheduled_tokens.items():
        yield name, starts[name], starts[name] + count
