"""The argument space: calls of every op with any arguments, on the CPU and on the device.

`ops.py` says which ops there are. `drawing.py` draws a call, from the numbers of `domains.py` and
from what `constraints.py` says of the op. `case.py` is a call as data and as source. `running.py`
runs it in each mode, `judgement.py` compares, `undefined.py` finds what PyTorch leaves open.
`search.py` looks for calls that fail and makes them small, `script.py` prints them.
"""
