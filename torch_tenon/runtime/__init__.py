"""Programs from files, with PyTorch or without: nothing here imports it, but for a program that
calls its ops.

`library` is the C interface (include/tenon.h) by ctypes, `arrays` what goes in and out, `head` what
a file says of itself, and `program` is what people use: `torch_tenon.load`. The exporter and the
compiler take `interface`, `dtypes` and `size_words` from here as well.
"""
