"""The loop tree: what lies between a fused group and text.

`lower` makes a tree of a group, in its plain form. Each other file is a rewrite, a function from
tree to tree; which ones run, and with which numbers, a target's backend decides. `show` prints a
tree for people, and a target's dialect for its compiler.
"""
