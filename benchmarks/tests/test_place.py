"""The simulator of placement, on clusters whose outcome can be counted by hand."""

from dataclasses import replace

import pytest

from benchmarks.place.amounts import amounts_of, most_shown
from benchmarks.place.beside import filled
from benchmarks.place.costs import TierCosts, measured_costs
from benchmarks.place.policies import make_policies
from benchmarks.place.routing import time_routing
from benchmarks.place.simulator import ClusterOptions, SimulatedCluster
from benchmarks.place.studies import STUDIES, settings_of, simulate
from benchmarks.place.trace import TraceOptions, make_trace
from benchmarks.rowfile import write_rows
from emblema.errors import EmblemaError
from emblema.scale.placement import RoutedRequest

COSTS = TierCosts("made up", device=1.0, disk=10.0, computed=100.0, bytes=1_000, source="")
SLOW = ClusterOptions(replicas=1, device=10, host=10, seconds_apart=1e6)


class Always:
    """Names one replica."""

    def __init__(self, replica=0):
        self.replica = replica

    def set_replicas(self, replicas):
        pass

    def rank(self, request, load):
        return [self.replica]

    def note(self, request, replica):
        pass


def run(options, *shown, placement=None):
    trace = [RoutedRequest(pictures) for pictures in shown]
    return SimulatedCluster(options, COSTS, 1).run(trace, placement or Always())


def test_a_picture_is_computed_once_and_then_in_memory():
    found = run(SLOW, (1, 2), (1, 2, 3, 4))
    assert found.hits == {"device": 0.5, "host": 0, "shared": 0, "computed": 0.5}
    assert found.p50 == found.p99 == found.mean == 2 * 1 + 2 * 100


def test_what_leaves_memory_is_on_the_replicas_disk_and_then_shared():
    small = replace(SLOW, device=1, host=2)
    assert run(small, (1,), (2,), (1,), (1,)).hits["host"] == 0.5
    found = run(small, (1,), (2,), (3,), (1,), (1,), (9,))
    assert found.hits == pytest.approx({"device": 1 / 3, "host": 0, "shared": 1 / 3, "computed": 1 / 3})
    assert found.bytes == 1_000


def test_transfers_wait_for_the_shared_tiers_bandwidth():
    options = replace(SLOW, device=1, host=1, shared=10.0, link=1e12)
    found = run(options, (1,), (2,), (3,), (1, 2))
    # One picture is computed in 100 s; two of 1,000 bytes come at 10 bytes a second, which takes longer than reading.
    assert found.p50 == pytest.approx((100.0 + 200.0) / 2)


def test_a_replica_that_is_lost_takes_its_memory_along():
    two = replace(SLOW, replicas=2, lost=0.5)
    lost = SimulatedCluster(two, COSTS, 1).run([RoutedRequest((1,))] * 4, make_policies(1, 100)["set affinity"])
    assert lost.hits["shared"] == 0.5
    kept = SimulatedCluster(replace(two, lost=0.0), COSTS, 1).run(
        [RoutedRequest((1,))] * 4, make_policies(1, 100)["set affinity"]
    )
    assert kept.hits["device"] == 1.0


@pytest.mark.parametrize("seed", [1, 22])
def test_affinity_moves_less_than_two_choices(seed):
    trace = make_trace(TraceOptions(chunks=2_000, requests=3_000, open=100), seed)
    options = ClusterOptions(replicas=8, device=60, host=300)
    policies = make_policies(seed, 10**5).items()
    found = {name: SimulatedCluster(options, COSTS, seed).run(trace, policy) for name, policy in policies}
    assert found["set affinity"].bytes < found["two choices"].bytes
    assert found["set affinity"].hits["device"] > found["two choices"].hits["device"]
    assert all(sum(outcome.hits.values()) == pytest.approx(1.0) for outcome in found.values())


def test_a_trace_is_its_seeds_and_shows_each_picture_once():
    options = TraceOptions(chunks=1_000, requests=500, churn=0.2)
    trace = make_trace(options, 5)
    assert trace == make_trace(options, 5) != make_trace(options, 6)
    assert all(len(set(request.digests)) == len(request.digests) > 0 for request in trace)
    assert max(digest for request in trace for digest in request.digests) >= 1_000
    assert all(request.session for request in trace)


def test_costs_are_the_reports():
    for name in ("store", "vllm"):
        found = measured_costs(name)
        assert 0 < found.device < found.disk < found.computed
        assert found.bytes > 1e6
    with pytest.raises(EmblemaError, match="choose store or vllm"):
        measured_costs("assumed")


def test_every_study_runs_small():
    chosen = {setting.study: setting for setting in settings_of(STUDIES, 0.002)}
    assert set(chosen) == set(STUDIES)
    rows = simulate(chosen["lost"], COSTS, 3)
    assert [row["policy"] for row in rows] == list(make_policies(1, 1))


def test_routing_is_bounded():
    found = time_routing(1_000, 10, 3, requests=50)
    assert found.kept == 1_000
    assert 0 < found.bytes < 1_000
    assert 0 < found.rank <= found.rank_p99


def test_shares_of_a_zipf_law():
    exact = [rank**-0.9 for rank in range(1, 10_001)]
    top = most_shown(10_000, 0.8, 0.9)
    assert sum(exact[:top]) / sum(exact) == pytest.approx(0.8, abs=0.002)
    found = amounts_of(10**6, 160.0)
    assert found.rows < found.all_rows == 10**6 * 1_024 * 57_344
    assert found.hot + found.warm < 10**6


def test_what_was_not_measured_is_an_earlier_runs(tmp_path):
    rows = [{"study": "load", "value": 0.5}]
    earlier = {"asked": {"seed": 7, "real_seed": 8}, "rows": rows, "costs": [{"name": "store"}], "routing": [{"a": 1}],
               "amounts": [], "real": [{"b": 2}], "streams": [{"c": 3}]}  # fmt: skip
    path = write_rows(earlier, tmp_path / "place.json")
    nothing = {"asked": {"seed": 9}, "costs": [{"name": "vllm"}], "rows": [], "routing": [], "amounts": [], "real": []}
    found = filled(nothing | {"streams": [{"c": 4}]}, [path])
    assert (found["rows"], found["costs"], found["real"]) == (rows, [{"name": "store"}], [{"b": 2}])
    assert found["streams"] == [{"c": 4}], "this run's own"
    assert {name: told["seed"] for name, told in found["taken"].items()} == {"rows": 7, "routing": 7, "real": 8}
    again = filled(nothing | {"streams": []}, [write_rows(found, tmp_path / "second.json")])
    assert again["taken"]["real"]["seed"] == 8, "of the run that measured it"
    assert again["taken"]["streams"]["seed"] == 9
    with pytest.raises(EmblemaError, match="cannot be read"):
        filled(nothing | {"streams": []}, [tmp_path / "none.json"])
