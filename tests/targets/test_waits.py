"""Who waits for a device, and what for, while it does not go on."""

from fresh_process import ASYNCHRONOUS_TARGET, output

from torch_tenon.log import long_waits


def test_a_wait_is_seen_while_it_lasts() -> None:
    code = """
        import threading, time, torch, torch_tenon
        from torch_tenon import _C
        x = torch.arange(5.0).to("tenon") + 1
        torch.tenon.synchronize()
        queue, goes_on = torch_tenon.target().queue(0), threading.Event()
        wait = queue.wait
        def held(event):
            goes_on.wait()
            wait(event)
        assert _C.waits() == []
        queue.wait = held
        found = []
        reader = threading.Thread(target=lambda: found.extend((x * 2).tolist()))
        reader.start()
        while not (waits := _C.waits()):
            time.sleep(0.001)
        ((device, reason, seconds, thread),) = waits
        assert (device, thread) == (0, reader.native_id) and reason and seconds >= 0, waits
        goes_on.set()
        reader.join()
        assert _C.waits() == []
        print(found)
    """
    assert output(code, TENON_TARGET=ASYNCHRONOUS_TARGET) == "[2.0, 4.0, 6.0, 8.0, 10.0]"


def test_a_long_wait_is_told_of_now_and_then() -> None:
    told: dict[tuple[int, int], float] = {}
    lines = [long_waits([(1, "copy", seconds, 7)], told) for seconds in (1, 9, 11, 12, 21, 23, 30)]
    assert [len(each) for each in lines] == [0, 0, 1, 0, 0, 1, 0]
    assert lines[2] == ["thread 7 has waited 11 s for tenon:1 (copy)"]
    assert long_waits([], told) == [] and told == {}
    assert len(long_waits([(1, "copy", 15, 7), (0, "memory", 2, 8)], told)) == 1
