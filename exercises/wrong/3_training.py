"""Common wrong answers to sheet 3, and the points that each deserves."""

from exercises.course.wrong import wrong

wrong(
    "smoothing",
    points=1,
    why="PyTorch is thought to leave out the right word, as the text does.",
    code="""
def lowest_loss_of_torch(V, eps):
    return -(1 - eps) * math.log(1 - eps) - eps * math.log(eps / (V - 1))
""",
)
wrong(
    "smoothing",
    points=1.5,
    why="The gap is that of the probabilities, not of the logits.",
    code="""
def logit_gap(V, eps):
    return (1 - eps) - eps / (V - 2)
""",
)
wrong(
    "smoothing",
    points=0.5,
    why="Only the right word is counted, and a divergence, which can reach zero, is taken.",
    code="""
def lowest_loss(V, eps):
    return 0.0


def lowest_loss_of_torch(V, eps):
    return -(1 - eps) * math.log(1 - eps)
""",
)
wrong(
    "smoothing",
    points=1.5,
    why="The last formula is left out.",
    code="""
def logit_gap(V, eps):
    raise NotImplementedError
""",
)
ADAM = """
def move{name}(n, beta1, beta2):
    m = {m}
    v = {v}
    return m / math.sqrt(v)
"""
M = "(1 - beta1) * beta1 ** (n - 1)"
V = "(1 - beta2) * beta2 ** (n - 1)"
wrong(
    "adam",
    points=1,
    why="The corrections count steps from 0, and take 1 where that divides by zero.",
    code=ADAM.format(
        name="", m=f"{M} / (1 - beta1 ** max(n - 1, 1))", v=f"{V} / (1 - beta2 ** max(n - 1, 1))"
    ),
)
wrong(
    "adam",
    points=1,
    why="The bias corrections are thought to cancel in the quotient.",
    code=ADAM.format(name="", m=M, v=V),
)
wrong(
    "adam",
    points=0,
    why="The gradient enters without the factors 1 - β.",
    code=ADAM.format(name="", m="beta1 ** (n - 1)", v="beta2 ** (n - 1)")
    + ADAM.format(name="_uncorrected", m="beta1 ** (n - 1)", v="beta2 ** (n - 1)"),
)
wrong(
    "adam",
    points=1,
    why="Without a gradient a parameter is thought to stay where it is.",
    code="""
def move(n, beta1, beta2):
    return 1.0 if n == 1 else 0.0
""",
)
wrong(
    "adam",
    points=1,
    why="Only the move with corrections is answered.",
    code="""
def move_uncorrected(n, beta1, beta2):
    raise NotImplementedError
""",
)
wrong(
    "schedule",
    points=1,
    why="The highest point is taken for the peak; the factor comes from the last point.",
    code="""
def rebuild(points, model_size):
    warmup, _ = max(points, key=lambda point: point[1])
    step, last = max(points)
    return last * (model_size * step) ** 0.5, warmup
""",
)
LINES = """
def rebuild(points, model_size):
    points = sorted(points)
    best = None
    for cut in range(2, len(points) - 1):
        rise = sum(math.log(r / step) for step, r in points[:cut]) / cut
        fall = sum(math.log(r * step**0.5) for step, r in points[cut:]) / (len(points) - cut)
        errors = [math.log(r / step) - rise for step, r in points[:cut]]
        errors += [math.log(r * step**0.5) - fall for step, r in points[cut:]]
        error = sum(each * each for each in errors)
        if best is None or error < best[0]:
            best = error, rise, fall
    _, rise, fall = best
    return {factor}, {warmup}
"""
wrong(
    "schedule",
    points=1,
    why="The width of the model is forgotten; the warm-up does not depend on it.",
    code=LINES.format(factor="math.exp(fall)", warmup="math.exp((fall - rise) / 1.5)"),
)
wrong(
    "schedule",
    points=1,
    why="The power 3/2 is forgotten where the two lines meet.",
    code=LINES.format(factor="math.exp(fall) * model_size**0.5", warmup="math.exp(fall - rise)"),
)
wrong(
    "schedule",
    points=0,
    why="Rise and fall are swapped: the first points are fitted by the inverse root.",
    code="""
def rebuild(points, model_size):
    (last, end), *_, (first, low) = sorted(points)
    factor = end * (model_size * last) ** 0.5
    return factor, (factor * first / (low * model_size**0.5)) ** (2 / 3)
""",
)
UPDATE = """
def update(model, batches, loss_compute, optimizer, limit):
    tokens = 0
    total = 0.0
    number = 0
    {before}
    for batch in batches:
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        batch_sum, loss = loss_compute(states, batch.tgt_y, {ntokens})
        loss.backward()
        {each}
        tokens += batch.ntokens
        total += batch_sum.item()
        number += 1
    for parameter in model.parameters():
        {divide}
    {clip}
    optimizer.step()
    {after}
    return {mean}
"""
RIGHT = {
    "before": "pass",
    "ntokens": "1",
    "each": "pass",
    "divide": "parameter.grad /= tokens",
    "clip": "nn.utils.clip_grad_norm_(model.parameters(), limit)",
    "after": "optimizer.zero_grad()",
    "mean": "total / tokens",
}
for points, why, change in (
    (
        0,
        "The mean of the batches' means: words of small batches weigh more.",
        {"ntokens": "batch.ntokens", "divide": "parameter.grad /= number"},
    ),
    (0, "The sum of the batches' means.", {"ntokens": "batch.ntokens", "divide": "pass"}),
    (0, "The gradient of the sum, without a division.", {"divide": "pass"}),
    (2, "The gradient is kept for the next update.", {"after": "pass"}),
    (
        2,
        "Old gradients are cleared at the beginning, and the new ones are left at the end.",
        {"before": "optimizer.zero_grad()", "after": "pass"},
    ),
    (2, "Nothing is clipped.", {"clip": "pass"}),
    (
        2,
        "Each parameter is clipped alone.",
        {"clip": "[nn.utils.clip_grad_norm_([each], limit) for each in model.parameters()]"},
    ),
    (
        2,
        "Values are clipped instead of the norm.",
        {"clip": "nn.utils.clip_grad_value_(model.parameters(), limit)"},
    ),
    (
        2,
        "The sums are clipped after each batch.",
        {"each": "nn.utils.clip_grad_norm_(model.parameters(), limit)"},
    ),
    (
        2,
        "All batches are held, to count their tokens first.",
        {"before": "batches = list(batches)"},
    ),
    (2, "The mean of the batches' means is returned.", {"mean": "total / number"}),
):
    wrong("accumulate", points=points, why=why, code=UPDATE.format(**RIGHT | change))
wrong(
    "accumulate",
    points=2,
    why="All losses are added up before one backward pass: every batch's activations are kept.",
    code="""
def update(model, batches, loss_compute, optimizer, limit):
    tokens = 0
    losses = 0.0
    for batch in batches:
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        losses = losses + loss_compute(states, batch.tgt_y, 1)[1]
        tokens += batch.ntokens
    mean = losses / tokens
    mean.backward()
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return mean.item()
""",
)
wrong(
    "accumulate",
    points=1,
    why="The text's loop is called, which holds all batches and does not clip.",
    code="""
def update(model, batches, loss_compute, optimizer, limit):
    from the_annotated_transformer import run_epoch

    loss, _ = run_epoch(batches, model, loss_compute, optimizer, accum_iter=10**6)
    return loss
""",
)
FLOOR = """
def noisy_floor(V, length, q):
    n = V - 4
    other = {other}
    right = {right}
    token = -right * math.log(right) - (n - 1) * other * math.log(other)
    return token * {ends}
"""
FLOOR_RIGHT = {"other": "q / n", "right": "1 - q + other", "ends": "length / (length + 1)"}
for points, why, change in (
    (1, "The end token is forgotten.", {"ends": "1"}),
    (
        1,
        "A token drawn anew is thought to differ always.",
        {"other": "q / (n - 1)", "right": "1 - q"},
    ),
    (0, "Special tokens are drawn, too.", {"other": "q / V"}),
):
    wrong("noisy_floor", points=points, why=why, code=FLOOR.format(**FLOOR_RIGHT | change))
wrong(
    "noisy_floor",
    points=0,
    why="Noise is thought to cost a share q of all tokens, as if its places were known.",
    code="""
def noisy_floor(V, length, q):
    return q * math.log(V - 4) * length / (length + 1)
""",
)
NOISE = """
def noisy_batches(V, batch_size, nbatches, length, q):
    for _ in range(nbatches):
        src = torch.randint(4, V, (batch_size, length))
        drawn = {drawn}
        target = torch.where({where} < q, drawn, src)
        {last}
        yield Batch({src}, F.pad(F.pad(target, (1, 0), value=START), (0, 1), value=END))
"""
NOISE_RIGHT = {
    "drawn": "torch.randint(4, V, src.shape)",
    "where": "torch.rand(src.shape)",
    "last": "pass",
    "src": "src",
}
for why, change in (
    ("The source gets the noise, too: a clean copy of noisy text.", {"src": "target"}),
    ("Whole sequences are drawn anew.", {"where": "torch.rand(batch_size, 1)"}),
    ("Columns are drawn anew, in all sequences of a batch.", {"where": "torch.rand(1, length)"}),
    ("Special tokens are drawn.", {"drawn": "torch.randint(0, V, src.shape)"}),
    ("One token stands for the noise.", {"drawn": "torch.full_like(src, 4)"}),
    (
        "A token drawn anew always differs.",
        {"drawn": "4 + (src - 4 + torch.randint(1, V - 4, src.shape)) % (V - 4)"},
    ),
):
    wrong("noisy_copies", points=1, why=why, code=NOISE.format(**NOISE_RIGHT | change))
wrong(
    "noisy_copies",
    points=1,
    why="The numbers are those of a clean copy.",
    code="""
noisy_measured = {"floor": noisy_floor(15, 10, 0.3), "loss": 0.02, "copied of 200": 195}
""",
)
wrong(
    "noisy_copies",
    points=1,
    why="A high loss is taken for failed copies; the number was not measured.",
    code="""
noisy_measured = {"floor": 1.104, "loss": 1.104, "copied of 200": 0}
""",
)
wrong(
    "noisy_copies",
    points=1,
    why="The batches are right, and a number is missing.",
    code="""
noisy_measured = {"floor": 1.104, "loss": 1.129}
""",
)
wrong(
    "noisy_copies",
    points=1,
    why="The batches are written, and nothing was trained.",
    code="""
noisy_measured = None
""",
)
wrong(
    "sorting",
    points=1,
    why="Numbers of a neighbour, without batches.",
    code="""
def sorted_batches(V, batch_size, nbatches, length):
    raise NotImplementedError
""",
)
wrong(
    "sorting",
    points=1,
    why="Sorting is thought to need source positions; the numbers follow the thought.",
    code="""
sorted_measured = {
    "sort, no source positions": 3,
    "sort, no target positions": 180,
    "copy, no source positions": 3,
    "copy, no target positions": 180,
}
""",
)
SORT = """
def sorted_batches(V, batch_size, nbatches, length):
    for _ in range(nbatches):
        src = torch.randint(4, V, (batch_size, length))
        target = {target}
        yield Batch({src}, F.pad(F.pad(target, (1, 0), value=START), (0, 1), value=END))
"""
for why, src, target in (
    ("The order of tokens is descending.", "src", "src.sort(dim=-1, descending=True).values"),
    ("The batch is sorted along the wrong axis.", "src", "src.sort(dim=0).values"),
    (
        "The places of the sorted tokens are given, not the tokens.",
        "src",
        "4 + src.argsort(dim=-1)",
    ),
    ("The source is sorted, too, so that sorting is copying.", "target", "src.sort(dim=-1).values"),
):
    wrong("sorting", points=1, why=why, code=SORT.format(src=src, target=target))
POSITION = """
def loss_by_position(model, batches, longest):
    total = torch.zeros(longest)
    seen = torch.zeros(longest)
    {mode}:
        for batch in batches:
            states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            log_probs = model.generator(states)
            loss = -log_probs.gather(-1, batch.{words}.unsqueeze(-1)).squeeze(-1)
            real = {real}
            T = loss.size(1)
            total[:T] += {total}
            seen[:T] += {seen}
    return total / seen
"""
POSITION_RIGHT = {
    "mode": "with evaluating(model)",
    "words": "tgt_y",
    "real": "batch.tgt_y != PAD",
    "total": "(loss * real).sum(0)",
    "seen": "real.sum(0)",
}
MEANS = {"total": "(loss * real).sum(0) / real.sum(0).clamp(min=1)", "seen": "real.any(0)"}
for points, why, change in (
    (2, "Dropout stays on.", {"mode": "with torch.no_grad()"}),
    (2, "The model is left in eval mode.", {"mode": "model.eval()\n    with torch.no_grad()"}),
    (2, "Padding counts.", {"real": "torch.ones_like(loss)"}),
    (2, "Batches weigh alike.", MEANS),
    (1, "Padding counts, and batches weigh alike.", {"total": "loss.mean(0)", "seen": "1"}),
    (2, "Padding costs nothing and is counted.", {"seen": "len(loss)"}),
    (0, "The words that are read are taken for those to predict.", {"words": "tgt"}),
):
    wrong("by_position", points=points, why=why, code=POSITION.format(**POSITION_RIGHT | change))
wrong(
    "by_position",
    points=0,
    why="The faulty function is handed in.",
    code="""
loss_by_position = faulty_loss_by_position
""",
)
