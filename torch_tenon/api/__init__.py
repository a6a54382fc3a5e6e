"""What `torch.tenon` is: devices, streams, memory and random numbers, for people's programs.

`accelerator.py` is the module itself and has the names of the others.
"""
