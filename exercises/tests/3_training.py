"""Hidden tests of sheet 3."""

import copy
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

import the_annotated_transformer as at
from exercises.course.tasks import close, is_number, shared, task


@shared
def answers(*calls):
    """What each call returns, or says when it fails; None if nothing has been answered."""
    found = []
    for call in calls:
        try:
            found.append(call())
        except NotImplementedError:
            found.append("not answered")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}"[:100])
    return None if all(each == "not answered" for each in found) else found


@task("smoothing", points=2)
class Smoothing:
    def inputs(seed):
        draw = random.Random(seed)
        return draw.randint(4, 900), draw.uniform(0.01, 0.6)

    def probe(solve, V, eps):
        functions = solve.lowest_loss, solve.lowest_loss_of_torch, solve.logit_gap
        return answers(*[lambda f=function: f(V, eps) for function in functions])

    def judge(result, V, eps):
        targets = torch.full((2, V), eps / (V - 2), dtype=torch.double)
        targets[0, 0], targets[0, 1] = 1 - eps, 0.0  # the second token is padding
        targets[1] = eps / V
        targets[1, 0] += 1 - eps
        ours, theirs = torch.special.entr(targets).sum(-1)
        gap = math.log(targets[0, 0] / targets[0, 2])
        rights = {"lowest_loss": ours, "lowest_loss_of_torch": theirs, "logit_gap": gap}
        found = dict(zip(rights, result, strict=True))
        worth = {"lowest_loss": 0.5, "lowest_loss_of_torch": 1, "logit_gap": 0.5}
        missing = [name for name, right in rights.items() if not close(found[name], right)]
        lost = sum(worth[name] for name in missing)
        return 2 - lost, f"wrong: {', '.join(missing)}" if missing else ""


@task("adam", points=2)
class Adam:
    def inputs(seed):
        draw = random.Random(seed)
        return draw.uniform(0.5, 0.95), draw.uniform(0.6, 0.999)

    def probe(solve, beta1, beta2):
        steps = range(1, 8)
        return answers(
            lambda: [solve.move(n, beta1, beta2) for n in steps],
            lambda: [solve.move_uncorrected(n, beta1, beta2) for n in steps],
        )

    def judge(result, beta1, beta2):
        parameter = nn.Parameter(torch.zeros(1, dtype=torch.double))
        adam = torch.optim.Adam([parameter], lr=1.0, betas=(beta1, beta2), eps=0.0)
        m, v = 0.0, 0.0
        moves, uncorrected = [], []
        for n in range(1, 8):
            before = parameter.item()
            gradient = 3.0 if n == 1 else 0.0
            parameter.grad = torch.full((1,), gradient, dtype=torch.double)
            adam.step()
            moves.append(before - parameter.item())
            m = beta1 * m + (1 - beta1) * gradient
            v = beta2 * v + (1 - beta2) * gradient**2
            uncorrected.append(m / v**0.5)
        right = close(result[0], moves), close(result[1], uncorrected)
        messages = {
            (True, False): "wrong without bias corrections",
            (False, True): "wrong with bias corrections",
            (False, False): "both are wrong",
        }
        return sum(right), messages.get(right, "")


@task("schedule", points=2)
class Schedule:
    def inputs(seed):
        draw = random.Random(seed)
        size, factor, warmup = (
            2 * draw.randint(16, 600),
            draw.uniform(0.2, 4),
            draw.randint(150, 9000),
        )
        places = [draw.uniform(0.02, 0.5) for _ in range(draw.randint(4, 7))]
        places += [draw.uniform(2, 12) for _ in range(draw.randint(4, 7))]
        points = []
        for place in places:
            step = max(1, round(place * warmup))
            read = at.rate(step, size, factor, warmup) * draw.uniform(0.99, 1.01)
            points.append((step, read))
        draw.shuffle(points)
        return points, size, factor, warmup

    def probe(solve, points, size, factor, warmup):
        return solve.rebuild(list(points), size)

    def judge(result, points, size, factor, warmup):
        rights = {"factor": factor, "warmup": warmup}
        found = dict(zip(rights, result, strict=True))
        missing = [name for name, right in rights.items() if abs(found[name] / right - 1) > 0.02]
        said = f"more than two per cent off: {', '.join(missing)}" if missing else ""
        return 2 - len(missing), said


@shared
def batches_of_lengths(lengths, rows, draw):
    """A batch of the copy task for each length, with different numbers of sequences."""
    for length, count in zip(lengths, rows, strict=True):
        src = torch.tensor([[draw.randint(4, 10) for _ in range(length)] for _ in range(count)])
        yield at.Batch(src, F.pad(F.pad(src, (1, 0), value=at.START), (0, 1), value=at.END))


@shared
def numbers_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@task("accumulate", points=3, seeds=2)
class Accumulate:
    def inputs(seed):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        model = at.make_model(11, 11, 1, 4 * draw.randint(1, 2), 12, 2, dropout=0.0)
        first = list(batches_of_lengths((2, 9, 5), (1, 4, 2), draw))
        second = list(batches_of_lengths((7, 3), (3, 1), draw))
        return model, first, second, draw.uniform(0.05, 0.2)

    def probe(solve, model, first, second, limit):
        import copy

        events = []

        class Noted(torch.autograd.Function):
            def forward(context, value):
                return value.clone()

            def backward(context, gradient):
                events.append("backward")
                return gradient

        def stream(batches):
            for batch in batches:
                events.append("batch")
                yield batch

        def train(model, groups, limit):
            def loss_compute(states, target, ntokens):
                log_probs = model.generator(states).flatten(0, 1)
                total = F.nll_loss(
                    log_probs, target.flatten(), ignore_index=at.PAD, reduction="sum"
                )
                return total.detach(), Noted.apply(total) / ntokens

            model.train()
            descent = torch.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for group in groups:
                mean = solve.update(model, stream(group), loss_compute, descent, limit)
                grads = [p.grad for p in model.parameters() if p.grad is not None]
                left = any(bool(grad.any()) for grad in grads)
                found.append([float(mean), numbers_of(model), left])
            return found

        clipped = train(copy.deepcopy(model), [first], limit)
        events.clear()
        return train(model, [first, second], 1e9), clipped, events

    def judge(result, model, first, second, limit):
        def train(model, groups, limit):
            descent = torch.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for group in groups:
                total = 0.0
                for batch in group:
                    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
                    log_probs = model.generator(states).flatten(0, 1)
                    total = total + F.nll_loss(log_probs, batch.tgt_y.flatten(), reduction="sum")
                mean = total / sum(batch.ntokens for batch in group)
                descent.zero_grad()
                mean.backward()
                nn.utils.clip_grad_norm_(model.parameters(), limit)
                descent.step()
                found.append([mean.item(), numbers_of(model)])
            return found

        (right_clipped,) = train(copy.deepcopy(model), [first], limit)
        right_first, right_second = train(model, [first, second], 1e9)
        (found_first, found_second), (found_clipped,), events = result
        if not close(found_first[1], right_first[1], 1e-5):
            return 0, "this is not the gradient of the mean over all tokens"
        points, said = 1, []
        if close(found_clipped[1], right_clipped[1], 1e-5):
            points += 1
        else:
            said.append("clipped in another way than by the norm of all gradients together")
        pairs = ((found_first, right_first), (found_second, right_second))
        left = any(found[2] for found, _ in pairs)
        one_by_one = events == 5 * ["batch", "backward"]
        if left or not close(found_second[1], right_second[1], 1e-5):
            said.append("a gradient is left at the end, or the next update is wrong")
        elif not one_by_one:
            said.append("a batch is asked for before the one before it has had its backward pass")
        elif not all(close(found[0], right[0]) for found, right in pairs):
            said.append("what is returned is not the mean loss over all tokens of the update")
        else:
            points += 1
        return points, "; ".join(said)


def noisy_floor(V, length, q):
    """The lowest loss of a noisy copy, from the entropy of a token's distribution."""
    shares = torch.full((V - 4,), q / (V - 4), dtype=torch.double)
    shares[0] += 1 - q
    return torch.special.entr(shares).sum().item() * length / (length + 1)


@task("noisy_floor", points=2)
class NoisyFloor:
    def inputs(seed):
        draw = random.Random(seed)
        return draw.randint(6, 40), draw.randint(2, 30), draw.uniform(0.05, 0.95)

    def probe(solve, V, length, q):
        return solve.noisy_floor(V, length, q)

    def judge(result, V, length, q):
        right = noisy_floor(V, length, q)
        if close(result, right):
            return 2, ""
        if close(result, right * (length + 1) / length):
            return 1, "the end token is counted wrongly"
        others = -(1 - q) * math.log(1 - q) - q * math.log(q / (V - 5))
        if close(result, others * length / (length + 1)):
            return 1, "drawing anew is counted wrongly"
        return 0, "not the entropy of a token"


@task("noisy_copies", points=2, tutor=1)
class NoisyCopies:
    def inputs(seed):
        draw = random.Random(seed)
        return (
            draw.randint(6, 12),
            draw.randint(300, 400),
            draw.randint(2, 4),
            draw.randint(5, 9),
            0.6,
        )

    def probe(solve, V, rows, count, length, q):
        def parts():
            torch.manual_seed(1)
            batches = solve.noisy_batches(V, rows, count, length, q)
            return [(batch.src, batch.tgt, batch.tgt_y, batch.ntokens) for batch in batches]

        return answers(parts, lambda: solve.noisy_measured or "not answered")

    def judge(result, V, rows, count, length, q):
        parts, measured = result
        points, said = 0, []
        if isinstance(parts, str):
            said.append(f"noisy_batches: {parts}")
        elif problem := problem_of_noise(parts, V, rows, count, length, q):
            said.append(problem)
        else:
            points += 1
        if can_be_measured(measured):
            points += 1
        else:
            said.append("noisy_measured is missing, or cannot come from this experiment")
        return points, "; ".join(said)


def can_be_measured(measured):
    """Whether numbers may come from the training with noise."""
    names = ("floor", "loss", "copied of 200")
    found = [measured.get(name) for name in names] if isinstance(measured, dict) else [None]
    if not all(map(is_number, found)):
        return False
    floor, loss, copied = found
    lowest = noisy_floor(15, 10, 0.3)  # a wrong floor costs a point in task 5 only
    return floor > 0 and -0.02 < loss - lowest < 0.15 and 100 <= copied <= 200


def problem_of_noise(parts, V, rows, count, length, q):
    """What is wrong with batches of noisy copies; "" if nothing is."""
    if len(parts) != count:
        return "not the number of batches that was asked for"
    src, read, predicted = (torch.cat([torch.tensor(part[n]) for part in parts]) for n in range(3))
    if src.shape != (count * rows, length) or predicted.shape != (count * rows, length + 1):
        return "sequences of another number or length"
    if [part[3] for part in parts] != count * [rows * (length + 1)]:
        return "ntokens should count every token to predict, the end of a sequence, too"
    if src.min() != 4 or src.max() != V - 1 or predicted[:, :-1].min() < 4:
        return "tokens run from 4 to V - 1"
    begins, ends = read[:, 0].eq(at.START).all(), predicted[:, -1].eq(at.END).all()
    if not (begins and ends) or not read[:, 1:].equal(predicted[:, :-1]):
        return "the target begins with the start token, ends with the end token"
    same = (src == predicted[:, :-1]).double()
    wanted = 1 - q + q / (V - 4)
    spread = math.sqrt(wanted * (1 - wanted))
    if abs(same.mean() - wanted) > 5 * spread / math.sqrt(same.numel()):
        return "another share of tokens is drawn anew, or they cannot come out the same"
    drawn = predicted[:, :-1][same == 0]
    counts = drawn.bincount(minlength=V)[4:].double()
    mean = len(drawn) / (V - 4)
    if (counts - mean).abs().max() > 6 * math.sqrt(mean):
        return "tokens drawn anew must be uniform over all tokens to copy"
    within = same.mean(1).var() * length / spread**2  # near one if tokens are independent
    if abs(within - 1) > 0.3:
        return "each token has its own noise, not each sequence"
    if same.mean(0).var() * len(src) / spread**2 > 12:
        return "each sequence has its own noise"
    return ""


@task("sorting", points=2, tutor=1)
class Sorting:
    def inputs(seed):
        draw = random.Random(seed)
        return draw.randint(6, 30), draw.randint(20, 50), draw.randint(1, 4), draw.randint(3, 12)

    def probe(solve, V, rows, count, length):
        def parts():
            batches = solve.sorted_batches(V, rows, count, length)
            return [(batch.src, batch.tgt, batch.tgt_y) for batch in batches]

        return answers(parts, lambda: solve.sorted_measured or "not answered")

    def judge(result, V, rows, count, length):
        parts, measured = result
        points, said = 0, []
        parts = [] if isinstance(parts, str) else parts
        sources = [src for src, _, _ in parts]
        right = len(parts) == count and all(
            len(src) == rows
            and all(len(row) == length and set(row) <= set(range(4, V)) for row in src)
            and read == [[at.START, *sorted(row)] for row in src]
            and predicted == [[*sorted(row), at.END] for row in src]
            for src, read, predicted in parts
        )
        drawn = all(sources.count(src) == 1 for src in sources)
        in_order = [[sorted(row) for row in src] for src in sources]
        if right and drawn and sources != in_order:
            points += 1
        else:
            said.append("these are not batches of random sequences and the same in order")
        ranges = {
            "sort, no source positions": (120, 200),
            "sort, no target positions": (120, 200),
            "copy, no source positions": (0, 30),
            "copy, no target positions": (120, 200),
        }
        if isinstance(measured, dict) and all(
            is_number(measured.get(name)) and low <= measured[name] <= high
            for name, (low, high) in ranges.items()
        ):
            points += 1
        else:
            said.append("sorted_measured is missing, or cannot come from this experiment")
        return points, "; ".join(said)


@task("by_position", points=3)
class ByPosition:
    def inputs(seed):
        draw = random.Random(seed)
        torch.manual_seed(seed)

        def model(dropout):
            return at.draw_weights(at.make_model(11, 11, 1, 8, 16, 2, dropout=dropout))

        full = next(batches_of_lengths((5,), (3,), draw))
        uneven = list(batches_of_lengths((4, 4), (1, draw.randint(4, 7)), draw))
        rows = [[draw.randint(4, 10) for _ in range(size)] for size in (6, 2, draw.randint(3, 4))]
        padded = at.Batch(at.pad_ids(rows), at.pad_ids([[at.START, *row, at.END] for row in rows]))
        return model(0.5), model(0.0), full, padded, uneven

    def probe(solve, dropping, plain, full, padded, uneven):
        modes = []
        found = []
        for training in (True, False):
            dropping.train(training)
            found.append(solve.loss_by_position(dropping, [full], 6))
            modes.append(dropping.training)
        plain.eval()
        found.append(solve.loss_by_position(plain, [padded], 7))
        found.append(solve.loss_by_position(plain, uneven, 5))
        return modes, [torch.as_tensor(each) for each in found]

    def judge(result, dropping, plain, full, padded, uneven):
        def right(model, batches, longest):
            values = [[] for _ in range(longest)]
            with at.evaluating(model):
                for batch in batches:
                    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
                    log_probs = model.generator(states)
                    for row, words in enumerate(batch.tgt_y.tolist()):
                        for place, word in enumerate(words):
                            if word != at.PAD:
                                values[place].append(-log_probs[row, place, word].item())
            return [sum(each) / len(each) for each in values]

        modes, (training, evaluated, of_padded, of_uneven) = result
        wanted = right(dropping, [full], 6)
        checks = {
            "dropout is on, or the model does not get its mode back": close(training, wanted)
            and close(evaluated, wanted)
            and modes == [True, False],
            "padding counts": close(of_padded, right(plain, [padded], 7)),
            "small batches weigh as much as large ones": close(of_uneven, right(plain, uneven, 5)),
        }
        if not close(evaluated, wanted):
            return 0, "wrong even without dropout, padding and small batches"
        said = [name for name, fine in checks.items() if not fine]
        return 3 - len(said), "; ".join(said)
