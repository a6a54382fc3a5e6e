"""TorchCTS, a conformance suite for PyTorch devices by others, on the device.

`make test-torchcts` installs it, apart, and runs it. A test (pytest calls it a node) counts where
it passes on the CPU, and has to pass on the device as well. `suite` makes the suite fit for that,
`plugin` runs within its processes, `workers` starts these, `__main__` compares.
"""
