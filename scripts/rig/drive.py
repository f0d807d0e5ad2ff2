# SPDX-License-Identifier: Apache-2.0
"""One emulated drive: an NBD server whose writes lie in a volatile cache until a flush, with QEMU's NVMe controller before it.

A power cut keeps what was flushed. Of every other write a seeded generator says whether it is kept, lost, or torn at sectors,
whatever came before or after it: that is all that NVMe promises.
"""

import mmap
import os
import random
import socket
import struct
import threading
import urllib.parse

NBD_MAGIC, OPTION_MAGIC, REPLY_MAGIC = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
HANDSHAKE_FIXED = 1
OFFERS = 1 | 4 | 8  # has flags, flush, FUA
OPTION_EXPORT_NAME, OPTION_ABORT, OPTION_INFO, OPTION_GO = 1, 2, 6, 7
REPLY_ACK, REPLY_INFO, REPLY_UNSUPPORTED = 1, 3, (1 << 31) | 1
REQUEST_MAGIC, ANSWER_MAGIC = 0x25609513, 0x67446698
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
COMMAND_FUA = 1
EIO, EINVAL = 5, 22


class Drive:
    """The bytes of a drive: what reads return (`now`), and what is on its medium (the file)."""

    def __init__(self, path, serial, size_bytes, sector_bytes):
        self.serial, self.size_bytes, self.sector_bytes = serial, size_bytes, sector_bytes
        with open(path, "ab") as file:
            file.truncate(size_bytes)
        with open(path, "r+b") as file:
            self.medium = mmap.mmap(file.fileno(), size_bytes)
        self.now = mmap.mmap(-1, size_bytes)
        self.now[:] = self.medium[:]
        self.lock = threading.Lock()
        self.cached = []  # (offset, bytes, whether it is durable already), oldest first
        self.durable_ranges = []  # (first, end): a write within counts as Force Unit Access
        self.ignores_flushes = False
        self.on_command = None  # called before each write and flush
        self.failing = []  # (command, first, end): answered with an I/O error
        self.counts = dict.fromkeys(("reads", "writes", "flushes", "fua", "failed", "kept", "lost", "torn"), 0)
        self.socket_path = path + ".sock"
        # For QEMU's -drive, which takes a URL.
        self.source = f"cache=writeback,file=nbd+unix:///?socket={urllib.parse.quote(self.socket_path)}"
        if os.path.exists(self.socket_path):
            os.unlink(self.socket_path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket_path)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def power_cut(self, seed):
        """Loses writes as a power cut may. Returns how many writes were kept, lost and torn."""
        chance = random.Random(seed)
        kept_share = chance.choice((0.0, 0.3, 0.6, 0.9))
        fates = {"kept": 0, "lost": 0, "torn": 0}
        with self.lock:
            for offset, data, durable in self.cached:
                sectors = range(0, len(data), self.sector_bytes)
                if durable:
                    self.medium[offset:offset + len(data)] = data
                    continue
                fate = "lost" if chance.random() >= kept_share else "kept"
                if fate == "kept" and len(sectors) > 1 and chance.random() < 0.3:
                    fate, sectors = "torn", [at for at in sectors if chance.random() < 0.5]
                fates[fate] += 1
                self.counts[fate] += 1
                if fate == "kept":
                    self.medium[offset:offset + len(data)] = data
                elif fate == "torn":
                    for at in sectors:
                        self.medium[offset + at:offset + at + self.sector_bytes] = data[at:at + self.sector_bytes]
            self.cached.clear()
            self.now[:] = self.medium[:]
        return fates

    def power_off(self):
        """A proper end: everything in the cache reaches the medium."""
        with self.lock:
            self._empty_cache()

    def _empty_cache(self):
        for offset, data, _ in self.cached:
            self.medium[offset:offset + len(data)] = data
        self.cached.clear()

    def _fails(self, command, offset, length):
        found = any(kind == command and offset < end and first < offset + length for kind, first, end in self.failing)
        self.counts["failed"] += found
        return found

    def _perform(self, command, offset, length, data, fua):
        """An NBD error number, and the bytes that were read."""
        if offset + length > self.size_bytes:
            return EINVAL, b""
        on_command = self.on_command
        if on_command and command in (WRITE, FLUSH):
            on_command()
        with self.lock:
            if self._fails(command, offset, length):
                return EIO, b""
            if command == READ:
                self.counts["reads"] += 1
                return 0, self.now[offset:offset + length]
            if command == FLUSH:
                self.counts["flushes"] += 1
                if not self.ignores_flushes:
                    self._empty_cache()
                return 0, b""
            if command != WRITE:
                return EINVAL, b""
            self.counts["writes"] += 1
            fua = fua or any(first <= offset and offset + length <= end for first, end in self.durable_ranges)
            self.counts["fua"] += fua
            self.now[offset:offset + length] = data
            self.cached.append((offset, data, fua and not self.ignores_flushes))
            return 0, b""

    def _accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        stream = connection.makefile("rwb")
        try:
            if self._handshake(stream):
                while self._answer(stream):
                    pass
        except (EOFError, ConnectionError, BrokenPipeError):
            pass  # QEMU has ended or was killed, with requests in flight
        finally:
            connection.close()

    def _handshake(self, stream):
        stream.write(struct.pack(">QQH", NBD_MAGIC, OPTION_MAGIC, HANDSHAKE_FIXED))
        stream.flush()
        take(stream, 4)
        while True:
            _, option, length = struct.unpack(">QII", take(stream, 16))
            take(stream, length)
            if option == OPTION_EXPORT_NAME:
                stream.write(struct.pack(">QH", self.size_bytes, OFFERS) + bytes(124))
                stream.flush()
                return True
            if option in (OPTION_GO, OPTION_INFO):
                export = struct.pack(">HQH", 0, self.size_bytes, OFFERS)
                block_sizes = struct.pack(">HIII", 3, self.sector_bytes, 4096, 32 << 20)
                for kind, payload in ((REPLY_INFO, export), (REPLY_INFO, block_sizes), (REPLY_ACK, b"")):
                    stream.write(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(payload)) + payload)
            elif option == OPTION_ABORT:
                return False
            else:
                stream.write(struct.pack(">QIII", REPLY_MAGIC, option, REPLY_UNSUPPORTED, 0))
            stream.flush()
            if option == OPTION_GO:
                return True

    def _answer(self, stream):
        _, flags, command, handle, offset, length = struct.unpack(">IHHQQI", take(stream, 28))
        if command == DISCONNECT:
            return False
        data = take(stream, length) if command == WRITE else b""
        error, read = self._perform(command, offset, length, data, bool(flags & COMMAND_FUA))
        stream.write(struct.pack(">IIQ", ANSWER_MAGIC, error, handle) + read)
        stream.flush()
        return True


class SteadyDrive:
    """A drive in a file that QEMU holds to a rate: for measurements, not for power cuts."""

    def __init__(self, path, serial, size_bytes, bytes_per_second):
        self.serial, self.size_bytes = serial, size_bytes
        with open(path, "wb") as file:
            file.truncate(size_bytes)
        doubled = str(path).replace(",", ",,")
        self.source = f"cache=writeback,file={doubled},throttling.bps-total={bytes_per_second}"


def take(stream, length):
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data
