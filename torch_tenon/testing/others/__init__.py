"""Suites of tests by others, on the device.

A test (pytest calls it a node) counts where it passes on the CPU, and has to pass on the device as
well. `suites` says what a suite is, `torchcts` and `pytorch` are two. `plugin` runs within the
processes of a suite, `workers` starts these, `__main__` compares.
"""
