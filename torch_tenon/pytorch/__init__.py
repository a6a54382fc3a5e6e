"""What PyTorch has to be told so that it knows the device: a file for each part of PyTorch.

Most have a function `install`, which `register.py` calls once: it puts a function of this package
in the place of PyTorch's, or calls one of PyTorch's registries.
"""
