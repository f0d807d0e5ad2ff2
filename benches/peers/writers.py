# SPDX-License-Identifier: Apache-2.0
"""The peers. Each saves the same tensors to the same file system and is durable when its clock stops: what a writer does
not flush itself is flushed for it, inside the clock. What it wrote last is removed outside of it."""
import ctypes
import mmap
import os
import shutil
import time

MIB = 1 << 20
HUGE_PAGE = 2 * MIB
# Of Linux on x86-64 and arm64; Python's mmap does not know them.
MAP_FIXED, MAP_HUGETLB = 0x10, 0x40000


def fsync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Peer:
    """Writes one new file each time, as its users do."""

    new_file = True

    def __init__(self, directory, workload):
        self.tensors = workload.tensors
        self.path = directory / f"{self.name}.bin"
        self.prepare()

    def prepare(self):
        pass

    def save(self):
        if self.new_file:
            self.remove()
        started = time.perf_counter()
        self.write()
        return time.perf_counter() - started

    def remove(self):
        self.path.unlink(missing_ok=True)

    def close(self):
        self.remove()


class TorchSave(Peer):
    name = "torch_save_fsync"

    def write(self):
        import torch

        with self.path.open("wb") as file:
            torch.save(self.tensors, file)
            file.flush()
            os.fsync(file.fileno())


class Safetensors(Peer):
    name = "safetensors_fsync"

    def write(self):
        from safetensors.torch import save_file

        save_file(self.tensors, self.path)
        fsync(self.path)


class Dcp(Peer):
    """torch.distributed.checkpoint, which flushes its own files; every file and the directory are flushed again."""

    name = "dcp"

    def write(self):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.tensors, storage_writer=dcp.FileSystemWriter(self.path), no_dist=True)
        self.flush()

    def flush(self):
        for path in self.path.iterdir():
            fsync(path)
        fsync(self.path)

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


class DcpAsync(Dcp):
    """Its clock runs to the end of the upload: what is compared is how long the bytes take to be durable."""

    name = "dcp_async"

    def prepare(self):
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def write(self):
        import torch.distributed.checkpoint as dcp

        dcp.async_save(self.tensors, storage_writer=dcp.FileSystemWriter(self.path)).result()
        self.flush()


class DeepSpeed(Peer):
    """FastFileWriter on the asynchronous I/O op: blocks of 8 MiB, 8 in flight, 64 MiB of locked memory as a double buffer.

    It is given the storages as its own hook in torch.save gives them, so nothing is pickled. Its helper that views
    tensors as bytes is built only for accelerators: the same is done here by `view`. It calls fsync when it closes.
    """

    name = "deepspeed"

    def prepare(self):
        import deepspeed.io.fast_file_writer as module
        from deepspeed.ops.op_builder import AsyncIOBuilder

        class Views:
            def load(self):
                return self

            def cast_to_byte_tensor(self, tensors):
                import torch

                return [tensor.view(torch.uint8) for tensor in tensors]

        module.UtilsBuilder = Views
        self.module = module
        self.handle = AsyncIOBuilder().load(verbose=False).aio_handle(8 * MIB, 8, False, False, 1)
        import torch

        self.buffer = self.handle.new_cpu_locked_tensor(64 * MIB, torch.empty(0, dtype=torch.uint8))
        self.storages = [(tensor.untyped_storage(), tensor.dtype) for tensor in self.tensors.values()]

    def write(self):
        config = self.module.FastFileWriterConfig(dnvme_handle=self.handle, pinned_tensor=self.buffer)
        writer = self.module.FastFileWriter(str(self.path), config)
        writer.save_torch_storage_object_list(self.storages, False)
        writer.close()

    def close(self):
        self.handle.free_cpu_locked_tensor(self.buffer)
        super().close()


class DeepSpeedBest(DeepSpeed):
    """The same with what ours has: its buffer is in huge pages, and it writes over the blocks of its last file, which
    would lose a checkpoint to a crash. The rest of the difference is due to the writers."""

    name = "deepspeed_best"
    new_file = False

    def prepare(self):
        super().prepare()
        # Its own allocator gives small ones; huge ones take their place, at the same addresses.
        start = -(-self.buffer.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        length = (self.buffer.data_ptr() + self.buffer.nbytes - start) // HUGE_PAGE * HUGE_PAGE
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB
        if libc.mmap(start, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != start:
            raise OSError(ctypes.get_errno(), "huge pages for DeepSpeed's buffer")


PEERS = {peer.name: peer for peer in (TorchSave, Safetensors, Dcp, DcpAsync, DeepSpeed, DeepSpeedBest)}
