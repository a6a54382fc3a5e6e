"""Windows and plans as bytes, which the C++ core writes and reads too: docs/plan-file.md."""

from torch_tenon.compiler.wire.archive import WireError
from torch_tenon.compiler.wire.plans import plan_bytes
from torch_tenon.compiler.wire.windows import ReadWindow, foreign_ops_of, window_of

__all__ = ["ReadWindow", "WireError", "foreign_ops_of", "plan_bytes", "window_of"]
