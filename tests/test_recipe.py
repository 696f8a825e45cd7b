"""Part 6: pieces of words, one matrix, the cache, the beam and the mean of checkpoints."""

import copy
import dataclasses
import functools
import itertools
import math
import random

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, beam_search, greedy_decode, pad_ids

TEXTS = [
    "Ein Hund rennt durch den Schnee.",
    "A dog runs through the snow.",
    "„Zwei“ Kinder (links) spielen – ohne Ball!",
    "don't",
    "Grüße aus Łódź: 5,5 km",
]


@pytest.fixture(scope="module")
def pieces() -> tutorial.Pieces:
    return tutorial.learn_pieces(tutorial.read_builtin(), 400)[0]


def learnt_from(texts: list[str], size: int) -> tutorial.Pieces:
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": [(text, text) for text in texts]})
    return tutorial.learn_pieces(corpus, size)[0]


# Pieces -----------------------------------------------------------------------------------------


def test_both_languages_share_one_list():
    source, target = tutorial.learn_pieces(tutorial.read_builtin(), 300)
    assert source is target and len(source) == 300
    assert source.words[: len(tutorial.SPECIALS)] == tutorial.SPECIALS


def test_pieces_know_the_training_split_only():
    corpus = tutorial.read_builtin()
    other = dataclasses.replace(corpus, splits=corpus.splits | {"val": [("Qq", "Qq")] * 500})
    learnt = [tutorial.learn_pieces(one, 300)[0] for one in (corpus, other)]
    assert learnt[0].saved() == learnt[1].saved()


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back(text):
    pieces = learnt_from(TEXTS, 120)
    [ids] = pieces.encode([text])
    assert pieces.decode([START, *ids, END, *ids]) == text
    assert all(4 <= number < len(pieces) for number in ids)


def test_a_piece_never_joins_a_word_with_a_comma(pieces):
    for word in pieces.words[4:]:
        assert len(word) == 1 or not set(word) & set(".,"), word


def test_special_symbols_in_a_text_are_text(pieces):
    [ids] = pieces.encode(["<s> </s> <blank> Hund"])
    assert not {START, END, PAD} & set(ids)


def test_an_unknown_letter_is_said_to_be_unknown(pieces):
    [ids] = pieces.encode(["Hund 漢"])
    assert ids.count(tutorial.UNKNOWN) == 1 and "<unk>" in pieces.decode(ids)


def test_empty_and_blank_texts_have_no_pieces(pieces):
    assert pieces.encode(["", " \t ", "\x00"]) == [[], [], []]


def test_random_text_is_cut_and_never_lost(pieces):
    rng = random.Random(0)
    known = sorted(set("".join(pieces.words[4:])) - {"▁"})
    for _ in range(200):
        words = ["".join(rng.choices(known, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 6))]
        text = " ".join(words)
        assert pieces.decode(pieces.encode([text])[0]) == text
        wild = "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(40))
        assert all(0 <= n < len(pieces) for n in pieces.encode([wild])[0])


def test_settings_that_are_none_are_refused():
    with pytest.raises(ValueError, match="no settings of a tokenizer"):
        len(tutorial.Pieces("{}"))


def test_merges_by_hand():
    words = {("a", "b", "a", "b"): 3, ("b", "a"): 1}
    assert tutorial.most_frequent_pair(words) == ("a", "b")
    assert tutorial.merge_pair(("a", "b", "a", "b", "a"), ("a", "b")) == ("ab", "ab", "a")
    assert tutorial.merge_pair(("a", "a", "a"), ("a", "a")) == ("aa", "a")
    assert tutorial.first_merges(words, 2) == [("a", "b"), ("ab", "ab")]


@pytest.mark.parametrize("share", [True, False])
def test_a_model_of_pieces_survives_its_checkpoint(tmp_path, pieces, share):
    config = dataclasses.replace(
        tutorial.SMALL, pieces=400, share_embeddings=share, corpus="builtin"
    )
    encoded = tutorial.encode_corpus("builtin", ("de", "en"), 2, 256, 400)
    training = tutorial.Training(
        config, encoded, tutorial.Worker(0, 1, torch.device("cpu"), None), tmp_path
    )
    tutorial.save_checkpoint(tmp_path / "best.pt", tutorial.description(training))
    translator = tutorial.load_trained_model(tmp_path, torch.device("cpu"))
    assert translator.vocabularies[0] is translator.vocabularies[1]
    assert translator.vocabularies[0].fingerprint() == encoded.vocabularies[0].fingerprint()
    parts = translator.model.src_embed[0].lut, translator.model.generator.proj
    assert (parts[0].weight is parts[1].weight) == share
    assert len(tutorial.translate(translator, ["Ein Hund rennt.", ""])) == 2


def test_pieces_that_do_not_fit_the_weights_are_refused(tmp_path, pieces):
    other = learnt_from(TEXTS, 120)
    model = tutorial.make_model(400, 400, 1, 16, 32, 2, share_embeddings=True)
    config = dataclasses.asdict(
        tutorial.Config(N=1, d_model=16, d_ff=32, h=2, pieces=400, share_embeddings=True)
    )
    content = {"config": config, "corpus": "toy", "model": model.state_dict()}
    tutorial.save_checkpoint(tmp_path / "good.pt", content | {"vocabularies": [pieces.saved()] * 2})
    assert len(tutorial.load_trained_model(tmp_path / "good.pt").vocabularies[0]) == 400
    tutorial.save_checkpoint(tmp_path / "bad.pt", content | {"vocabularies": [other.saved()] * 2})
    with pytest.raises(ValueError, match=r"bad\.pt: weights do not fit settings and vocabulary"):
        tutorial.load_trained_model(tmp_path / "bad.pt")


# The cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_cache_changes_no_token(seed, norm_first):
    torch.manual_seed(seed)
    model = tutorial.tiny_model(norm_first=norm_first, N=1 + seed % 3)
    sentences = [torch.randint(4, 11, (n,)).tolist() for n in (1, 7, 3, 7)]
    batch = Batch(pad_ids(sentences))
    plain = greedy_decode(model, batch.src, batch.src_mask, 15, START)
    assert torch.equal(tutorial.greedy_search(model, batch.src, batch.src_mask, 15, START), plain)


def test_hypotheses_can_be_repeated_and_sentences_dropped():
    model, batch = tutorial.tiny_model(), Batch(pad_ids([[4, 5, 6], [9, 4], [10, 7, 8]]))
    with torch.no_grad():
        memory = model.encode(batch.src, batch.src_mask)
        decoder = tutorial.CachedDecoder(model, memory, batch.src_mask, longest=4, beam=2)
        written = torch.full((3, 2, 1), START)
        for symbols, sentences, origin in (
            ([[7, 8], [9, 5], [4, 6]], [0, 1, 2], [[1, 1], [0, 1], [1, 0]]),
            ([[5, 9], [9, 9], [8, 4]], [2, 0], [[0, 0], [1, 0]]),
            ([[10, 11], [6, 4]], [1], [[1, 0]]),
        ):
            decoder.step(written[:, :, -1])
            sentences, origin = torch.tensor(sentences), torch.tensor(origin)
            decoder.keep(sentences, origin)
            memory, mask = memory[sentences], batch.src_mask[sentences]
            batch.src_mask = mask
            grown = torch.stack([written[n, o] for n, o in zip(sentences, origin, strict=True)])
            symbols = torch.tensor(symbols)[: len(sentences)].unsqueeze(-1)
            written = torch.cat([grown, symbols], dim=-1)
        after = decoder.step(written[:, :, -1])
        for row, hypotheses in enumerate(written):
            for place, tgt in enumerate(hypotheses):
                one = slice(row, row + 1)
                causal = tutorial.subsequent_mask(len(tgt))
                states = model.decode(memory[one], mask[one], tgt.unsqueeze(0), causal)
                torch.testing.assert_close(after[row, place], model.generator(states)[0, -1])


def test_a_target_beyond_the_positions_is_refused():
    model, src = tutorial.tiny_model(max_len=6), torch.tensor([[4, 5]])
    parts = model, model.encode(src, Batch(src).src_mask), Batch(src).src_mask
    with pytest.raises(ValueError, match="longer than 6 symbols"):
        tutorial.CachedDecoder(*parts, longest=7)
    decoder = tutorial.CachedDecoder(*parts, longest=6)
    for _ in range(6):
        decoder.step(torch.tensor([[5]]))
    with pytest.raises(ValueError, match="no room for more than 6 symbols"):
        decoder.step(torch.tensor([[5]]))


# The beam ---------------------------------------------------------------------------------------


def biased(seed: int, V: int = 9, **changes):
    """A small model that ends sentences now and then."""
    torch.manual_seed(seed)
    model = tutorial.make_model(
        V, V, **{"N": 1, "d_model": 16, "d_ff": 32, "h": 4} | changes
    ).eval()
    model.generator.proj.weight.data *= 3
    model.generator.proj.bias.data[PAD] = -1e4  # no trained model writes it
    return model


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_a_batch_gives_each_sentence_what_it_gets_alone(beam):
    sentences = [[4, 5, 6, 7, END], [8, END], [7, 7, 4, END]]
    search = functools.partial(beam_search, max_len=12, beam=beam)
    for seed in range(4):
        model, batch = biased(seed), Batch(pad_ids(sentences))
        together = search(model, batch.src, batch.src_mask)
        for row, sentence in zip(together, sentences, strict=True):
            single = Batch(torch.tensor([sentence]))
            alone = search(model, single.src, single.src_mask)[0]
            assert torch.equal(row[: len(alone)], alone) and row[len(alone) :].eq(PAD).all()


def slow_search(model, src, max_len: int, beam: int, alpha: float) -> tuple[float, list[int]]:
    """The same search for one sentence, from its description: no cache, no batch, no early end."""
    mask, beams = Batch(src).src_mask, [(0.0, [START])]
    memory = model.encode(src, mask)
    for _ in range(max_len - 1):
        ended = [one for one in beams if one[1][-1] == END]
        grown = []
        for logp, written in (one for one in beams if one[1][-1] != END):
            tgt = torch.tensor([written])
            states = model.decode(memory, mask, tgt, tutorial.subsequent_mask(len(written)))
            following = model.generator(states)[0, -1]
            grown += [(logp + p.item(), [*written, n]) for n, p in enumerate(following)]
        grown.sort(key=lambda one: -one[0])
        beams = ended + grown[: beam - len(ended)]
    scored = [(logp / ((4 + len(w)) / 6) ** alpha, w) for logp, w in beams]
    return max(scored)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam", [2, 3, 6])
def test_the_search_is_the_one_described(alpha, beam):
    with torch.no_grad():
        for seed in range(6):
            model, src = biased(seed), torch.randint(4, 9, (1, 5))
            score, written = slow_search(model, src, 8, beam, alpha)
            found = beam_search(model, src, Batch(src).src_mask, 8, START, beam, alpha)[0]
            assert tutorial.score_of(model, src, found, alpha) == pytest.approx(score, abs=1e-4)
            assert found[found != PAD].tolist() == written


def test_an_early_end_saves_steps_and_costs_nothing():
    """The bound must end some searches before the cap, or it is not tried here."""
    saved = 0
    for seed in range(10):
        model, src = biased(seed), torch.randint(4, 9, (1, 4))
        model.generator.proj.bias.data[END] += 2
        record: list = []
        found = beam_search(model, src, Batch(src).src_mask, 14, START, 4, 0.6, record)[0]
        with torch.no_grad():
            score, _ = slow_search(model, src, 14, 4, 0.6)
        assert tutorial.score_of(model, src, found, 0.6) == pytest.approx(score, abs=1e-4)
        saved += len(record) < 13 and not record[-1][1].ended.all().item()
    assert saved


@pytest.mark.parametrize("beam", [2, 3, 8])
def test_no_hypothesis_stands_twice_in_a_beam(beam):
    """Not even where some symbols are impossible, so that a beam cannot be filled."""
    for seed in range(60):
        torch.manual_seed(seed)
        V = 4 + seed % 3
        found = tutorial.empty_hypotheses(torch.zeros(2, 3).long(), beam, START)
        for _ in range(5):
            scores = torch.randn(2, beam, V).masked_fill(torch.rand(2, beam, V) < 0.4, -torch.inf)
            scores[:, :, PAD] = -torch.inf  # no model writes it
            found.grow(scores - 1.0)
            for row in range(2):
                live = found.logp[row].isfinite()
                texts = [
                    tuple(w for w in written if w != PAD or not ended)
                    for written, ended in zip(
                        found.written[row][live].tolist(), found.ended[row][live], strict=True
                    )
                ]
                assert len(texts) == len(set(texts)), (seed, texts)


def test_the_length_penalty_is_the_paper_s():
    assert tutorial.length_penalty(1, 0.6) == 1.0
    assert tutorial.length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert tutorial.length_penalty(30, 0.0) == 1.0


def test_a_larger_alpha_never_shortens():
    lengths = []
    for alpha in (0.0, 0.6, 3.0):
        total = 0
        for seed in range(8):
            model, src = biased(seed), torch.randint(4, 9, (1, 5))
            model.generator.proj.bias.data[END] += 1
            found = beam_search(model, src, Batch(src).src_mask, 12, START, 6, alpha)
            total += int((found != PAD).sum())
        lengths.append(total)
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_a_cap_of_one_leaves_the_start_alone():
    model, src = biased(0), torch.tensor([[4, 5], [6, 7]])
    assert beam_search(model, src, Batch(src).src_mask, 1).tolist() == [[START], [START]]


def test_a_beam_wider_than_the_vocabulary_works():
    model, src = biased(0, V=5), torch.tensor([[4, 4]])
    found = beam_search(model, src, Batch(src).src_mask, 4, beam=30)
    assert found.shape[0] == 1 and tutorial.score_of(model, src, found[0], 0.6) > -math.inf


@pytest.mark.parametrize("beam", [0, -1])
def test_a_beam_of_nothing_is_refused(beam):
    src = torch.tensor([[4, 5]])
    with pytest.raises(ValueError, match=f"at least one hypothesis, got {beam}"):
        beam_search(biased(0), src, Batch(src).src_mask, 5, beam=beam)


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -0.1])
def test_alpha_must_be_a_number(alpha):
    src = torch.tensor([[4, 5]])
    with pytest.raises(ValueError, match="alpha must be a number"):
        beam_search(biased(0), src, Batch(src).src_mask, 5, alpha=alpha)


def test_the_search_leaves_the_mode_of_the_model_alone():
    model, src = biased(0, dropout=0.5).train(), torch.tensor([[4, 5, 6]])
    found = {tuple(beam_search(model, src, Batch(src).src_mask, 9)[0].tolist()) for _ in range(5)}
    assert model.training and len(found) == 1


# The mean ---------------------------------------------------------------------------------------


def test_models_are_averaged_as_a_stream():
    """At most one of them may be alive at a time."""
    import weakref

    alive: list = []

    def stream():
        for number in range(5):
            assert not [reference for reference in alive if reference() is not None]
            model = tutorial.tiny_model()
            torch.nn.init.constant_(model.generator.proj.bias, number)
            alive.append(weakref.ref(model))
            yield model
            del model

    mean = tutorial.tiny_model()
    tutorial.average(mean, stream())
    torch.testing.assert_close(mean.generator.proj.bias, torch.full((13,), 2.0))
    assert len(alive) == 5


def test_the_mean_of_shared_weights_is_shared():
    make = functools.partial(tutorial.make_model, 11, 11, 1, 8, 16, 2, share_embeddings=True)
    first, second, mean = make(), make(), make()
    tutorial.average(mean, [first, second])
    expected = (first.generator.proj.weight + second.generator.proj.weight) / 2
    torch.testing.assert_close(mean.src_embed[0].lut.weight, expected)
    assert mean.src_embed[0].lut.weight is mean.generator.proj.weight


def test_an_empty_list_has_no_mean():
    with pytest.raises(ValueError, match="the list of models or checkpoints is empty"):
        tutorial.average(tutorial.tiny_model(), [])
    with pytest.raises(ValueError, match="the list of checkpoints is empty"):
        tutorial.average_checkpoints([])


def test_models_of_different_shapes_have_no_mean():
    mean = tutorial.tiny_model()
    before = copy.deepcopy(mean.state_dict())
    with pytest.raises(ValueError, match=r"model 2 has \(32,\) as .*bias, those before it \(16,\)"):
        tutorial.average(mean, [tutorial.tiny_model(), tutorial.tiny_model(d_model=32)])
    with pytest.raises(ValueError, match=r"model 2 has nothing as decoder\.layers\.1"):
        tutorial.average(mean, [tutorial.tiny_model(), tutorial.tiny_model(N=1)])
    for name, value in mean.state_dict().items():
        assert torch.equal(value, before[name])


def test_checkpoints_of_two_vocabularies_have_no_mean(tmp_path):
    model = tutorial.tiny_model()
    for number, word in enumerate(("a", "b")):
        content = {"vocabularies": [[word]] * 2, "model": model.state_dict()}
        tutorial.save_checkpoint(tmp_path / f"{number}.pt", content)
    with pytest.raises(ValueError, match=r"0\.pt has another vocabulary than .*1\.pt"):
        tutorial.average_checkpoints([tmp_path / "0.pt", tmp_path / "1.pt"])


# From the command line --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_of_pieces(tmp_path_factory):
    """A short training of a model of pieces with one matrix, its last two epochs kept."""
    folder = tmp_path_factory.mktemp("pieces") / "run"
    config = dataclasses.replace(
        tutorial.PRESETS["smoke"],
        pieces=300,
        share_embeddings=True,
        keep=2,
        schedule="linear",
        warmup=5,
    )
    assert tutorial.train_model(config, folder, decode=tutorial.greedy_search) == "finished"
    return folder


def test_the_last_epochs_are_kept(run_of_pieces):
    assert sorted(path.name for path in run_of_pieces.glob("epoch-*")) == [
        "epoch-002.pt",
        "epoch-003.pt",
    ]


def test_a_linear_schedule_ends_at_zero(run_of_pieces):
    rates = [e["lr"] for e in tutorial.read_log(run_of_pieces) if e["kind"] == "train"]
    assert rates and max(rates) > 0
    last = tutorial.load_checkpoint(run_of_pieces / "last.pt")["scheduler"]["_last_lr"]
    peak = tutorial.rate(5, 128, 2.0, 5)
    assert last[0] < 0.1 * peak


def test_average_and_translate(run_of_pieces, capsys):
    paths = sorted(map(str, run_of_pieces.glob("epoch-*.pt")))
    assert tutorial.main(["average", *paths]) == 0
    assert "the mean of 2 checkpoints" in capsys.readouterr().out
    model = str(run_of_pieces / "average.pt")
    for options in ([], ["--beam", "1"], ["--alpha", "1.2"]):
        assert tutorial.main(["translate", "--model", model, *options, "Ein Hund.", ""]) == 0
        assert capsys.readouterr().out.count("\n") == 2
    content = tutorial.load_checkpoint(run_of_pieces / "average.pt")["model"]
    states = [tutorial.load_checkpoint(path)["model"] for path in map(tutorial.Path, paths)]
    name = "encoder.layers.0.self_attn.linears.0.weight"
    torch.testing.assert_close(content[name], (states[0][name] + states[1][name]) / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "at least one hypothesis, got 0"),
        (["--alpha", "nan"], "alpha must be a number"),
    ],
)
def test_bad_options_of_the_search(run_of_pieces, capsys, options, message):
    assert tutorial.main(["translate", "--model", str(run_of_pieces), *options, "Ein Hund."]) == 1
    assert message in capsys.readouterr().err


def test_a_finished_run_is_left_alone(run_of_pieces):
    files = [path for path in run_of_pieces.iterdir() if path.name != "average.pt"]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    config = tutorial.Config(**tutorial.read_summary(run_of_pieces)["settings"])
    config = dataclasses.replace(config, languages=("de", "en"))
    assert tutorial.train_model(config, run_of_pieces) == "finished"
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files} == before


def test_a_horizon_cannot_be_moved_under_a_linear_schedule(run_of_pieces):
    config = tutorial.Config(**tutorial.read_summary(run_of_pieces)["settings"])
    config = dataclasses.replace(config, languages=("de", "en"), epochs=9)
    with pytest.raises(ValueError, match="epochs: 3 there, 9 here"):
        tutorial.train_model(config, run_of_pieces)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="no schedule is called 'cosine'"):
        tutorial.Config(schedule="cosine")


def test_a_warm_up_longer_than_the_training_is_refused():
    with pytest.raises(ValueError, match="30 updates in all leave nothing after a warm-up of 200"):
        tutorial.linear_rate(1, 256, 1.5, 200, 30)


def test_linear_rate():
    rates = [tutorial.linear_rate(step, 256, 1.5, 100, 1000) for step in range(1, 1001)]
    assert rates.index(max(rates)) + 1 == 100
    assert max(rates) == pytest.approx(tutorial.rate(100, 256, 1.5, 100))
    assert rates[49] == pytest.approx(max(rates) / 2) and rates[549] == pytest.approx(
        max(rates) / 2
    )
    assert rates[-1] == 0.0 and tutorial.linear_rate(1200, 256, 1.5, 100, 1000) == 0.0
    falls = [a - b for a, b in itertools.pairwise(rates[99:])]
    assert max(falls) == pytest.approx(min(falls))


# Faster forms -----------------------------------------------------------------------------------


def test_the_kernel_takes_bf16_through_fp32():
    """Nearer to the exact result than products of bf16 would be, in output and gradient."""
    query, key, value, mask = tutorial.random_attention_inputs()
    short = [x.bfloat16().requires_grad_() for x in (query, key, value)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = tutorial.fast_attention(*short, mask)
    exact = [x.detach().float().requires_grad_() for x in short]
    expected, _ = tutorial.attention(*exact, mask)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.bfloat16())
    output.float().square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(short, exact, strict=True):
        torch.testing.assert_close(ours.grad.float(), theirs.grad, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(rate):
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    dropped = tutorial.make_dropout(rate)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=0.006)
    left = dropped[dropped != 0].unique()
    assert len(left) == 1 and left.item() == pytest.approx(2 / (1 - rate), rel=0.02)
    dropped.sum().backward()
    assert torch.equal(x.grad != 0, dropped.detach() != 0)


def test_dropout_of_neighbours_is_independent():
    torch.manual_seed(0)
    kept = (tutorial.make_dropout(0.5)(torch.ones(1000, 160)) != 0).float()
    for lag in (1, 7, 8, 16, 160):
        flat = kept.flatten()
        assert (flat[lag:] * flat[:-lag]).mean().item() == pytest.approx(0.25, abs=0.01)


def test_dropout_follows_the_seed_and_the_mode():
    drop, x = tutorial.make_dropout(0.4), torch.randn(5, 7)
    first, second = (torch.manual_seed(3) and drop(x) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(drop.eval()(x), x)
    assert torch.equal(tutorial.make_dropout(0.0)(x), x)


@pytest.mark.parametrize("tokens, V", [(0, 3001), (1, 3001), (3, 3001), (700, 3001), (300, 20_001)])
def test_the_loss_in_chunks_for_any_number_of_tokens(tokens, V):
    torch.manual_seed(0)
    criterion, proj = tutorial.LabelSmoothing(V, PAD, 0.1), torch.nn.Linear(6, V).double()
    states = torch.randn(tokens, 6).double().requires_grad_()
    target = torch.randint(3, V, (tokens,))
    inputs = states, proj.weight, proj.bias
    run = tutorial.ChunkedLoss.apply(*inputs, target, criterion, torch.double)
    read = criterion(proj(states).log_softmax(-1), target)
    torch.testing.assert_close(run, read)
    ours, theirs = (torch.autograd.grad(3 * loss, inputs) for loss in (run, read))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
