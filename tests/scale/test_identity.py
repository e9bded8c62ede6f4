"""A cluster is one model and one version."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from emblema.errors import EmblemaError
from emblema.scale.identity import ReplicaIdentity, join_cluster

OURS = ReplicaIdentity("f" * 64, "reference")


@pytest.mark.parametrize("change", [{"model": "e" * 64}, {"version": "0.0.9"}, {"name": "other"}])
def test_a_replica_of_another_model_or_version_is_refused(tmp_path, change):
    join_cluster(tmp_path, "default", OURS)
    join_cluster(tmp_path, "default", OURS)
    with pytest.raises(EmblemaError, match="name another cluster"):
        join_cluster(tmp_path, "default", replace(OURS, **change))
    join_cluster(tmp_path, "next", replace(OURS, **change))


def test_of_two_that_come_at_once_one_is_refused(tmp_path):
    identities = [replace(OURS, model=str(number % 2)) for number in range(8)]

    def join(identity):
        try:
            join_cluster(tmp_path, "raced", identity)
            return identity.model
        except EmblemaError:
            return None

    with ThreadPoolExecutor(8) as threads:
        joined = list(threads.map(join, identities))
    assert len({model for model in joined if model is not None}) == 1
    assert sum(model is not None for model in joined) == 4


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b"])
def test_a_name_is_no_path(tmp_path, name):
    with pytest.raises(EmblemaError, match="no name"):
        join_cluster(tmp_path, name, OURS)


def test_a_damaged_seal_refuses(tmp_path):
    join_cluster(tmp_path, "default", OURS)
    (tmp_path / "clusters" / "default.json").write_text("{}")
    with pytest.raises(EmblemaError, match="damaged"):
        join_cluster(tmp_path, "default", OURS)
