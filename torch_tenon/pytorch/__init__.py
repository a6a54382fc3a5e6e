"""What PyTorch has to be told so that it knows the device: a file for each part of PyTorch.

Most of these replace a function that asks for CUDA alone. `install` of each does that, once.
"""
