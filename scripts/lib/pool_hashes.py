# SPDX-License-Identifier: Apache-2.0
"""The two checksums of a pool: XXH3-128 and CRC-64/NVME, from their public specifications."""

import struct

M64 = (1 << 64) - 1

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
EIGHT = struct.Struct("<8Q")
LANE_KEYS = [EIGHT.unpack_from(SECRET, 8 * n) for n in range(17)]


def avalanche(x):
    x = ((x ^ (x >> 37)) * 0x165667919E3779F9) & M64
    return x ^ (x >> 32)


def accumulate(lanes, stripe, keys):
    a0, a1, a2, a3, a4, a5, a6, a7 = lanes
    d0, d1, d2, d3, d4, d5, d6, d7 = stripe
    k0, k1, k2, k3, k4, k5, k6, k7 = (d ^ k for d, k in zip(stripe, keys))
    low = 0xFFFFFFFF
    return ((a0 + d1 + (k0 & low) * (k0 >> 32)) & M64, (a1 + d0 + (k1 & low) * (k1 >> 32)) & M64,
            (a2 + d3 + (k2 & low) * (k2 >> 32)) & M64, (a3 + d2 + (k3 & low) * (k3 >> 32)) & M64,
            (a4 + d5 + (k4 & low) * (k4 >> 32)) & M64, (a5 + d4 + (k5 & low) * (k5 >> 32)) & M64,
            (a6 + d7 + (k6 & low) * (k6 >> 32)) & M64, (a7 + d6 + (k7 & low) * (k7 >> 32)) & M64)


def xxh3_128(data):
    """The hash as 16 bytes, least significant first. Inputs of structures are longer than 240 bytes, those of ids longer than 16."""
    size = len(data)
    if size <= 240:
        return xxh3_128_middle(data)
    lanes = (P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1)
    scramble_keys = LANE_KEYS[16]
    last_block = (size - 1) // 1024 * 1024
    for offset in range(0, last_block + (size - 1 - last_block) // 64 * 64, 64):
        lanes = accumulate(lanes, EIGHT.unpack_from(data, offset), LANE_KEYS[offset // 64 % 16])
        if offset % 1024 == 960 and offset < last_block:
            lanes = tuple(((a ^ (a >> 47) ^ k) * P32_1) & M64 for a, k in zip(lanes, scramble_keys))
    lanes = accumulate(lanes, EIGHT.unpack_from(data, size - 64), EIGHT.unpack_from(SECRET, 192 - 71))

    def merged(start, secret_offset):
        keys = EIGHT.unpack_from(SECRET, secret_offset)
        for i in range(0, 8, 2):
            product = (lanes[i] ^ keys[i]) * (lanes[i + 1] ^ keys[i + 1])
            start += (product & M64) ^ (product >> 64)
        return avalanche(start & M64)

    return struct.pack("<QQ", merged(size * P64_1 & M64, 11), merged(~(size * P64_2) & M64, 192 - 75))


def xxh3_128_middle(data):
    """The same of 17 to 240 bytes."""
    size = len(data)
    if size < 17:
        raise ValueError("an input that this hash is not used for")
    acc = [size * P64_1 & M64, 0]

    def mix(first, second, secret_offset):
        words = [struct.unpack_from("<QQ", data, at) for at in (first, second)]
        for lane in (0, 1):
            keys = struct.unpack_from("<QQ", SECRET, secret_offset + 16 * lane)
            product = (words[lane][0] ^ keys[0]) * (words[lane][1] ^ keys[1])
            acc[lane] = ((acc[lane] + ((product & M64) ^ (product >> 64))) & M64) ^ (sum(words[1 - lane]) & M64)

    if size <= 128:
        for i in range((size - 1) // 32, -1, -1):
            mix(16 * i, size - 16 * i - 16, 32 * i)
    else:
        for i in range(4):
            mix(32 * i, 32 * i + 16, 32 * i)
        acc[:] = map(avalanche, acc)
        for i in range(4, size // 32):
            mix(32 * i, 32 * i + 16, 32 * (i - 4) + 3)
        mix(size - 16, size - 32, 103)
    high = acc[0] * P64_1 + acc[1] * P64_4 + size * P64_2
    return struct.pack("<QQ", avalanche(sum(acc) & M64), -avalanche(high & M64) & M64)


def crc_tables():
    # CRC-64/NVME is reflected, starts with all ones and ends inverted.
    bytewise = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x9A6C9329AC4BC9B5 if value & 1 else 0)
        bytewise.append(value)
    step = lambda value: value >> 8 ^ bytewise[value & 0xFF]
    # Table k: what 16 bits do that k more pairs of bytes follow.
    tables = [[step(step(value)) for value in range(65536)]]
    while len(tables) < 4:
        tables.append([step(step(value)) for value in tables[-1]])
    return bytewise, tables


CRC_TABLES = []


def crc64(data):
    if not CRC_TABLES:
        CRC_TABLES.extend(crc_tables())
    bytewise, (t0, t1, t2, t3) = CRC_TABLES
    crc, whole = M64, len(data) // 8 * 8
    for (word,) in struct.iter_unpack("<Q", memoryview(data)[:whole]):
        crc ^= word
        crc = t3[crc & 0xFFFF] ^ t2[crc >> 16 & 0xFFFF] ^ t1[crc >> 32 & 0xFFFF] ^ t0[crc >> 48]
    for byte in data[whole:]:
        crc = bytewise[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ M64
