"""The log: what each stage does, for TENON_LOG to switch on.

A stage writes to `stage("target")`, a logger of Python's named `torch_tenon.target`; programs that
configure logging on their own find it there.
"""

import logging

from torch_tenon import _C, config


def stage(name: str) -> logging.Logger:
    """The logger of a stage, one of `config.LOG_STAGES`."""
    assert name in config.LOG_STAGES, name
    return logging.getLogger(f"torch_tenon.{name}")


def apply_settings() -> None:
    """Lets the stages that TENON_LOG names write to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[tenon %(name)s] %(message)s"))
    for name in config.LOG.read():
        stage(name).setLevel(logging.DEBUG)
        stage(name).addHandler(handler)
    _C.set_logs_plans("plans" in config.LOG.read())  # the core's part, in a process that runs them
