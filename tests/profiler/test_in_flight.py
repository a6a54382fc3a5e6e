"""What a profile keeps of a device until that has come there."""

from fresh_process import ASYNCHRONOUS_TARGET, output

CODE = """
    import gc, sys, torch, torch_tenon
    from torch_tenon import _C
    torch_tenon.target().queue(0).longest_pause = 0
    Event = type(torch_tenon.target().queue(0).commit())

    def events():
        gc.collect()
        return sum(type(x) is Event for x in gc.get_objects())

    def upload(count):
        for turn in range(count):
            torch.ones(4).to("tenon")
            if turn % 100 == 0:
                torch.tenon.synchronize()
        torch.tenon.synchronize()

    upload(5)
    log = _C.ProfileLog(1 << 20)
    upload(int(sys.argv[1]))
    kept = events()
    if sys.argv[2] == "taken":
        assert len(log.take()) // 72 >= int(sys.argv[1]) and log.lost == 0
    del log
    print(kept, events())
"""


def test_a_profile_that_nobody_looks_at_keeps_no_more_and_more_events() -> None:
    kept, after = map(int, output(CODE, "2500", "taken", TENON_TARGET=ASYNCHRONOUS_TARGET).split())
    assert kept < 1500 and after < 20


def test_a_profile_that_is_dropped_leaves_nothing() -> None:
    kept, after = map(int, output(CODE, "300", "dropped", TENON_TARGET=ASYNCHRONOUS_TARGET).split())
    assert kept >= 300 and after < 20
