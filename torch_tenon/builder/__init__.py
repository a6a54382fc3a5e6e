"""Who makes plans of recorded windows: a process of its own, or a thread of this one.

The core looks among the files of plans first (`csrc/pytorch/windows/plan_file.h`), and asks the
builder for what is not there: `server.py` is the process, `thread.py` the thread where there can be
no process. `TENON_BUILDER` chooses.
"""
