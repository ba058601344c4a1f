"""A pretended device: tensors that compute on the CPU, but refuse what a tensor on a GPU would refuse.

No accelerator is at hand where the tests run, and tensors on the wrong device are the commonest fault on
one. Inside `elsewhere` the device `DEVICE` exists. Its tensors hold CPU tensors and give their results,
but an operation that mixes them with tensors of the CPU fails as on CUDA: only numbers without axes may
come from the CPU, in operations by element. Indices must be on the device too, where CUDA would copy
them at every call. Random numbers must come from a generator of the same device: `generator`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy:0")  # PyTorch knows the name, and nothing is built for it
_MOVES = {"_to_copy", "copy_", "_local_scalar_dense"}  # may be between devices
_ALONE = {"cat", "stack", "index", "index_put", "index_put_", "index_select", "gather", "scatter", "mm",
          "bmm", "addmm", "searchsorted", "embedding"}  # fmt: skip


class WrongDeviceError(RuntimeError):
    """What a GPU would refuse: tensors of two devices in one operation."""


class Held(Tensor):
    """A tensor on the pretended device; `held` is the tensor of the CPU that computes in its place."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Held":
        make: Any = Tensor._make_wrapper_subclass
        new = make(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
            requires_grad=held.requires_grad,
        )
        new.held = held.detach()
        return new

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Held({self.held!r})"

    def __init__(self, held: Tensor) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, None)


class _Factories(TorchDispatchMode):
    """Tensors that are made on the pretended device."""

    def __init__(self, double: bool) -> None:
        super().__init__()
        self.double = double

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, self)


class _Generators(TorchFunctionMode):
    """Functions that do not reach the dispatcher as they are: new tensors from lists, and generators."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        rng = kwargs.get("generator")
        if rng is not None:
            tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
            named = kwargs.get("device")
            there = torch.device(named) if named is not None else None
            there = there or (tensors[0].device if tensors else torch.device("cpu"))
            if there.type != rng.device.type:
                raise WrongDeviceError(
                    f"{func.__name__}: the generator is on {rng.device}, the numbers are on {there}"
                )
        if func in (torch.tensor, torch.as_tensor) and _is_there(kwargs.get("device")):
            kwargs.pop("device")
            return func(*args, **kwargs).to(DEVICE)
        own = args[0] if args and isinstance(args[0], Held) else None
        if own is not None:  # what PyTorch does below the dispatcher, or refuses subclasses
            if func is Tensor.tolist:
                return own.cpu().tolist()
            if func is Tensor.data_ptr:
                return own.held.data_ptr()
            if func is Tensor.new_tensor:
                return torch.tensor(*args[1:], **{"dtype": own.dtype, **kwargs}).to(DEVICE)
            if func in (Tensor.__getitem__, Tensor.__setitem__):
                args = (own, _without_lists(args[1]), *args[2:])
        return func(*args, **kwargs)


class _Generator(Generator):
    """A generator of the pretended device, with the numbers of one of the CPU; its state is longer."""

    device = DEVICE  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def get_state(self) -> Tensor:
        return torch.cat([super().get_state(), torch.zeros(8, dtype=torch.uint8)])

    def set_state(self, new_state: Tensor) -> Generator:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().set_state(new_state[:-8].clone())


def SeededGenerator(device: torch.device | str = "cpu") -> Generator:  # noqa: N802
    """What `torch.Generator` is where the pretended device exists."""
    return _Generator() if _is_there(device) else Generator(device)


@contextmanager
def elsewhere(double: bool = True) -> Iterator[torch.device]:
    """Make the pretended device exist; without `double` it refuses double precision, as Metal does."""
    with _Generators(), _Factories(double):
        yield DEVICE


def generator(seed: int = 0) -> Generator:
    """A seeded generator of the pretended device."""
    return _Generator().manual_seed(seed)


def _without_lists(index: Any) -> Any:
    """An index whose lists are tensors on the device, as PyTorch makes them."""
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    return torch.tensor(list(index)).to(DEVICE) if isinstance(index, list | range) else index


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any], mode: "_Factories | None") -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    held = [one for one in tensors if isinstance(one, Held)]
    name = func._schema.name.removeprefix("aten::")
    wanted = kwargs.get("device")
    if held and name not in _MOVES:
        mixed = [one for one in tensors if not isinstance(one, Held)]
        wrong = [one for one in mixed if one.ndim or name in _ALONE]
        if wrong:
            shapes = ", ".join(str(tuple(one.shape)) for one in wrong)
            raise WrongDeviceError(
                f"{name}: a tensor of the shape {shapes} is on the CPU, others are not"
            )
    if wanted is not None and _is_there(wanted):
        kwargs = {**kwargs, "device": torch.device("cpu")}
        there = True
    elif wanted is not None:
        there = False
    elif name == "copy_":
        there = isinstance(args[0], Held)
    else:
        there = bool(held)
    plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
    found = func(*plain_args, **plain_kwargs)
    if mode is not None and not mode.double and there:
        for one in tree_leaves(found):
            if isinstance(one, Tensor) and one.dtype == torch.float64:
                raise WrongDeviceError(f"{name}: this device has no double precision")
    if not there:
        return found
    found = tree_map(lambda one: Held(one) if isinstance(one, Tensor) else one, found)
    if wanted is not None or name in ("_to_copy",):
        return found
    return return_and_correct_aliasing(func, args, kwargs, found)


def _plain(one: Any) -> Any:
    return one.held if isinstance(one, Held) else one
