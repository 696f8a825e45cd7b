"""Common wrong answers to sheet 4, and the points that each deserves."""

from exercises.course.wrong import wrong

wrong(
    "break_even",
    points=0,
    why="The penalty is taken for a plain division by the length.",
    code="""
def break_even(logp, length, alpha):
    return logp * (((length + 1) / length) ** alpha - 1)
""",
)
wrong(
    "break_even",
    points=0,
    why="The mean log-probability is taken for the break-even, as if a likely token always paid.",
    code="""
def break_even(logp, length, alpha):
    return logp / length
""",
)
wrong(
    "beam_by_hand",
    points=1,
    why="The ended hypothesis competes with the others and is dropped; the bound is right.",
    code="""
held_after_the_step = ["b c .", "a b c", "a b a"]
stops_with_alpha_0 = True
largest_limit_with_alpha_1 = 4
""",
)
wrong(
    "beam_by_hand",
    points=1,
    why="The bound uses the length that the unfinished hypothesis has now, so every limit will do.",
    code="""
held_after_the_step = ["a b c", "b c .", "a ."]
stops_with_alpha_0 = True
largest_limit_with_alpha_1 = 1000
""",
)
wrong(
    "beam_by_hand",
    points=0,
    why="Each hypothesis is continued once, as if places could not be taken twice or lost.",
    code="""
held_after_the_step = ["a b c", "b c .", "a . ."]
stops_with_alpha_0 = False
largest_limit_with_alpha_1 = 4
""",
)
wrong(
    "expected_similarity",
    points=1,
    why="Probabilities are computed without a softmax, and those of long sentences underflow.",
    code="""
def expected_similarity(candidates, log_probs, similarity):
    probs = [math.exp(each) for each in log_probs]
    expected = []
    for written in candidates:
        total = sum(p * similarity(written, other) for p, other in zip(probs, candidates))
        expected.append(total / sum(probs))
    return expected
""",
)
wrong(
    "expected_similarity",
    points=0,
    why="The two arguments of the similarity are swapped.",
    code="""
def expected_similarity(candidates, log_probs, similarity):
    weights = torch.tensor(log_probs).softmax(0).tolist()
    return [
        sum(w * similarity(other, written) for w, other in zip(weights, candidates))
        for written in candidates
    ]
""",
)
wrong(
    "expected_similarity",
    points=0,
    why="All candidates count the same, whatever the model thinks of them.",
    code="""
def expected_similarity(candidates, log_probs, similarity):
    return [
        sum(similarity(written, other) for other in candidates) / len(candidates)
        for written in candidates
    ]
""",
)
wrong(
    "head_entropies",
    points=1,
    why="Natural logarithms: the result is in nats.",
    code="""
def head_entropies(model, src, src_mask):
    with evaluating(model):
        model.encode(src, src_mask)
    weights = torch.stack([layer.self_attn.attn for layer in model.encoder.layers])
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    return entropy.transpose(2, 3)[:, src_mask.squeeze(1)].mean(1)
""",
)
wrong(
    "head_entropies",
    points=1,
    why="Padded positions are hidden as keys, but counted as queries.",
    code="""
def head_entropies(model, src, src_mask):
    with evaluating(model):
        model.encode(src, src_mask)
    weights = torch.stack([layer.self_attn.attn for layer in model.encoder.layers])
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / math.log(2)
    return entropy.mean((1, 3))
""",
)
wrong(
    "head_entropies",
    points=0,
    why="0 · log 0 is NaN; it needs its limit, 0.",
    code="""
def head_entropies(model, src, src_mask):
    with evaluating(model):
        model.encode(src, src_mask)
    weights = torch.stack([layer.self_attn.attn for layer in model.encoder.layers])
    entropy = -(weights * weights.log2()).sum(-1)
    return entropy.transpose(2, 3)[:, src_mask.squeeze(1)].mean(1)
""",
)
wrong(
    "head_entropies",
    points=1,
    why="The model is switched to eval mode and left there.",
    code="""
def head_entropies(model, src, src_mask):
    model.eval()
    with torch.no_grad():
        model.encode(src, src_mask)
    weights = torch.stack([layer.self_attn.attn for layer in model.encoder.layers])
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / math.log(2)
    return entropy.transpose(2, 3)[:, src_mask.squeeze(1)].mean(1)
""",
)
wrong(
    "heads_off",
    points=1,
    why="Weights are set to zero, as the text does it; `instead` is ignored.",
    code="""
@contextlib.contextmanager
def heads_off(attn, heads, instead=None):
    weight = attn.linears[3].weight.data
    before = weight.clone()
    for head in heads:
        weight[:, head * attn.d_k : (head + 1) * attn.d_k] = 0
    try:
        yield
    finally:
        weight.copy_(before)
""",
)
wrong(
    "heads_off",
    points=2,
    why="No `finally`: after an error in the block the hook stays.",
    code="""
@contextlib.contextmanager
def heads_off(attn, heads, instead=None):
    def replace(_, inputs):
        parts = inputs[0].unflatten(-1, (attn.h, attn.d_k)).clone()
        parts[..., heads, :] = 0.0 if instead is None else instead[heads]
        return parts.flatten(-2)

    hook = attn.linears[3].register_forward_pre_hook(replace)
    yield
    hook.remove()
""",
)
wrong(
    "heads_off",
    points=2,
    why="At the end all hooks are cleared, those of others, too.",
    code="""
@contextlib.contextmanager
def heads_off(attn, heads, instead=None):
    def replace(_, inputs):
        parts = inputs[0].unflatten(-1, (attn.h, attn.d_k)).clone()
        parts[..., heads, :] = 0.0 if instead is None else instead[heads]
        return parts.flatten(-2)

    attn.linears[3].register_forward_pre_hook(replace)
    try:
        yield
    finally:
        attn.linears[3]._forward_pre_hooks.clear()
""",
)
wrong(
    "heads_off",
    points=2,
    why="One list of heads serves all blocks, and the inner block empties it.",
    code="""
@contextlib.contextmanager
def heads_off(attn, heads, instead=None):
    off = vars(attn).setdefault("off", {})
    for head in heads:
        off[head] = 0.0 if instead is None else instead[head]

    def replace(_, inputs):
        parts = inputs[0].unflatten(-1, (attn.h, attn.d_k)).clone()
        for head, values in off.items():
            parts[..., head, :] = values
        return parts.flatten(-2)

    hook = attn.linears[3].register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()
        off.clear()
""",
)
wrong(
    "heads_off",
    points=0,
    why="Heads are taken to be interleaved in the width, not side by side.",
    code="""
@contextlib.contextmanager
def heads_off(attn, heads, instead=None):
    def replace(_, inputs):
        parts = inputs[0].unflatten(-1, (attn.d_k, attn.h)).clone()
        parts[..., heads] = 0.0 if instead is None else instead[heads].mT
        return parts.flatten(-2)

    hook = attn.linears[3].register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()
""",
)
wrong(
    "heads_off",
    points=0,
    why="The hook sits behind the output projection, where the heads are mixed already.",
    code="""
@contextlib.contextmanager
def heads_off(attn, heads, instead=None):
    def replace(_, inputs, output):
        parts = output.unflatten(-1, (attn.h, attn.d_k)).clone()
        parts[..., heads, :] = 0.0 if instead is None else instead[heads]
        return parts.flatten(-2)

    hook = attn.linears[3].register_forward_hook(replace)
    try:
        yield
    finally:
        hook.remove()
""",
)
wrong(
    "contributions",
    points=1,
    why="Differences of the logit lens: each state is divided by its own standard deviation.",
    code="""
def contributions(model, batch, place, first, second):
    with evaluating(model):
        memory = model.encode(batch.src, batch.src_mask)
        x = model.tgt_embed(batch.tgt)
        stream = [x[0, place]]
        for layer in model.decoder.layers:
            x = layer(x, memory, batch.src_mask, batch.tgt_mask)
            stream.append(x[0, place])
        norm = model.decoder.norm
        states = (norm(torch.stack(stream)) - norm.bias) @ model.generator.proj.weight.T
        lead = states[:, first] - states[:, second]
    return torch.cat([lead[:1], lead.diff()])
""",
)
wrong(
    "contributions",
    points=1,
    why="The states are read, not what each layer adds to them.",
    code="""
def contributions(model, batch, place, first, second):
    with evaluating(model):
        memory = model.encode(batch.src, batch.src_mask)
        x = model.tgt_embed(batch.tgt)
        stream = [x[0, place]]
        for layer in model.decoder.layers:
            x = layer(x, memory, batch.src_mask, batch.tgt_mask)
            stream.append(x[0, place])
        norm = model.decoder.norm
        states = torch.stack(stream)
        centred = states - states.mean(1, keepdim=True)
        deviation = (states[-1].var(correction=0) + norm.eps).sqrt()
        one, other = model.generator.proj.weight[[first, second]]
        return centred / deviation * norm.weight @ (one - other)
""",
)
wrong(
    "contributions",
    points=0,
    why="The mean is not subtracted from each term, so the terms do not add up.",
    code="""
def contributions(model, batch, place, first, second):
    with evaluating(model):
        memory = model.encode(batch.src, batch.src_mask)
        x = model.tgt_embed(batch.tgt)
        stream = [x[0, place]]
        for layer in model.decoder.layers:
            x = layer(x, memory, batch.src_mask, batch.tgt_mask)
            stream.append(x[0, place])
        norm = model.decoder.norm
        states = torch.stack(stream)
        added = torch.cat([states[:1], states.diff(dim=0)])
        deviation = (states[-1].var(correction=0) + norm.eps).sqrt()
        one, other = model.generator.proj.weight[[first, second]]
        return added / deviation * norm.weight @ (one - other)
""",
)
wrong(
    "stand_ins",
    points=0,
    why="The pair with the largest cost together is taken, not the one with the largest excess.",
    code="""
stand_ins = [(1, 2), (3, 3)]
costs_alone = [0.107, 0.094]
cost_of_both = 0.240
""",
)
wrong(
    "stand_ins",
    points=1,
    why="The right pair, but perplexities are given instead of losses.",
    code="""
stand_ins = [(3, 3), (2, 2)]
costs_alone = [0.352, -0.001]
cost_of_both = 0.642
""",
)
wrong(
    "bug_hunt",
    points=0,
    why="Wrong tokens with the right length are taken for missing positions. But most tokens are "
    "in the right places: only some are taken for one another.",
    code="""
case_number = 1234
diagnosis = "add_positions"
repaired = lambda x, waves: x + waves
""",
)
wrong(
    "bug_hunt",
    points=2,
    why="Found, but the factor √D is forgotten in the new part.",
    code="""
case_number = 1234
diagnosis = "embed"
repaired = lambda table, ids: table[ids]
""",
)
wrong(
    "bug_hunt",
    points=2,
    why="Found, but not repaired: the script's class is named, which is called in another way.",
    code="""
import the_annotated_transformer

case_number = 1234
diagnosis = "embed"
repaired = the_annotated_transformer.Embeddings
""",
)
