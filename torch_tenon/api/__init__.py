"""What programs call: `torch.tenon`, with devices, streams, memory and random numbers.

`accelerator.py` is that module and has the names of the others. `torch_tenon` itself has `commit`.
"""
