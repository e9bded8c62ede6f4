"""Two operators that torchvision asks for while it is imported, declared where a CPU build of torch lacks them.

The wheel of torchvision that an index gives for any machine is built for CUDA; beside a CPU build of torch its library
does not load, and neither vLLM nor the models' processors can be imported. `make test-vllm` puts this file into its
environment with a line that imports it at every start, so that servers and their workers have it too. It imports
nothing before torchvision is asked for.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class Declarer(importlib.abc.MetaPathFinder):
    """Finds nothing; declares the operators the moment torchvision is looked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare()
        return None


def declare() -> None:
    """Declare what is missing, on a CPU build of torch only."""
    import torch

    if torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # torch forgets them when the library object goes.
    torch.ops.torchvision.emblema_declared = library


sys.meta_path.insert(0, Declarer())
