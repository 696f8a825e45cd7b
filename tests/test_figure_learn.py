"""The copy task in the reader's browser: PyTorch's numbers, and a figure that can be operated."""


import pytest
import torch

from tools.page.bundle import bundle
from tools.page.markup import FIGURES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FULL = {"mask": True, "positions": True, "residuals": True, "shift": True}
WITHOUT = [None, *FULL]  # a part that is switched off, or none


# It computes what PyTorch computes ----------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the modules that train, and no page."""
    tab = chromium.new_page()
    tab.add_script_tag(content=bundle(FIGURES / "learn/training.js", "training"))
    tab.add_script_tag(content=bundle(FIGURES / "learn/tape.js", "tapes"))
    return tab


def parts_without(part: str | None) -> dict[str, bool]:
    return FULL | ({part: False} if part else {})


def tensors(weights: dict[str, list]) -> dict[str, torch.Tensor]:
    """Parameters as JavaScript tells them: rows, columns, numbers."""
    found = {}
    for name, (rows, columns, numbers) in weights.items():
        matrix = torch.tensor(numbers, dtype=torch.double).view(rows, columns)
        is_vector = name.endswith("bias") or "norm" in name
        found[name] = matrix[0] if is_vector else matrix
    return found


class Reference:
    """PyTorch's model with the same weights, in double precision, and the same parts."""

    def __init__(self, at, sizes: dict, weights: dict, part: str | None) -> None:
        self.at = at
        self.part = part
        torch.set_default_dtype(torch.double)  # the sinusoids too
        self.model = at.make_model(
            sizes["vocabulary"], sizes["vocabulary"], sizes["layers"], sizes["width"],
            sizes["inner"], sizes["heads"], dropout=0.0, max_len=sizes["longest"],
            positions="none" if part == "positions" else "plain",
        )  # fmt: skip
        self.model.load_state_dict(tensors(weights))

    def loss(self, sequences: list[list[int]]) -> torch.Tensor:
        """The mean loss of some sequences, by the script's functions."""
        at = self.at
        target = torch.tensor([[at.START, *ids, at.END] for ids in sequences])
        batch = at.Batch(target[:, 1:-1], target)
        if self.part == "mask":
            batch.tgt_mask = torch.ones_like(batch.tgt_mask)
        if self.part == "shift":
            batch.tgt = batch.tgt_y
        states = self.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        words = self.model.generator.proj.out_features
        criterion = at.LabelSmoothing(words, at.PAD)
        return at.SimpleLossCompute(self.model.generator, criterion)(
            states, batch.tgt_y, batch.ntokens
        )[1]


@pytest.fixture(params=WITHOUT, ids=str)
def pair(request, at, engine, monkeypatch):
    """A fresh learner in the browser, as `self.learner`, and PyTorch's model with its weights."""
    part = request.param
    if part == "residuals":

        def without_sum(self, x, sublayer):
            return sublayer(self.norm(x))

        monkeypatch.setattr(at.SublayerConnection, "forward", without_sum)
    sizes, weights = engine.evaluate(
        """parts => {
            self.learner = new training.Learner(parts, 3);
            self.told = (key) => Object.fromEntries(
                Object.entries(learner.model.parameters).map(([name, each]) =>
                    [name, [each.rows, each.columns, [...each[key]]]]));
            return [training.SIZES, told("data")];
        }""",
        parts_without(part),
    )
    yield engine, Reference(at, sizes, weights, part)
    torch.set_default_dtype(torch.float)


def batches_of(at, sizes: tuple[int, int, int]) -> list[list[list[int]]]:
    """Batches of the script's copy task: how many, of how many sequences, of which length."""
    number, size, length = sizes
    torch.manual_seed(5)
    return [batch.src.tolist() for batch in at.data_gen(14, size, number, length)]


def test_every_gradient_equals_that_of_pytorch(at, pair):
    tab, reference = pair
    [sequences] = batches_of(at, (1, 8, 6))
    loss, told = tab.evaluate(
        """sequences => {
            const tape = new tapes.Tape();
            const loss = learner.loss(tape, sequences);
            tape.backward();
            return [loss, told("grad")];
        }""",
        sequences,
    )
    expected = reference.loss(sequences)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    ours = tensors(told)
    theirs = dict(reference.model.named_parameters())
    assert ours.keys() == theirs.keys()
    largest = max(parameter.grad.abs().max() for parameter in theirs.values())
    for name, parameter in theirs.items():
        assert (ours[name] - parameter.grad).abs().max() < 1e-9 * largest, name


def test_fifty_updates_give_the_losses_of_pytorch(at, pair):
    tab, reference = pair
    batches = batches_of(at, (50, 8, 6))
    ours = tab.evaluate("batches => batches.map((each) => learner.update(each))", batches)
    settings = tab.evaluate("[training.FACTOR, training.WARM_UP]")
    optimizer, scheduler = at.make_optimizer(reference.model, *settings)
    theirs = []
    for sequences in batches:
        loss = reference.loss(sequences)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert theirs[-1] < 0.8 * theirs[0]
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_it_writes_what_greedy_decoding_writes(at, pair):
    tab, reference = pair
    for sequences in batches_of(at, (20, 16, 6)):
        tab.evaluate("sequences => learner.update(sequences)", sequences)
    ours, weights, told = tab.evaluate(
        """() => {
            const { written, weights } = learner.model.greedy(learner.tests.flat(), 50, 0, 7);
            return [written, [...weights], told("data")];
        }"""
    )
    reference.model.load_state_dict(tensors(told))
    src = torch.tensor(tab.evaluate("learner.tests"))
    mask = torch.ones(50, 1, 6, dtype=torch.bool)
    theirs = at.greedy_decode(reference.model, src, mask, 8, at.START, end_symbol=None)
    assert ours == theirs[:, 1:].tolist()
    cross = reference.model.decoder.layers[-1].src_attn.attn
    torch.testing.assert_close(torch.tensor(weights).view(cross.shape), cross)
