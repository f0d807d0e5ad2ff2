# SPDX-License-Identifier: Apache-2.0
"""Connects to an NVMe/TCP target as any local program may, without SPDK or root:

    nvme_tcp.py PORT SUBSYSTEM-NQN HOST-NQN

Prints the status of the Fabrics Connect command (NVMe over Fabrics 1.1, 3.3), 0 when the target admits the host.
"""
import socket
import struct
import sys
import uuid

ICREQ, ICRESP, CAPSULE_COMMAND, CAPSULE_RESPONSE = 0, 1, 4, 5
FABRICS_OPCODE, CONNECT = 0x7F, 1
DATA_BLOCK_IN_CAPSULE = 0x01


def connect(port, subsystem, host):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as target:
        # Initialize Connection Request: header of 8 bytes, format 0, no digests.
        target.sendall(struct.pack("<BBBBI", ICREQ, 0, 128, 0, 128) + bytes(120))
        kind, _ = receive(target)
        if kind != ICRESP:
            return f"refused before the command: PDU {kind}"
        data = uuid.uuid4().bytes + struct.pack("<H", 0xFFFF) + bytes(238)
        data += subsystem.encode().ljust(256, b"\0") + host.encode().ljust(256, b"\0") + bytes(256)
        # The command: opcode, SGL flags, command id, type; the SGL at 24; record format, queue id and size, at 40.
        command = struct.pack("<BBHB", FABRICS_OPCODE, 0x40, 1, CONNECT).ljust(24, b"\0")
        command += struct.pack("<QIBBBB", 0, len(data), 0, 0, 0, DATA_BLOCK_IN_CAPSULE)
        command += struct.pack("<HHHBBI", 0, 0, 31, 0, 0, 0).ljust(24, b"\0")
        header = struct.pack("<BBBBI", CAPSULE_COMMAND, 0, 72, 72, 72 + len(data))
        target.sendall(header + command + data)
        kind, body = receive(target)
        if kind != CAPSULE_RESPONSE:
            return f"refused: PDU {kind}"
        return struct.unpack_from("<H", body, 14)[0] >> 1


def receive(target):
    header = take(target, 8)
    kind, _, _, _, length = struct.unpack("<BBBBI", header)
    return kind, take(target, length - 8)


def take(target, length):
    data = b""
    while len(data) < length:
        more = target.recv(length - len(data))
        if not more:
            raise SystemExit("the target closed the connection")
        data += more
    return data


if __name__ == "__main__":
    print(connect(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
