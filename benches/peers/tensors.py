# SPDX-License-Identifier: Apache-2.0
"""The bytes that every writer saves: tensors in ordinary memory, random so that nothing can compress them."""
import ctypes
import dataclasses

import numpy
import torch

from .library import Shard

ALIGNMENT = 64


@dataclasses.dataclass
class Workload:
    """Tensors, each in a piece of ordinary memory of its own."""

    tensors: dict
    bytes: int

    def shards(self):
        """Where each lies in a segment: one after the other. The names live as long as the array."""
        array, offset = (Shard * len(self.tensors))(), 0
        for place, (name, tensor) in zip(array, self.tensors.items()):
            place.name, place.offset_bytes, place.len_bytes = name.encode(), offset, tensor.nbytes
            place.dtype, place.dimensions = DTYPES[tensor.dtype], 1
            place.shape = (ctypes.c_uint64 * 1)(tensor.numel())
            offset += tensor.nbytes
        return array


DTYPES = {torch.uint8: b"U8", torch.float16: b"F16", torch.float32: b"F32"}


def single(size_bytes):
    return of_list([("tensor", "uint8", size_bytes)])


def of_list(tensors, seed=1):
    made = {name: random_tensor(dtype, elements, seed + number) for number, (name, dtype, elements) in enumerate(tensors)}
    return Workload(made, sum(tensor.nbytes for tensor in made.values()))


def random_tensor(dtype, elements, seed):
    tensor = torch.empty(elements, dtype=getattr(torch, dtype))
    view = tensor.view(torch.uint8).numpy()
    source = numpy.random.Generator(numpy.random.SFC64(seed))
    step = 1 << 24
    for start in range(0, len(view), step):
        part = view[start : start + step]
        part[:] = numpy.frombuffer(source.bytes(len(part)), numpy.uint8)
    return tensor
