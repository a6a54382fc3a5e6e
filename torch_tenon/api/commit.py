"""`torch_tenon.commit`: running what was recorded, at a time that the program chooses."""

from torch_tenon import _C
from torch_tenon.api.indices import Device, index_of


def commit(device: Device = None) -> None:
    """Runs what was recorded on a device, the current one if none is named.

    Never needed: whatever looks at a result does it.
    """
    _C.commit(index_of(device))
