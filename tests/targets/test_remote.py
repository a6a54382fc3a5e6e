"""What travels between the host and a device that runs nothing itself."""

import ast

from fresh_process import REMOTE_TARGET, output

CODE = """
    import torch, torch_tenon

    queue = torch_tenon.target().queue(0)
    copy, to_host, to_device = type(queue).copy, [], []

    def counting(self, dst, src, nbytes):
        if isinstance(dst, int):
            to_host.append(nbytes)
        if isinstance(src, int):
            to_device.append(nbytes)
        copy(self, dst, src, nbytes)

    type(queue).copy = counting
    x, y = (torch.rand(n).to("tenon") for n in (1000, 10))

    calls = {
        "a result": lambda: y * 2,
        "temporaries": lambda: (x * 2).relu().sum(),
        "two arguments": lambda: x[:10] + y,
        "in place": lambda: y.mul_(2),
        "new": lambda: torch.zeros(1000, device="tenon"),
        "memory": lambda: torch.empty(1000, device="tenon"),
        "a view": lambda: x.view(10, 100).t()[2:],
        "a number": lambda: x[3].item(),
        "a part": lambda: x[5:10].cpu(),
    }
    found = {}
    for _ in range(4):  # the first time an op runs at once, later it is recorded
        for name, call in calls.items():
            to_host.clear(), to_device.clear()
            result = call()
            torch.tenon.synchronize()
            found[name] = (sum(to_host), sum(to_device))
    print(found)
"""


def test_only_what_a_kernel_needs_is_copied() -> None:
    assert ast.literal_eval(output(CODE, TENON_TARGET=REMOTE_TARGET)) == {
        "a result": (40, 40),
        "temporaries": (4000, 4),
        "two arguments": (4040, 40),
        "in place": (40, 40),
        "new": (0, 4000),
        "memory": (0, 0),
        "a view": (0, 0),
        "a number": (4, 0),
        "a part": (20, 0),
    }
