"""Servers on one folder judge lanes by what all of them measured, each tenant by its own."""

from pathlib import Path

import pytest

from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.store import Store
from emblema.vllm import lane_ledgers
from emblema.vllm.lane_ledgers import LaneLedgers
from emblema.vllm.step_metadata import ShadowOutcome

LANES = frozenset([("image", Lane.QUERY), ("image", Lane.PATCH)])
BAD = ShadowOutcome(0.5, False, 0.7, 100)
POLICY = Policy()


def trusts(ledgers: LaneLedgers, lane: Lane = Lane.PATCH, salt: bytes = b"") -> bool:
    return ledgers.of(salt).verdict("m", "image", lane, POLICY).open


def test_what_one_server_measured_counts_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as first, Store(tmp_path) as second:
        one, two = LaneLedgers(first), LaneLedgers(second)
        assert trusts(one) and trusts(two)
        for ledgers in (one, two, one, two):
            ledgers.record(b"", "m", LANES, BAD, POLICY)
        monkeypatch.setattr(lane_ledgers, "REFRESH_SECONDS", 0.0)
        assert not trusts(one) and not trusts(two) and not trusts(one, Lane.QUERY)
        assert trusts(one, salt=b"other") and one.of(b"").verdict("n", "image", Lane.PATCH, POLICY).open
        assert one.of(b"").least_margin("m", LANES, POLICY) > 1, "no answer is sure enough"
    with Store(tmp_path) as third:
        assert not trusts(LaneLedgers(third))


def test_the_file_is_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as first, Store(tmp_path) as second:
        one, two = LaneLedgers(first), LaneLedgers(second)
        assert trusts(two)
        for _ in range(4):
            one.record(b"", "m", LANES, BAD, POLICY)
        monkeypatch.setattr(lane_ledgers, "REFRESH_SECONDS", 600.0)
        assert trusts(two)
        monkeypatch.setattr(lane_ledgers, "REFRESH_SECONDS", 0.0)
        assert not trusts(two)


def test_tenants_beyond_a_bound_leave_memory_and_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_ledgers, "MOST_TENANTS", 3)
    with Store(tmp_path) as store:
        ledgers = LaneLedgers(store)
        for _ in range(4):
            ledgers.record(b"first", "m", LANES, BAD, POLICY)
        held = ledgers.of(b"first")
        for name in range(5):
            assert trusts(ledgers, salt=str(name).encode())
        assert ledgers.of(b"first") is not held and not trusts(ledgers, salt=b"first")
