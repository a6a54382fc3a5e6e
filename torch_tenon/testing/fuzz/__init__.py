"""Random programs of eager PyTorch code, run on the CPU and on the device: see `program.py`."""
