"""Operations of a training, for the benchmark and for the table of costs."""


def training_flops(N: int, D: int, d_ff: int, V: int, S: int, T: int) -> int:
    """Floating-point operations of one pair of S and T tokens, forward and backward."""
    feed_forward = 2 * D * d_ff  # multiplications, per position
    encoder = S * (4 * D * D + feed_forward)  # queries, keys, values and outputs
    encoder += 2 * S * S * D  # scores and weighted means
    decoder = T * (4 * D * D + feed_forward) + 2 * T * T * D
    decoder += 2 * T * D * D + 2 * S * D * D  # cross-attention: q and outputs; k and v
    decoder += 2 * S * T * D
    return 3 * 2 * (N * (encoder + decoder) + T * D * V)  # 3 passes, 2 operations each
