#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Epochs and homes as test_members.c has them written down: XXH3-64 of up to 240 bytes, after xxHash's specification
(doc/xxhash_spec.md), without libxxhash. Prints the tables of that test; needs nothing but Python."""

MASK = (1 << 64) - 1
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
SECRET = bytes.fromhex(  # the first 136 bytes of the default secret
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee035"
    "90e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04b"
    "cdb45931c89f7ec9d9787364eac5ac8334d3ebc3")


def r32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def r64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def fold(a, b):
    return a * b & MASK ^ a * b >> 64


def swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def rotl(x, n):
    return (x << n | x >> (64 - n)) & MASK


def avalanche(h):
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def avalanche_xxh64(h):
    h = (h ^ h >> 33) * P64[1] & MASK
    h = (h ^ h >> 29) * P64[2] & MASK
    return h ^ h >> 32


def mix(data, at, secret_at, seed):
    return fold(r64(data, at) ^ (r64(SECRET, secret_at) + seed & MASK),
                r64(data, at + 8) ^ (r64(SECRET, secret_at + 8) - seed & MASK))


def short(data, seed):
    """Up to 16 bytes."""
    n = len(data)
    if not n:
        return avalanche_xxh64(seed ^ r64(SECRET, 56) ^ r64(SECRET, 64))
    if n < 4:
        combined = data[0] << 16 | data[n >> 1] << 24 | data[-1] | n << 8
        return avalanche_xxh64(combined ^ ((r32(SECRET, 0) ^ r32(SECRET, 4)) + seed & MASK))
    if n < 9:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
        h = (r32(data, n - 4) + (r32(data, 0) << 32)) ^ ((r64(SECRET, 8) ^ r64(SECRET, 16)) - seed & MASK)
        h ^= rotl(h, 49) ^ rotl(h, 24)
        h = h * 0x9FB21C651E98DF25 & MASK
        h = (h ^ (h >> 35) + n) * 0x9FB21C651E98DF25 & MASK
        return h ^ h >> 28
    low = r64(data, 0) ^ ((r64(SECRET, 24) ^ r64(SECRET, 32)) + seed & MASK)
    high = r64(data, n - 8) ^ ((r64(SECRET, 40) ^ r64(SECRET, 48)) - seed & MASK)
    return avalanche(n + swap64(low) + high + fold(low, high) & MASK)


def xxh3(data, seed=0):
    n = len(data)
    assert n <= 240
    if n <= 16:
        return short(data, seed)
    h = n * P64[0] & MASK
    if n <= 128:
        for i in range((n - 1) // 32 + 1):
            h += mix(data, 16 * i, 32 * i, seed) + mix(data, n - 16 * (i + 1), 32 * i + 16, seed)
        return avalanche(h & MASK)
    for i in range(8):
        h += mix(data, 16 * i, 16 * i, seed)
    h = avalanche(h & MASK)
    for i in range(8, n // 16):
        h += mix(data, 16 * i, 16 * (i - 8) + 3, seed)
    return avalanche(h + mix(data, n - 16, 136 - 17, seed) & MASK)


LISTS = ("a@local:x", "a@local:x/b@local:y", "node1@10.0.0.1:7471/node2@10.0.0.2:7471",
         "one@[fd00::1]:7471/three@[fd00::3]:7471/two@[fd00::2]:7471",
         "/".join(f"host-{i:02}.example@10.1.2.{i}:{7400 + i}" for i in range(1, 7)))
# What a file may be known by: so many bytes that count up.
LENGTHS = (1, 3, 4, 8, 9, 16, 17, 24, 64, 128, 129, 240)


def home(names, identity):
    return max(range(len(names)), key=lambda i: xxh3(identity, xxh3(names[i].encode())))


def main():
    assert xxh3(b"") == 0x2D06800538D394C2  # xxHash's own
    for text in LISTS:
        names = [member.split("@")[0] for member in text.split("/")]
        homes = ", ".join(str(home(names, bytes((7 * n + i) & 255 for i in range(n)))) for n in LENGTHS)
        print(f'    {{"{text}", 0x{xxh3(text.encode()):016x}, {{{homes}}}}},')


if __name__ == "__main__":
    main()
