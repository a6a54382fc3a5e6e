"""A model as one file that runs without Python and PyTorch: docs/export.md.

`graphs` prepares an exported graph, `methods` makes a plan of it, `objects` compiles the plan's
kernels for the processors that were asked for, `weights` lays out what is shared, `program_file`
writes it all, and `export` is what people call.
"""
