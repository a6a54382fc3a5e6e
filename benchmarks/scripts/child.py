"""One script in this process: `python -m benchmarks.scripts.child NAME ENGINE BEGAN`."""

import json
import sys
import time


def run(name: str, engine: str, began: float) -> dict[str, object]:
    """Runs a script; `began` is when its process was started, on the clock of `time.time`.

    Gives seconds since then: `imported`, and after each step; the steps' numbers; what the device
    did, if it was there.
    """
    import torch

    from benchmarks.scripts import load_all, load_unseen

    function = load_all().get(name) or load_unseen()[name]
    imported = time.time() - began
    torch.manual_seed(0)
    device = "tenon" if engine == "tenon" else "cpu"
    compiled = engine == "compile"
    steps, numbers = [], []
    for number in function(device, torch.compile if compiled else lambda x: x):
        steps.append(time.time() - began)
        numbers.append(number)
    found: dict[str, object] = {"imported": imported, "steps": steps, "numbers": numbers}
    if device == "tenon":
        from torch_tenon.builder.counts import plan_counts

        found["counts"] = plan_counts()
    return found


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
