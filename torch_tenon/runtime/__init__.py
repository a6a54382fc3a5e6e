"""Exported programs, run by `libtenon_rt.so` in this folder: without PyTorch."""
