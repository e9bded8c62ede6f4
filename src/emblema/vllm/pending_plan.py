"""How far a request is on its way into a step: its plan is made, and what it takes is staged."""

import threading
from dataclasses import dataclass, field

from emblema.served.request_plan import RequestPlan, ServedRequest


@dataclass(slots=True)
class Staging:
    """What a request takes, on its way into the memory of all workers.

    Attributes:
        number: of the order.
        ordered: when, in monotonic seconds.
        missing: how many workers have not reported it.
        stepped: whether a step has taken some of it.
        stand_in: whether the last step computed a row in place of taking it.
    """

    number: int
    ordered: float
    missing: int
    stepped: bool = False
    stand_in: bool = False


@dataclass(slots=True, eq=False)
class PendingPlan:
    """A plan that is being made on the planner's thread.

    Attributes:
        request: what is planned.
        done: set once `plan` is there.
        plan: the plan; None for a request that is not linked.
        asked: when the scheduler first wanted it, in monotonic seconds; None before.
        trying: whether it may be linked to learn what that costs; None before it is planned.
        awaited: since when it waits for pictures that are prefilled alone; None where it does not.
        replans: how often it was planned again.
        again: when it may be.
        final: whether it waits for no picture any more.
    """

    request: ServedRequest
    done: threading.Event = field(default_factory=threading.Event)
    plan: RequestPlan | None = None
    asked: float | None = None
    trying: bool | None = None
    awaited: float | None = None
    replans: int = 0
    again: float = 0.0
    final: bool = False
