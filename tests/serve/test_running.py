"""What the server's process does beside its requests."""

import gc
from collections import deque

import pytest

from emblema.serve.running import collect_beside_program


class Left:
    """A request that holds itself, as one does whose client goes in the middle of its answer."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Left.alive += 1

    def __del__(self) -> None:
        Left.alive -= 1


def most_left() -> int:
    """How many such requests there are at once, of 250,000 that are answered while 10,000 others are."""
    gc.collect()
    most = 0
    answered = deque[Left](maxlen=10_000)
    for _ in range(250_000):
        answered.append(Left())
        most = max(most, Left.alive)
    return most


@pytest.mark.slow
def test_what_clients_leave_behind_does_not_wait_for_a_share_of_the_program() -> None:
    program = [[index] for index in range(1_000_000)]
    before = most_left()
    try:
        collect_beside_program()
        after = most_left()
    finally:
        gc.unfreeze()
    assert before > 200_000 and after < 120_000 and len(program) == 1_000_000
