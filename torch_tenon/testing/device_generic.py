"""The device for PyTorch's device-generic tests, in the file that `TORCH_TEST_DEVICES` names:

    export TORCH_TEST_DEVICES=$(python -m torch_tenon.testing.device_generic)
    python test/test_torch.py -k TENON

PyTorch runs this file where it defines the device types of its tests. It has a device type for any
accelerator outside of its tree; what stands here takes its place, and says what the device can do,
which releases from 2.15 on ask.
"""

from collections.abc import Callable

from torch.testing._internal import common_device_type as machinery


class TenonTestBase(machinery.PrivateUse1TestBase):
    """`PrivateUse1TestBase`, with the capabilities that `@requires_capabilities` asks for."""

    @classmethod
    def _capabilities(cls) -> dict[str, Callable[[], bool]]:
        # Dtypes and attention are the CPU's, and so is what they can do.
        of_cpu = getattr(machinery.CPUTestBase, "_capabilities", dict)
        return dict(of_cpu())


def take_place() -> None:
    """Has PyTorch's tests instantiated for this class, and not for its own as well."""
    bases = machinery.device_type_test_bases
    bases[:] = [base for base in bases if base is not machinery.PrivateUse1TestBase]


TEST_CLASS = TenonTestBase  # by this name PyTorch looks for it
if __name__ == "<run_path>":  # as PyTorch runs it
    take_place()
elif __name__ == "__main__":
    print(__file__)
