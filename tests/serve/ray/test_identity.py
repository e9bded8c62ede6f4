"""A cluster is one model and one version."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from emblema.errors import EmblemaError
from emblema.serve.ray.identity import ReplicaIdentity, in_folder, in_redis, join_cluster
from tests.store.remote.servers import RedisServer

OURS = ReplicaIdentity("f" * 64, "reference")


@pytest.fixture(params=["folder", "redis"])
def written(request, tmp_path):
    """What replicas share: a folder, or only a Redis."""
    if request.param == "folder":
        yield in_folder(tmp_path)
        return
    server = RedisServer(tmp_path)
    yield in_redis(server.url)
    server.stop()


@pytest.mark.parametrize("change", [{"model": "e" * 64}, {"version": "0.0.9"}, {"name": "other"}])
def test_a_replica_of_another_model_or_version_is_refused(written, change):
    join_cluster([written], "default", OURS)
    join_cluster([written], "default", OURS)
    with pytest.raises(EmblemaError, match="name another cluster"):
        join_cluster([written], "default", replace(OURS, **change))
    join_cluster([written], "next", replace(OURS, **change))


def test_of_two_that_come_at_once_one_is_refused(written):
    identities = [replace(OURS, model=str(number % 2)) for number in range(8)]

    def join(identity):
        try:
            join_cluster([written], "raced", identity)
            return identity.model
        except EmblemaError:
            return None

    with ThreadPoolExecutor(8) as threads:
        joined = list(threads.map(join, identities))
    assert len({model for model in joined if model is not None}) == 1
    assert sum(model is not None for model in joined) == 4


def test_replicas_that_know_tenants_by_other_secrets_are_refused(written):
    join_cluster([written], "default", replace(OURS, tenants="a"))
    with pytest.raises(EmblemaError, match="serve-secret"):
        join_cluster([written], "default", replace(OURS, tenants="b"))


def test_all_that_is_shared_has_to_agree(tmp_path):
    join_cluster([in_folder(tmp_path / "theirs")], "default", replace(OURS, version="0.0.9"))
    with pytest.raises(EmblemaError, match="name another cluster"):
        join_cluster([in_folder(tmp_path / "own"), in_folder(tmp_path / "theirs")], "default", OURS)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b"])
def test_a_name_is_no_path(tmp_path, name):
    with pytest.raises(EmblemaError, match="no name"):
        join_cluster([in_folder(tmp_path)], name, OURS)


def test_a_damaged_seal_refuses(tmp_path):
    join_cluster([in_folder(tmp_path)], "default", OURS)
    (tmp_path / "clusters" / "default.json").write_text("{}")
    with pytest.raises(EmblemaError, match="cannot be read"):
        join_cluster([in_folder(tmp_path)], "default", OURS)
