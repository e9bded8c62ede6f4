"""A second device on a machine without one: the CPU keeps its numbers, and torch takes it for an accelerator.

Tensors on it say that they are on `fake:0`. What a GPU refuses is refused (tensors of two devices in one operation),
and what a GPU's user would have to wait for is counted by the place in the package that asked for it.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

import emblema

NAME = "fake"
PACKAGE = str(Path(emblema.__file__).parent)
aten = torch.ops.aten

COPIES = {aten._to_copy.default, aten.copy_.default}
"""Operations that may join two devices."""
LOOKS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default, aten.equal.default,
    aten.unique_dim.default, aten.masked_select.default, aten.is_nonzero.default,
}  # fmt: skip
"""Operations whose result the host has to know before it goes on."""
FACTORIES = ("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm")
"""Operations that make a tensor and size it inside, which a tensor of this kind cannot be."""

waits: Counter[str] = Counter()
"""How often the host waited: by file and function of the package, and operation. Emptied by whoever counts."""
_libraries: list[torch.library.Library] = []


class FakeDeviceTensor(Tensor):
    """A tensor on the fake device; `inner` holds its numbers on the CPU and shares memory as its views do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> "FakeDeviceTensor":
        """Wrap a tensor of the CPU; one that is there is handed back, as to accelerate, which makes parameters anew."""
        if isinstance(inner, FakeDeviceTensor):
            return inner
        made: FakeDeviceTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, given: Sequence[Any] = (), named: Any = None
    ) -> Any:
        """Answer what torch refuses to classes of tensors, as a GPU would."""
        with torch._C.DisableTorchFunctionSubclass():
            if function is Tensor.tolist:
                return given[0].cpu().tolist()
            if function in (Tensor.numpy, Tensor.__array__):
                raise TypeError(f"a tensor on {NAME} cannot be a numpy array")
            return function(*given, **(named or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Run an operation on the CPU's numbers."""
        return run(function, given, named or {})

    def __repr__(self, **_: Any) -> str:
        """Show the numbers."""
        return f"FakeDeviceTensor({self.inner!r})"


def register() -> None:
    """Make the device known to torch; it stays so for the rest of the process."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    # Otherwise torch.tensor(…, device=…) copies where no operation can be caught. Each thread has a flag of its own.
    torch._C._set_only_lift_cpu_tensors(True)
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin_so(thread: threading.Thread) -> None:
        torch._C._set_only_lift_cpu_tensors(True)
        begin(thread)

    threading.Thread._bootstrap_inner = begin_so  # type: ignore[attr-defined]
    every = torch.library.Library("_", "IMPL", "PrivateUse1")
    every.fallback(lambda function, *given, **named: run(function, given, named))
    factories = torch.library.Library("aten", "IMPL", "PrivateUse1")
    for name in FACTORIES:
        base, _, overload = name.partition(".")
        function = getattr(getattr(aten, base), overload or "default")
        factories.impl(name, lambda *given, function=function, **named: run(function, given, named))
    _libraries.extend((every, factories))


def run(function: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
    """Run an operation on the CPU and hand back tensors of the device that it was asked of.

    Raises:
        RuntimeError: it mixes tensors of two devices.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):
        return function.decompose(*given, **named)
    flat, _ = tree_flatten((given, named))
    held = [each for each in flat if isinstance(each, FakeDeviceTensor)]
    if function is aten._fused_sdp_choice.default:
        return 0
    if function is aten.is_pinned.default:
        return False
    wanted = named.get("device")
    here = bool(held) if wanted is None else torch.device(wanted).type == NAME
    if function is aten.copy_.default:
        here = isinstance(given[0], FakeDeviceTensor)
    named = {key: value for key, value in named.items() if key != "pin_memory"}
    if wanted is not None:
        named["device"] = torch.device("cpu")
    if held:
        _check(function, flat)
        leaves = function in COPIES and not here
        if function in LOOKS or (leaves and not named.get("non_blocking")):
            waits[f"{_caller()} {function}"] += 1
    if function is aten.histc.default and not given[0].dtype.is_floating_point:
        # The CPU counts floating numbers alone.
        return run(function, (given[0].float(), *given[1:]), named).to(given[0].dtype)
    inner = tree_map(lambda each: each.inner if isinstance(each, FakeDeviceTensor) else each, (given, named))
    result = function(*inner[0], **inner[1])
    known = {id(each.inner): each for each in held} | {id(each): each for each in flat if isinstance(each, Tensor)}
    # A view is what its base is; all else is of the mode that it is made in.
    view = bool(held) and any(
        each.alias_info is not None and not each.alias_info.is_write for each in function._schema.returns
    )

    def outside(each: Any) -> Any:
        if not isinstance(each, Tensor) or id(each) in known or not here:
            return known.get(id(each), each)
        if not view:
            return FakeDeviceTensor(each)
        with torch.inference_mode(held[0].is_inference()):
            return FakeDeviceTensor(each)

    return tree_map(outside, result)


def _check(function: Any, flat: Sequence[Any]) -> None:
    """Refuse tensors of two devices, but for single numbers and for indices, which a GPU takes from the host."""
    if function in COPIES:
        return
    for each in flat:
        if isinstance(each, Tensor) and not isinstance(each, FakeDeviceTensor) and each.dim():
            if function in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
                waits[f"{_caller()} {function}"] += 1
                continue
            raise RuntimeError(f"{function} mixes tensors of the CPU and of {NAME}")


def _caller() -> str:
    """Return the place in the package nearest to this call, as `room/file.py:function`."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return f"{path[len(PACKAGE) + 1 :]}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside the package"
