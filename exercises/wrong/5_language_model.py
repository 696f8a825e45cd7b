"""Common wrong answers to sheet 5, and the points that each deserves."""

from exercises.course.wrong import wrong

wrong(
    "sampling_by_hand",
    points=1,
    why="The nucleus is always cut from the given probabilities, whatever acts before.",
    code="""
draws_a = [0.40 / 0.85, 0.16 / 0.2725, 0.40 / 0.85, 0.16 / 0.2725]
""",
)
wrong(
    "sampling_by_hand",
    points=0,
    why="What is left is not rescaled, so the probabilities do not add up to one.",
    code="""
draws_a = [0.40, 0.16, 0.40, 0.16]
""",
)
wrong(
    "typical",
    points=2,
    why="0 · log 0 is NaN, so a token that is impossible spoils its row.",
    code="""
def typical(log_probs, p):
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(1, keepdim=True)
    order = (-log_probs - entropy).abs().argsort(1)
    in_order = probs.gather(1, order)
    before = in_order.cumsum(1) - in_order
    kept = in_order.masked_fill(before >= p, 0.0)
    kept = torch.zeros_like(probs).scatter(1, order, kept)
    return kept / kept.sum(1, keepdim=True)
""",
)
wrong(
    "typical",
    points=0,
    why="This is top-p: tokens are sorted by probability.",
    code="""
def typical(log_probs, p):
    probs = log_probs.exp()
    in_order, order = probs.sort(dim=1, descending=True)
    before = in_order.cumsum(1) - in_order
    kept = in_order.masked_fill(before >= p, 0.0)
    kept = torch.zeros_like(probs).scatter(1, order, kept)
    return kept / kept.sum(1, keepdim=True)
""",
)
wrong(
    "typical",
    points=0,
    why="The token that reaches p is cut off, so less than p is kept.",
    code="""
def typical(log_probs, p):
    probs = log_probs.exp()
    entropy = -torch.special.xlogy(probs, probs).sum(1, keepdim=True)
    order = (-log_probs - entropy).abs().argsort(1)
    in_order = probs.gather(1, order)
    keep = in_order.cumsum(1) < p
    keep[:, 0] = True
    kept = torch.zeros_like(probs).scatter(1, order, in_order * keep)
    return kept / kept.sum(1, keepdim=True)
""",
)
wrong(
    "typical",
    points=0,
    why="Probabilities stay in the sorted order and belong to the wrong tokens.",
    code="""
def typical(log_probs, p):
    probs = log_probs.exp()
    entropy = -torch.special.xlogy(probs, probs).sum(1, keepdim=True)
    order = (-log_probs - entropy).abs().argsort(1)
    in_order = probs.gather(1, order)
    kept = in_order.masked_fill(in_order.cumsum(1) - in_order >= p, 0.0)
    return kept / kept.sum(1, keepdim=True)
""",
)
wrong(
    "per_word",
    points=1,
    why="The end tokens are forgotten.",
    code="""
def per_word(perplexity, subwords, words, sentences):
    return perplexity ** (subwords / words)
""",
)
wrong(
    "per_word",
    points=0,
    why="Perplexities are averaged like losses: a product, not a power.",
    code="""
def per_word(perplexity, subwords, words, sentences):
    return perplexity * (subwords + sentences) / (words + sentences)
""",
)
wrong(
    "rotary_terms",
    points=1,
    why="The sine's sign is that of the angle from the query to the key.",
    code="""
def rotary_terms(q, k):
    a, b = q[0::2], q[1::2]
    c, d = k[0::2], k[1::2]
    return a * c + b * d, b * c - a * d
""",
)
wrong(
    "rotary_terms",
    points=0,
    why="Pairs are made from the two halves of a vector, as some other programs do.",
    code="""
def rotary_terms(q, k):
    a, b = q.chunk(2)
    c, d = k.chunk(2)
    return a * c + b * d, a * d - b * c
""",
)
wrong(
    "prefix_mask",
    points=1,
    why="Padding is not closed: with padding on the left, the causal mask does not hide it.",
    code="""
def prefix_mask(padding, prefix, T):
    question = torch.arange(T) < (padding + prefix).unsqueeze(1)
    return subsequent_mask(T) | question.unsqueeze(1)
""",
)
wrong(
    "prefix_mask",
    points=0,
    why="Queries of the question see everything, the answer as well.",
    code="""
def prefix_mask(padding, prefix, T):
    places = torch.arange(T)
    question = places < (padding + prefix).unsqueeze(1)
    real = places >= padding.unsqueeze(1)
    return (subsequent_mask(T) | question.unsqueeze(2)) & real.unsqueeze(1)
""",
)
wrong(
    "prefix_mask",
    points=0,
    why="The question is counted from the first position, not from its first token.",
    code="""
def prefix_mask(padding, prefix, T):
    places = torch.arange(T)
    question = places < prefix.unsqueeze(1)
    real = places >= padding.unsqueeze(1)
    return (subsequent_mask(T) | question.unsqueeze(1)) & real.unsqueeze(1)
""",
)
wrong(
    "longest_conversation",
    points=1,
    why="Only keys are counted, or only values.",
    code="""
def longest_conversation(memory, weights, conversations, layers, d_model, heads, groups, size):
    return max(0, memory - weights) // (conversations * layers * groups * (d_model // heads) * size)
""",
)
wrong(
    "longest_conversation",
    points=0,
    why="The cache is counted as if every query head had keys and values of its own.",
    code="""
def longest_conversation(memory, weights, conversations, layers, d_model, heads, groups, size):
    return max(0, memory - weights) // (conversations * 2 * layers * d_model * size)
""",
)
wrong(
    "longest_conversation",
    points=1,
    why="A negative number of tokens, if not even the weights fit.",
    code="""
def longest_conversation(memory, weights, conversations, layers, d_model, heads, groups, size):
    return (memory - weights) // (conversations * 2 * layers * groups * (d_model // heads) * size)
""",
)
ROTATED_CACHE = """
class RotatedCache(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.attn = attn
        self.keys = None
        self.values = None

    def forward(self, x, *_):
        rows = x.flatten(0, 1).unsqueeze(1)
        q, k, v = self.attn.project(rows, rows, rows)
        place = torch.tensor([0 if self.keys is None else self.keys.size(2)])
        q = rotate(q, place)
        k = rotate(k, place)
        if self.keys is not None:
            k = torch.cat([self.keys, k], dim=2)
            v = torch.cat([self.values, v], dim=2)
        self.keys = k
        self.values = v
        q = q.squeeze(2).unflatten(1, (k.size(1), -1))
        heads, _ = attention(q, k, v)
        return self.attn.join(heads.flatten(1, 2).unsqueeze(2)).view_as(x)

    def keep(self, rows):
        self.keys = self.keys[rows]
        self.values = self.values[rows]
"""
wrong(
    "rotated_cache",
    points=0,
    why="The cache of the text under another name: it rotates all keys at every step.",
    code="""
from the_annotated_transformer import CachedAttention

class RotatedCache(CachedAttention):
    pass
""",
)
wrong(
    "rotated_cache",
    points=0,
    why="Each new key and query is rotated as if it stood at place 0.",
    code=ROTATED_CACHE.replace("0 if self.keys is None else self.keys.size(2)", "0"),
)
wrong(
    "rotated_cache",
    points=0,
    why="All keys are rotated again at every step, though those in the cache are rotated already.",
    code=ROTATED_CACHE.replace("        k = rotate(k, place)\n", "").replace(
        "        self.keys = k\n",
        "        k = rotate(k, torch.arange(k.size(2)))\n        self.keys = k\n",
    ),
)
wrong(
    "rotated_cache",
    points=0,
    why="Heads of queries are dealt out to the groups in turn, not in blocks.",
    code=ROTATED_CACHE.replace(
        "unflatten(1, (k.size(1), -1))", "unflatten(1, (-1, k.size(1))).transpose(1, 2)"
    ).replace("heads.flatten(1, 2)", "heads.transpose(1, 2).flatten(1, 2)"),
)
wrong(
    "rotated_cache",
    points=3,
    why="Shared heads are kept once, but copied at every step.",
    code=ROTATED_CACHE.replace(
        "        q = q.squeeze(2).unflatten(1, (k.size(1), -1))\n"
        "        heads, _ = attention(q, k, v)\n",
        "        copies = q.size(1) // k.size(1)\n"
        "        k, v = (each.repeat_interleave(copies, dim=1) for each in (k, v))\n"
        "        heads, _ = attention(q, k, v)\n",
    ),
)
wrong(
    "rotated_cache",
    points=3,
    why="Shared heads are copied before they are kept, so the cache is as large as without groups.",
    code=ROTATED_CACHE.replace(
        "        k = rotate(k, place)\n",
        "        copies = q.size(1) // k.size(1)\n"
        "        k = rotate(k, place).repeat_interleave(copies, dim=1)\n"
        "        v = v.repeat_interleave(copies, dim=1)\n",
    ),
)
wrong(
    "rotated_cache",
    points=3,
    why="`keep` forgets the values.",
    code=ROTATED_CACHE.replace("        self.values = self.values[rows]\n", ""),
)
BIGRAMS = """
def bigrams(sentences, V, k):
    counts = torch.full((V, V), k)
    for ids in sentences:
        for this, following in itertools.pairwise(ids):
            counts[this, following] += 1
    return (counts / counts.sum(dim=1, keepdim=True)).log()

bigram_perplexity = 2.52
model_perplexity = 1.77
lowest_perplexity = 1.70
"""
wrong(
    "bigrams",
    points=1,
    why="Counts are divided by the number of all pairs: p(a, b) and not p(b | a).",
    code=BIGRAMS.replace("counts.sum(dim=1, keepdim=True)", "counts.sum()"),
)
wrong(
    "bigrams",
    points=1,
    why="Rows and columns are confused: p(this | next).",
    code=BIGRAMS.replace("counts[this, following]", "counts[following, this]"),
)
wrong(
    "bigrams",
    points=1,
    why="The lowest perplexity is that of a sentence, not of a token.",
    code=BIGRAMS.replace("lowest_perplexity = 1.70", "lowest_perplexity = 3168.0"),
)
wrong(
    "bigrams",
    points=1,
    why="The start token is counted among the tokens that are predicted.",
    code=BIGRAMS.replace("lowest_perplexity = 1.70", "lowest_perplexity = 1.65"),
)
