"""Ops some of whose arguments live on the host, or are no tensors: metadata, scalars, storages."""

import pytest
import torch
from against_cpu import assert_same, same_on_both

aten = torch.ops.aten


@pytest.mark.parametrize("name", ["_foreach_addcmul", "_foreach_addcdiv"])
def test_scalars_of_a_list_are_a_tensor_of_the_host(name: str) -> None:
    scalars = torch.tensor([2.0, 3.0])

    def compute(device: torch.device) -> list:
        x = [torch.linspace(1, 2, 3, device=device), torch.linspace(3, 4, 5, device=device)]
        found: list[torch.Tensor] = []
        for _ in range(3):
            in_place, out = [t.clone() for t in x], [torch.empty_like(t) for t in x]
            getattr(aten, f"{name}_").Tensor(in_place, x, x, scalars)
            getattr(aten, name).Tensor_out(x, x, x, scalars, out=out)
            found += [*in_place, *out, *getattr(aten, name).Tensor(x, x, x, scalars)]
        return found

    same_on_both(compute)


def test_sizes_of_a_nested_tensor_are_on_the_host() -> None:
    sizes, strides, offsets = (
        torch.tensor([[2], [4]]),
        torch.tensor([[1], [1]]),
        torch.tensor([0, 2]),
    )

    def compute(device: torch.device) -> list:
        buffer = torch.arange(6.0, device=device)
        found: list[torch.Tensor] = []
        for op in (aten._nested_view_from_buffer, aten._nested_view_from_buffer_copy):
            nested = op(buffer, sizes, strides, offsets)
            assert nested.is_nested
            found += nested.unbind()
        buffer.add_(1)  # the view sees it, the copy does not
        found += aten._nested_view_from_buffer(buffer, sizes, strides, offsets).unbind()
        return found

    same_on_both(compute)


@pytest.mark.parametrize("name", ["slice", "select", "diagonal", "as_strided"])
def test_what_is_written_into_a_copy_may_be_of_the_host(name: str) -> None:
    arguments = {
        "slice": (torch.ones(2, 3), 0, 1, 3),
        "select": (torch.ones(3), 0, 1),
        "diagonal": (torch.ones(3),),
        "as_strided": (torch.ones(2), [2], [3], 1),
    }[name]

    def compute(device: torch.device) -> list:
        x = torch.zeros(3, 3, device=device)
        return [getattr(torch, f"{name}_scatter")(x, *arguments) for _ in range(3)]

    same_on_both(compute)


def test_tensors_are_set_to_storages() -> None:
    """The ops that return a tensor and write none to go with `set_`."""

    def compute(device: torch.device) -> list:
        y = torch.arange(4.0, device=device)
        found: list[torch.Tensor] = []
        for _ in range(2):
            x = torch.zeros(2, device=device)
            storage = y.untyped_storage()
            made = [
                aten.set.source_Storage(x, storage),
                aten.set.source_Storage_storage_offset(x, storage, 1, [2], [2]),
                aten.set.source_Tensor(x, y),
            ]
            y.add_(1)
            for m in made:
                assert m.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            out = torch.empty(0, device=device)
            assert aten.set.source_Storage_out(x, storage, out=out) is out
            found += [*made, out, x, x.set_(storage), aten.set.default(x)]
        return found

    same_on_both(compute)


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float32], ids=str)
def test_windows(dtype: torch.dtype | None) -> None:
    def compute(device: torch.device) -> list:
        found = []
        for length in (0, 1, 2, 3, 9):
            options = {"dtype": dtype, "device": device}
            found += [
                torch.kaiser_window(length, **options),
                torch.kaiser_window(length, False, **options),
                torch.kaiser_window(length, True, 5.0, **options),
                torch.hann_window(length, **options),
                torch.hamming_window(length, False, 0.4, 0.6, **options),
                torch.blackman_window(length, **options),
                torch.bartlett_window(length, **options),
            ]
            out = torch.empty(0, dtype=dtype, device=device)
            aten.kaiser_window.beta_out(length, True, 5.0, out=out)
            found.append(out)
        return found

    same_on_both(compute, rtol=1e-6, atol=1e-6)


def test_lists_may_have_tensors_of_several_devices() -> None:
    """PyTorch takes such lists apart; each of its ops checks devices itself."""
    pair = [torch.arange(3.0), torch.arange(3.0, device="tenon")]
    for _ in range(2):
        found = torch._foreach_add(pair, pair)
        assert [t.device.type for t in found] == ["cpu", "tenon"]
        assert_same(found[1], found[0])
        torch._foreach_mul_(found, 2.0)
        assert_same(found[1], 4 * pair[0])
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch._foreach_add(pair, pair[::-1])
