# SPDX-License-Identifier: Apache-2.0
"""Tensor lists of a checkpoint of Llama 3 8B, from its published dimensions.

The shape is that of MLPerf Storage's checkpointing run: 8 ranks share every tensor (ZeRO 3), weights in 16 bits, the
optimizer's copy of the weights and its two moments in 32 bits, each flattened into one tensor. `scale` divides hidden
size, feed-forward size and vocabulary, which keeps the list and divides its bytes by about the square.
"""
RANKS = 8
LAYERS = 32
HIDDEN, FEED_FORWARD, VOCABULARY = 4096, 14336, 128256
HEADS, KEY_VALUE_HEADS = 32, 8


def model(scale):
    """Name, data type and elements of each of one rank's 195 tensors."""
    hidden, feed_forward, vocabulary = HIDDEN // scale, FEED_FORWARD // scale, VOCABULARY // scale
    key_value = hidden // HEADS * KEY_VALUE_HEADS
    layer = {
        "input_norm": hidden,
        "attention.qkv": hidden * (hidden + 2 * key_value),
        "attention.out": hidden * hidden,
        "post_norm": hidden,
        "gate_up": 2 * hidden * feed_forward,
        "down": feed_forward * hidden,
    }
    whole = [("embedding", vocabulary * hidden)]
    whole += [(f"layers.{number}.{name}", elements) for number in range(LAYERS) for name, elements in layer.items()]
    whole += [("final_norm", hidden), ("head", hidden * vocabulary)]
    return [(name, "float16", max(1, elements // RANKS)) for name, elements in whole]


def optimizer(scale):
    """The six tensors of one rank: three huge ones, and for each the norms, which are not flattened."""
    parameters = sum(elements for _, _, elements in model(scale))
    states = ("master", "exp_avg", "exp_avg_sq")
    norms = 5 * HIDDEN // scale
    return [item for state in states for item in ((f"{state}.flat", "float32", parameters), (f"{state}.norms", "float32", norms))]
