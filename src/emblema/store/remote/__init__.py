"""Tiers on another machine: Redis or Valkey, and S3. Neither client is imported before its tier is made."""

from emblema.store.remote.calls import CallPolicy, OutageError, RemoteStatistics
from emblema.store.remote.options import RemoteOptions
from emblema.store.remote.redis import RedisTier
from emblema.store.remote.redis_feed import RedisFeed
from emblema.store.remote.s3 import S3Tier

__all__ = [
    "CallPolicy",
    "OutageError",
    "RedisFeed",
    "RedisTier",
    "RemoteOptions",
    "RemoteStatistics",
    "S3Tier",
]
