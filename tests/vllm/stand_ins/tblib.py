"""Stands in for tblib, which vLLM's tests use to hand over errors of forked tests."""


class pickling_support:  # noqa: N801
    """Leaves pickling as it is."""

    @staticmethod
    def install() -> None:
        """Do nothing."""
