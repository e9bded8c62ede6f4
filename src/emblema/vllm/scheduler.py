"""The scheduler's public address: `--scheduler-cls emblema.vllm.scheduler.LinkingScheduler`."""

from emblema.vllm.internals import LinkingScheduler

__all__ = ["LinkingScheduler"]
