"""Tiers on another machine: Redis or Valkey, and buckets. Neither client is imported before its tier is made."""

from emblema.store.remote.bucket import BucketTier
from emblema.store.remote.calls import CallPolicy, OutageError
from emblema.store.remote.options import RemoteOptions
from emblema.store.remote.redis import RedisTier
from emblema.store.remote.redis_feed import RedisFeed

__all__ = ["BucketTier", "CallPolicy", "OutageError", "RedisFeed", "RedisTier", "RemoteOptions"]


def __getattr__(name: str) -> object:
    if name == "S3Tier":
        raise ImportError("S3Tier was renamed: use BucketTier, which takes s3://, gs:// and az:// addresses")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
