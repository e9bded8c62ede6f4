"""The embedded server as a Ray Serve application: an ingress, and replicas behind our router."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.config import ProxyLocation, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from emblema.errors import EmblemaError
from emblema.serve.logs import log_lines
from emblema.serve.ray.ingress import ReplicaGoneError, make_ingress
from emblema.serve.ray.placement import RoutedRequest
from emblema.serve.ray.replica import ForwardedRequest, ResponseStart, ServerReplica
from emblema.serve.ray.router import MEDIA
from emblema.serve.settings import ServeSettings
from emblema.serve.starting import address_of

_LOG = logging.getLogger("emblema.serve.ray")
APPLICATION = "emblema"
REPLICA, INGRESS = "Replica", "Ingress"
_WAITING = 10_000
"""Requests that an ingress holds at once; the replicas refuse what is too much for them."""
_HEALTH_SECONDS = 2.0
"""Between two looks whether a replica lives."""


class RayReplicas:
    """The replicas of an application, by Ray's handle; a `ReplicaPool`."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._handle: Any = None

    async def answer(self, request: ForwardedRequest, routed: RoutedRequest) -> AsyncIterator[ResponseStart | bytes]:
        if self._handle is None:
            handle = serve.get_deployment_handle(REPLICA, self._application)
            self._handle = handle.options(method_name="answer", stream=True)
        # By name: the router reads it among the named arguments.
        pieces = self._handle.remote(request, routed=routed)
        try:
            async for piece in pieces:
                yield piece
        except (RayActorError, BackPressureError) as error:
            raise ReplicaGoneError(str(error).splitlines()[0]) from error
        finally:
            pieces.cancel()


def application(arguments: dict[str, Any]) -> serve.Application:
    """Return the application for `serve run emblema.serve.ray.deployment:application replicas=3 store=…`.

    Args:
        arguments: `replicas`, `cluster`, `ingresses`, `cpus` and `gpus` of a replica; the others are
            settings of the server.

    Raises:
        EmblemaError: a setting is not right.
    """
    own = dict(arguments)
    replicas, ingresses = int(own.pop("replicas", 1)), int(own.pop("ingresses", 1))
    cluster = str(own.pop("cluster", "default"))
    resources = {"num_cpus": float(own.pop("cpus", 1)), "num_gpus": float(own.pop("gpus", 0))}
    if replicas < 1 or ingresses < 1:
        raise EmblemaError(f"{replicas} replicas and {ingresses} ingresses: give one or more")
    if "policy" in own:
        raise EmblemaError("policy was removed: requests go where their pictures are; leave it out")
    settings = ServeSettings.read(None, **{"several": True, **own})
    plain = settings.model_dump(mode="json")
    routing = RequestRouterConfig(
        request_router_class="emblema.serve.ray.router:MediaAffinityRouter",
        request_routing_stats_period_s=_HEALTH_SECONDS,
    )
    replica = serve.deployment(
        _Replica, name=REPLICA, num_replicas=replicas, max_ongoing_requests=settings.waiting,
        ray_actor_options=resources, request_router_config=routing, health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.grace + 5,
    )  # fmt: skip
    ingress = serve.deployment(
        serve.ingress(_ingress_builder(plain))(_Ingress), name=INGRESS, num_replicas=ingresses,
        max_ongoing_requests=_WAITING, ray_actor_options={"num_cpus": 0},
    )  # fmt: skip
    return ingress.bind(replica.bind(plain, cluster))


class _Replica:
    """A replica as Ray makes it: in a process of its own, loaded before it is sent anything."""

    async def __init__(self, settings: dict[str, Any], cluster: str) -> None:  # type: ignore[misc]
        log_lines("emblema", level=settings["log_level"])
        self._name = serve.get_replica_context().replica_id.unique_id
        self._server = ServerReplica(ServeSettings(**settings), self._name)
        await self._server.open(cluster)
        _LOG.info("replica %s of cluster %s answers, process %d", self._name, cluster, os.getpid())

    async def answer(
        self, request: ForwardedRequest, routed: RoutedRequest | None = None
    ) -> AsyncIterator[ResponseStart | bytes]:
        """Yield the answer; `routed` is for the router alone."""
        async for piece in self._server.answer(request):
            yield piece

    def record_routing_stats(self) -> dict[str, Any]:
        """Tell routers how many media are held; Ray calls this."""
        return {MEDIA: self._server.media}

    async def __del__(self) -> None:
        # Ray calls and awaits this when it stops a replica.
        if hasattr(self, "_server"):
            await self._server.close()


class _Ingress:
    """Holds the replicas' deployment, so that Ray deploys it too; the application looks it up itself."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas


def _ingress_builder(settings: dict[str, Any]) -> Callable[[], Any]:
    """Return what makes the ingress in its own process."""

    def build() -> Any:
        return make_ingress(ServeSettings(**settings), RayReplicas(serve.get_replica_context().app_name))

    return build


@contextlib.contextmanager
def local_cluster(host: str, port: int, **options: Any) -> Iterator[None]:
    """Start Ray on this machine's loopback, without its dashboard and its reports of usage, and stop it at the end.

    Args:
        host, port: where Ray's proxy listens for requests.
        options: of `ray.init`.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=True, configure_logging=True,
        **{"num_cpus": os.cpu_count(), **options},
    )  # fmt: skip
    try:
        serve.start(proxy_location=ProxyLocation.HeadOnly, http_options={"host": host, "port": port})
        yield
    finally:
        with contextlib.suppress(RayServeException, RayActorError, RayTaskError):
            serve.shutdown()
        ray.shutdown()


def run(settings: ServeSettings, replicas: int) -> None:
    """Serve with replicas on this machine until the process is told to end.

    Raises:
        EmblemaError: a replica cannot start.
    """
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    # All replicas share the machine's cores; Ray counts them, and would wait for more.
    shares = {"cpus": 0.001, "gpus": 0}
    with local_cluster(settings.host, settings.port):
        made = application({**settings.model_dump(mode="json", exclude_none=True), "replicas": replicas,
                            "cluster": f"run-{os.getpid()}", **shares})  # fmt: skip
        try:
            serve.run(made, name=APPLICATION, route_prefix="/")
        except RuntimeError as error:
            raise EmblemaError(f"the replicas could not start: {error}") from error
        print(f"ready on {address_of(settings.host, settings.port)}, {replicas} replicas", flush=True)
        ended.wait()
