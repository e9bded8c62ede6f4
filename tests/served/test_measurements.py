"""Serving engines judge lanes by what embedded engines measured on their folder, each tenant by its own."""

from pathlib import Path

import pytest

from emblema.link.lanes import Lane
from emblema.link.policy.certificate import PROVISIONAL
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample
from emblema.served import measurements
from emblema.served.measurements import LaneMeasurements
from emblema.session.fidelity_logs import FidelityLogs
from emblema.store import Store

LANES = (("image", Lane.QUERY), ("image", Lane.PATCH))
POLICY = Policy()


def measure(store: Store, sample: Sample, times: int, salt: bytes = b"") -> None:
    """Have an embedded engine compare answers over both lanes."""
    logs, owner = FidelityLogs.of_store(store), store.tenant(salt).owner
    for kind, lane in LANES:
        for _ in range(times):
            logs.of(owner).record("m", kind, lane, sample, POLICY, accepted=sample.margin >= PROVISIONAL)
    logs.save(owner)


def spoil(store: Store, salt: bytes = b"") -> None:
    measure(store, Sample(0.5, False, 0.7), 4, salt)


def trusts(measured: LaneMeasurements, lane: Lane = Lane.PATCH, salt: bytes = b"") -> bool:
    return measured.of(salt).verdict("image", lane, POLICY).open


def test_what_another_process_measured_is_read_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as embedded, Store(tmp_path) as serving:
        own, other = LaneMeasurements(serving, "m"), LaneMeasurements(serving, "n")
        assert trusts(own)
        spoil(embedded)
        monkeypatch.setattr(measurements, "REFRESH_SECONDS", 600.0)
        assert trusts(own)
        monkeypatch.setattr(measurements, "REFRESH_SECONDS", 0.0)
        assert not trusts(own) and not trusts(own, Lane.QUERY)
        assert trusts(own, salt=b"other") and trusts(other), "another tenant's, and another model's"
        assert own.of(b"").least_margin(frozenset(LANES), POLICY) > 1, "no answer is sure enough"


def test_patches_whose_certificate_asks_for_a_margin_are_not_taken() -> None:
    with Store() as store:
        measured = LaneMeasurements(store, "m")
        for margin in (number * 0.618 % 1 for number in range(800)):
            measure(store, Sample(0.0, margin >= 0.3, margin), 1)
        log = FidelityLogs.of_store(store).of(store.tenant().owner)
        assert log.is_certified("m", frozenset(LANES)) and log.verdict("m", "image", Lane.PATCH, POLICY).open
        assert not trusts(measured) and trusts(measured, Lane.QUERY), "an answer over patches has no margin"


def test_tenants_beyond_a_bound_leave_memory_and_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "MOST_TENANTS", 3)
    with Store(tmp_path) as store:
        spoil(store, b"first")
        measured, logs, owner = LaneMeasurements(store, "m"), FidelityLogs.of_store(store), store.tenant(b"first").owner
        assert not trusts(measured, salt=b"first")
        held = logs.of(owner)
        for name in range(5):
            assert trusts(measured, salt=str(name).encode())
        assert not trusts(measured, salt=b"first") and logs.of(owner) is not held
