"""The device's random numbers, written a second time: plainly, one by one."""

import math


def philox(key: int, index: int, offset: int) -> tuple[int, ...]:
    """The four words of Philox 4x32-10 for a key and a counter of 64 and 64 bits."""
    k = [key % 2**32, key >> 32]
    c = [index % 2**32, index >> 32, offset % 2**32, offset >> 32]
    for _ in range(10):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(right >> 32) ^ c[1] ^ k[0], right % 2**32, (left >> 32) ^ c[3] ^ k[1], left % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


def number(op: str, seed: int, offset: int, element: int) -> float:
    """A number of `ir.scalar_ops.RANDOM_NUMBERS`: of its distribution, and not the bits of the
    device, which share out the words of a block."""
    words = philox(seed % 2**64, element % 2**64, offset % 2**64)
    if op == "random_word":
        return words[0]
    if op == "random_bits":
        return words[0] + (words[1] << 32) - (words[1] >> 31 << 64)
    units = [(w + 0.5) / 2**32 for w in words]
    return {
        "random_unit": words[0] / 2**32,
        "random_normal": math.sqrt(-2 * math.log(units[0])) * math.cos(2 * math.pi * units[1]),
        "random_exponential": -math.log(units[0]),
        "random_cauchy": math.tan(math.pi * (units[0] - 0.5)),
    }[op]
