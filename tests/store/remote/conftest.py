"""One server of each kind for a whole run; every test has keys of its own."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from emblema.store.remote import BucketTier, CallPolicy, RedisTier
from tests.store.remote.servers import FaultyProxy, RedisServer, s3_server

# For servers that fail on purpose; whatever is asked of a sound one has the default's time.
QUICK = CallPolicy(
    connect_seconds=1.0,
    reply_seconds=1.0,
    upload_seconds=2.0,
    retries=1,
    pause_seconds=0.01,
    total_seconds=2.5,
    failures=4,
    rest_seconds=0.3,
)
SECRET = "wJalrXUtnFEMIsecret"
_numbers = itertools.count()

Make = Callable[..., RedisTier | BucketTier]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def redis_port(redis_server: RedisServer) -> int:
    return redis_server.port


@pytest.fixture
def prefix() -> str:
    return f"test/{next(_numbers)}"


def make_redis(port: int, prefix: str, **options: object) -> RedisTier:
    options = {"part_bytes": 4096, **options}
    return RedisTier(f"redis://127.0.0.1:{port}/0", prefix, **options)


def make_s3(port: int, prefix: str, **options: object) -> BucketTier:
    named = {"endpoint": f"http://127.0.0.1:{port}", "access_key_id": "tester", "region": "us-east-1"}
    options = {"part_bytes": 4096, "options": named | {"secret_access_key": SECRET}, **options}
    return BucketTier("s3://emblema-test", prefix, **options)


SERVERS: dict[str, Callable[[pytest.FixtureRequest], tuple[Make, int]]] = {
    "redis": lambda request: (make_redis, request.getfixturevalue("redis_server").port),
    "s3": lambda request: (make_s3, int(request.getfixturevalue("s3_endpoint").rpartition(":")[2])),
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> tuple[Make, int]:
    """How to make a tier, and the port of its server."""
    return SERVERS[request.param](request)


@pytest.fixture
def make(server: tuple[Make, int], prefix: str) -> Make:
    """Makes tiers that share their keys within one test."""
    kind, port = server
    return lambda **options: kind(options.pop("port", port), options.pop("prefix", prefix), **options)


@pytest.fixture
def tier(make: Make) -> Iterator[RedisTier | BucketTier]:
    made = make()
    yield made
    made.close()


@pytest.fixture
def proxy(server: tuple[Make, int]) -> Iterator[FaultyProxy]:
    made = FaultyProxy(server[1])
    yield made
    made.close()
