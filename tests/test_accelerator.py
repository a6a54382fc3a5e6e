"""`torch.tenon` and `torch.accelerator`: devices, guards, streams and events."""

import threading

import pytest
import torch
from fresh_process import output, run


def test_devices_are_counted_and_named() -> None:
    assert torch.tenon.is_available() and torch.tenon.is_initialized()
    assert torch.tenon.device_count() == torch.accelerator.device_count() == 2
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tenon")
    name = torch.tenon.get_device_name(1)
    assert name.startswith(torch.tenon.target_name()) and name.endswith("1")
    properties = torch.tenon.get_device_properties("tenon:1")
    assert properties.total_memory > 0 and properties.name == name
    assert name in repr(properties)
    assert torch.float32 in torch.tenon.get_device_capability()["supported_dtypes"]
    assert torch.utils.backend_registration is not None
    assert torch._C._get_privateuse1_backend_name() == "tenon"


def test_current_device() -> None:
    assert torch.tenon.current_device() == 0
    torch.tenon.set_device("tenon:1")
    assert torch.tenon.current_device() == torch.accelerator.current_device_index() == 1
    assert torch.empty(2, device="tenon").device == torch.device("tenon:1")
    torch.accelerator.set_device_index(0)
    assert torch.tenon.current_device() == 0


def test_guards_give_the_device_back() -> None:
    with torch.tenon.device(1):
        assert torch.tenon.current_device() == 1
        with torch.tenon.device("tenon:0"):
            assert torch.tenon.current_device() == 0
        with torch.tenon.device(None):
            assert torch.tenon.current_device() == 1
        assert torch.tenon.current_device() == 1
    assert torch.tenon.current_device() == 0
    with torch.tenon.device_of(torch.ones(1, device="tenon:1")):
        assert torch.tenon.current_device() == 1
    with torch.tenon.device_of(torch.ones(1)):
        assert torch.tenon.current_device() == 0
    with torch.accelerator.device_index(1):
        assert torch.tenon.current_device() == 1
    with pytest.raises(ZeroDivisionError), torch.tenon.device(1):
        raise ZeroDivisionError
    assert torch.tenon.current_device() == 0


def test_torch_device_as_context_and_default() -> None:
    with torch.device("tenon:1"):
        assert torch.ones(2).device == torch.device("tenon:1")
    torch.set_default_device("tenon")
    try:
        assert torch.arange(3).device == torch.device("tenon:0")
    finally:
        torch.set_default_device(None)


def test_an_op_runs_on_its_tensor_s_device() -> None:
    x = torch.ones(3, device="tenon:1")
    for y in (x + 1, x.sum(), torch.empty_like(x), x.new_zeros(2), torch.rand_like(x), x.nonzero()):
        assert y.device == torch.device("tenon:1")
    assert torch.tenon.current_device() == 0


def test_each_thread_has_its_own_current_device() -> None:
    seen = []
    torch.tenon.set_device(1)
    thread = threading.Thread(target=lambda: seen.append(torch.tenon.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(1, device="tenon:7"),
        lambda: torch.ones(1).to("tenon:7"),
        lambda: torch.tenon.set_device(7),
        lambda: torch.accelerator.set_device_index(7),
        lambda: torch.tenon.synchronize(7),
        lambda: torch.tenon.memory_allocated(7),
        lambda: torch.tenon.memory_stats("tenon:7"),
        lambda: torch.tenon.mem_get_info(7),
        lambda: torch.tenon.get_rng_state(7),
        lambda: torch.tenon.get_device_name(7),
        lambda: torch.tenon.current_stream(7),
        lambda: torch.tenon.Stream("tenon:7"),
        lambda: torch.Stream("tenon:7"),
        lambda: torch.Generator("tenon:7"),
        lambda: torch.tenon.device(7).__enter__(),
    ],
)
def test_a_dead_index_is_an_error_at_the_call(use) -> None:
    with pytest.raises(RuntimeError, match=r"tenon:7 does not exist: .* has 2 devices"):
        use()
    assert torch.tenon.current_device() == 0
    assert torch.ones(1, device="tenon:1").item() == 1


def test_a_device_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected a tenon device, but got: cpu"):
        torch.tenon.set_device("cpu")


def test_tensor_and_module_methods() -> None:
    x = torch.ones(2).tenon()
    assert x.is_tenon and not torch.ones(1).is_tenon and x.device.type == "tenon"
    assert torch.ones(2).tenon(1).device == torch.device("tenon:1")
    assert next(torch.nn.Linear(2, 2).tenon().parameters()).is_tenon
    assert x.untyped_storage().is_tenon
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert packed.tenon().is_tenon and packed.to("tenon").data.is_tenon
    assert x.get_device() == 0 and torch.ones(2).tenon(1).get_device() == 1


def test_streams() -> None:
    device = torch.device("tenon:1")
    default = torch.tenon.default_stream(device)
    assert torch.tenon.current_stream(device) == default
    stream = torch.tenon.Stream(device)
    assert isinstance(default, torch.tenon.Stream) and isinstance(stream, torch.tenon.Stream)
    assert isinstance(stream, torch.Stream) and stream.device == device and stream != default
    with torch.tenon.stream(stream):
        assert torch.tenon.current_stream(device) == stream
        assert torch.tenon.current_device() == 1
        x = torch.ones(4, device="tenon") * 2
    assert torch.tenon.current_stream(device) == default
    assert torch.tenon.current_device() == 0
    stream.synchronize()
    assert stream.query() and x.sum().item() == 8
    with torch.tenon.stream(None):
        assert torch.tenon.current_device() == 0
    torch.tenon.set_stream(stream)
    assert torch.accelerator.current_stream(device) == stream
    torch.tenon.set_stream(default)


def test_a_stream_keeps_its_priority() -> None:
    stream = torch.tenon.Stream(priority=-1)
    assert stream.priority == -1 and torch.tenon.Stream().priority == 0
    assert torch.tenon.current_stream().priority == 0
    with torch.tenon.stream(stream):
        assert torch.tenon.current_stream().priority == -1
        assert torch.accelerator.current_stream() == stream
    assert torch.tenon.Stream.priority_range() == (0, 0)


def test_streams_of_pytorch() -> None:
    stream = torch.Stream("tenon")
    assert stream.device == torch.device("tenon:0")
    with stream:
        assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_stream() == torch.tenon.default_stream()
    other = torch.Stream("tenon")
    event = stream.record_event()
    other.wait_event(event)
    other.wait_stream(stream)
    event.synchronize()
    assert event.query()
    torch.accelerator.synchronize()
    torch.ones(3, device="tenon").record_stream(stream)


@pytest.mark.parametrize("event_type", ["torch.Event", "torch.tenon.Event"])
def test_events_tell_milliseconds(event_type: str) -> None:
    make = (
        (lambda **options: torch.Event("tenon", **options))
        if event_type == "torch.Event"
        else torch.tenon.Event
    )
    start, end = make(enable_timing=True), make(enable_timing=True)
    with pytest.raises(ValueError, match="Both events must be recorded"):
        start.elapsed_time(end)
    start.record()
    torch.ones(64, 64, device="tenon") @ torch.ones(64, 64, device="tenon")
    end.record()
    end.synchronize()
    assert start.query() and end.query()
    assert start.elapsed_time(end) > 0 > end.elapsed_time(start)
    untimed = make()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(untimed)


def test_event_of_a_stream() -> None:
    stream = torch.tenon.Stream("tenon:1")
    event = torch.tenon.Event()
    assert isinstance(event, torch.tenon.Event) and stream.record_event(event) is event
    event.record(stream)
    event.wait(torch.tenon.current_stream(1))
    event.synchronize()
    assert event.query()


def test_import_torch_is_enough() -> None:
    code = "import torch; print(torch.ones(2, device='tenon') + 1, torch.tenon.device_count())"
    assert output(code, TENON_DEVICES=None) == "tensor([2., 2.], device='tenon:0') 1"


@pytest.mark.slow
def test_autoload_can_be_switched_off() -> None:
    code = """
        import torch
        assert not hasattr(torch, "tenon")
        import torch_tenon
        print(torch.ones(2).to("tenon").sum().item())
    """
    assert output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "2.0"


@pytest.mark.slow
def test_the_package_may_be_imported_before_torch() -> None:
    code = "import torch_tenon, torch; print(torch.ones(1, device='tenon').item())"
    assert output(code, imports=True) == "1.0"
    assert output("import torch_tenon; print(torch_tenon.target().name)", imports=True) != ""


def test_a_wrong_target_is_named() -> None:
    done = run("import torch", TENON_TARGET="warp")
    assert done.returncode != 0
    assert "TENON_TARGET='warp': no such target; there are cpu" in done.stderr
