"""Comparisons keep to their share of the requests and of the rows, and try closed lanes in turn."""

from emblema.link.lanes import Lane
from emblema.link.policy.comparison_shares import ComparisonShares
from emblema.link.policy.policy import Policy


def test_a_share_of_the_requests_is_compared_at_random_distances() -> None:
    shares, policy, due = ComparisonShares(), Policy(canary=0.1, canary_rows=1), []
    for number in range(2000):
        if shares.earn("check", 10, policy, free=True):
            due.append(number)
            shares.spend("check", 10)
    distances = {later - earlier for earlier, later in zip(due, due[1:], strict=False)}
    assert 180 <= len(due) <= 200 and len(distances) > 3


def test_what_is_not_certified_is_compared_more_often() -> None:
    for certified, least, most in ((True, 80, 100), (False, 900, 1000)):
        shares, policy, due = ComparisonShares(), Policy(canary=0.05, learning=0.5, canary_rows=1), 0
        for _ in range(2000):
            if shares.earn("check", 10, policy, free=True, certified=certified):
                due += 1
                shares.spend("check", 10)
        assert least <= due <= most


def test_rows_are_those_that_answers_earned() -> None:
    shares, policy = ComparisonShares(), Policy(canary=1, canary_rows=0.5)
    assert shares.earn("trial", 100, policy, free=True) and shares.affords(50) and not shares.affords(51)
    shares.spend("trial", 50)
    assert not shares.affords(1)
    assert not shares.earn(None, 100, policy, free=True) and shares.affords(50), "what cannot be compared earns too"
    assert not shares.earn("check", 0, policy, free=False), "one at a time"
    assert not shares.earn("check", 0, Policy(canary=0), free=True)


def test_closed_lanes_are_tried_in_turn() -> None:
    shares = ComparisonShares()
    closed = {("image", Lane.QUERY), ("image", Lane.PATCH), ("video", Lane.PATCH)}
    order = []
    for _ in range(6):
        first = shares.least_tried(closed)
        shares.note_trial([first])
        order.append(first)
    assert order == [("image", Lane.PATCH), ("video", Lane.PATCH), ("image", Lane.QUERY)] * 2
