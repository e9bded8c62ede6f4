"""The router on Ray's: names replicas by media, and falls back where it fails."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from emblema.serve.ray.placement import RoutedRequest
from emblema.serve.ray.router import ROUTED, MediaAffinityRouter

DEPLOYMENT = DeploymentID("Replica", "emblema")


class FakeReplica(SimpleNamespace):
    """What a router asks of a replica."""

    def __init__(self, name, waiting=0):
        super().__init__(replica_id=ReplicaID(name, DEPLOYMENT), waiting=waiting, multiplexed_model_ids=set())
        self.max_ongoing_requests, self.node_id, self.availability_zone = 10, "here", None
        self.routing_stats = {}

    async def get_queue_len(self, *, deadline_s):
        return self.waiting


def asking(*digests, number=0):
    routed = RoutedRequest(digests)
    metadata = RequestMetadata(f"request-{number}", f"internal-{number}")
    return PendingRequest(args=[], kwargs={ROUTED: routed}, metadata=metadata)


@pytest.fixture
def use():
    """Return what runs a test with a router over some replicas."""

    def run(body, *replicas, **options):
        async def inner():
            router = MediaAffinityRouter(
                deployment_id=DEPLOYMENT, handle_source=DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
            )
            router.initialize_state(**options)
            router.update_replicas(list(replicas))
            await asyncio.sleep(0.05)
            return await body(router)

        return asyncio.run(asyncio.wait_for(inner(), 20))

    return run


async def routed_to(router, request):
    replica = await router._choose_replica_for_request(request)
    router.on_request_routed(request, replica.replica_id, None)
    return replica.replica_id.unique_id


def test_requests_go_where_their_pictures_are(use):
    async def body(router):
        first = await routed_to(router, asking(1, 2, 3, number=1))
        again = {await routed_to(router, asking(3, 1, number=number)) for number in range(2, 22)}
        assert again == {first}

    use(body, *map(FakeReplica, "abcde"))


def test_many_at_once_each_go_where_their_own_are(use):
    async def body(router):
        homes = {digest: await routed_to(router, asking(digest, number=digest)) for digest in range(12)}
        assert len(set(homes.values())) > 1
        requests = [asking(digest, number=100 + digest) for digest in homes]
        found = await asyncio.gather(*(routed_to(router, request) for request in requests))
        assert list(found) == list(homes.values())

    use(body, *map(FakeReplica, "abcde"))


def test_a_full_replica_is_passed_over(use):
    async def body(router):
        request = asking(1)
        router.on_request_routed(request, ReplicaID("full", DEPLOYMENT), None)
        assert await routed_to(router, asking(1, number=1)) == "idle"

    use(body, FakeReplica("full", waiting=10), FakeReplica("idle"))


def test_a_replica_that_died_is_not_named(use):
    async def body(router):
        first = await routed_to(router, asking(1, number=1))
        router.on_replica_actor_died(ReplicaID(first, DEPLOYMENT))
        assert await routed_to(router, asking(1, number=2)) != first

    use(body, *map(FakeReplica, "ab"))


def test_replicas_say_how_many_media_they_hold(use):
    async def body(router):
        replica = FakeReplica("a")
        replica.routing_stats = {"media": 2}
        router.update_replicas([replica])
        for number in range(5):
            router.on_request_routed(asking(number), replica.replica_id, None)
        places = router.placement.places
        assert [places.find(number) for number in range(5)] == [(), (), (), ("a",), ("a",)]
        replica.routing_stats = {"media": "nonsense"}
        router.update_replicas([replica])
        assert router.failures == 0

    use(body, FakeReplica("a"))


class BrokenPlacement:
    def set_replicas(self, replicas):
        raise RuntimeError("set")

    def rank(self, request, load):
        raise RuntimeError("rank")

    def note(self, request, replica):
        raise RuntimeError("note")


def test_an_error_falls_back_to_two_choices_and_is_counted(use, caplog):
    async def body(router):
        router.placement = BrokenPlacement()
        router.update_replicas([FakeReplica("a"), FakeReplica("b")])
        found = {await routed_to(router, asking(1, number=number)) for number in range(40)}
        assert found == {"a", "b"}
        assert router.failures == 81
        assert caplog.text.count("fell back to two choices") == 1

    use(body, *map(FakeReplica, "ab"))


def test_a_request_without_media_and_one_of_another_kind_are_routed(use):
    async def body(router):
        plain = PendingRequest(args=[], kwargs={}, metadata=RequestMetadata("one", "one"))
        odd = PendingRequest(args=[], kwargs={ROUTED: "nonsense"}, metadata=RequestMetadata("two", "two"))
        assert {await routed_to(router, plain), await routed_to(router, odd)} <= {"a", "b"}
        assert router.failures == 0

    use(body, *map(FakeReplica, "ab"))
