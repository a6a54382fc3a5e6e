"""An opencl target whose work-groups share rows, as on a GPU, on whatever device there is."""

from dataclasses import replace

from torch_tenon.targets.opencl import OpenCLTarget


class ManyItemsTarget(OpenCLTarget):
    """The devices as if one of their work-items were slow and many of them fast."""

    def __init__(self) -> None:
        super().__init__()
        self.backend.shape = replace(self.backend.shape, items=32)
