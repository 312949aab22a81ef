"""End to end against networks that are split by hand: no hooks, and float64 loops after the gradient."""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import naive
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torchvision.models import densenet201, resnet50

from gamlens import METHODS, GamlensWarning, Lens, methods

BLOCK_METHODS = methods.names("block")


class Relu(nn.Module):
    """Three stages that end in ReLU, average pooling, a linear head."""

    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 5, 3, 2, 1), nn.ReLU(inplace=True))
        self.layer3 = nn.Sequential(nn.Conv2d(5, 6, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3)))


class Signed(nn.Module):
    """DenseNet's manner: signed blocks, a functional in-place ReLU before pooling that no module holds."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                block1=nn.Conv2d(3, 4, 3, 2, 1),
                block2=nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 5, 3, 2, 1)),
                block3=nn.Sequential(nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.Conv2d(5, 6, 3, padding=1)),
                norm=nn.BatchNorm2d(6),
            )
        )
        self.classifier = nn.Linear(6, 4)

    def forward(self, x):
        h = F.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(h, 1), 1))


class Deep(nn.Module):
    """A skip connection, maximum pooling to 2 x 2, and an embedding layer of its own."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Tanh())
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Softplus())
        self.last = nn.Conv2d(4, 5, 3, 2, 1)
        self.fc1, self.fc2 = nn.Linear(20, 7), nn.Linear(7, 4)

    def forward(self, x):
        h = self.stem(x)
        h = self.last(self.body(h) + h)
        return self.fc2(torch.relu(self.fc1(F.adaptive_max_pool2d(h, 2).flatten(1))))


@dataclass
class Split:
    """A network cut by hand: stages[i] makes block i out of block i-1; then embedding and class scores."""

    model: nn.Module
    blocks: tuple[str, ...]
    stages: list[Callable]
    embed: Callable
    head: Callable
    embedding: str | None = None

    @cached_property
    def lens(self):
        return Lens(self.model, blocks=self.blocks, embedding=self.embedding)

    def blocks_of(self, image, skip=0):
        """Activations of the blocks after the first `skip`, from where the graph begins."""
        h, kept = image, []
        for number, stage in enumerate(self.stages):
            with torch.set_grad_enabled(number > skip):
                h = stage(h)
            if number == skip:
                h = h.detach().requires_grad_()
            if number >= skip:
                kept.append(h)
        return kept


def relu_split():
    m = Relu()
    stages = [
        lambda x: F.relu(m.layer1[0](x)),
        lambda h: F.relu(m.layer2[0](h)),
        lambda h: F.relu(m.layer3[0](h)),
    ]
    return Split(m, ("layer1", "layer2", "layer3"), stages, lambda h: h.mean(dim=(2, 3)), m.fc)


def signed_split():
    m = Signed()
    for part in m.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.normal_(part.bias)
            nn.init.normal_(part.running_mean, std=0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)
    f = m.features
    stages = [
        f.block1,
        lambda h: f.block2[2](F.relu(f.block2[0](h))),
        lambda h: F.relu(f.norm(f.block3[2](F.relu(f.block3[0](h))))),
    ]
    blocks = ("features.block1", "features.block2", "features:relu")
    return Split(m, blocks, stages, lambda h: h.mean(dim=(2, 3)), m.classifier)


def deep_split():
    m = Deep()
    stages = [
        lambda x: torch.tanh(m.stem[0](x)),
        lambda h: F.softplus(m.body[0](h)) + h,
        lambda h: m.last(h),
    ]

    def embed(h):
        return m.fc1(F.adaptive_max_pool2d(h, 2).flatten(1))

    return Split(m, ("stem", "body:add", "last"), stages, embed, lambda f: m.fc2(F.relu(f)), embedding="fc1")


SPLITS = {"relu": relu_split, "signed": signed_split, "deep": deep_split}
SIZE = (26, 19)
TARGETS = (2, 0, 3)


@pytest.fixture(scope="module", params=SPLITS)
def split(request):
    torch.manual_seed(7)
    made = SPLITS[request.param]()
    made.model.double().eval()
    return made


@pytest.fixture(scope="module")
def images():
    make = torch.Generator().manual_seed(3)
    return torch.randn(6, 3, *SIZE, generator=make, dtype=torch.float64)


def class_twin(split, image, target, rule):
    """Blocks, gradients and score of one image and class: arrays (C,u,v)."""
    blocks = split.blocks_of(image[None])
    score = rule(split.head(split.embed(blocks[-1])))[0, target]
    gradients = torch.autograd.grad(score, blocks)
    return _arrays(blocks), _arrays(gradients), float(score.detach())


def pair_twin(split, x, y, score):
    """The same for both sides of one pair."""
    sides = [split.blocks_of(image[None]) for image in (x, y)]
    f, other = (split.embed(blocks[-1])[0] for blocks in sides)
    value = (f * other).sum()
    if score == "cosine":
        value = value / ((f * f).sum().sqrt() * (other * other).sum().sqrt())
    gradients = [torch.autograd.grad(value, blocks, retain_graph=True) for blocks in sides]
    return [
        (_arrays(blocks), _arrays(own), float(value.detach())) for blocks, own in zip(sides, gradients, strict=True)
    ]


def _arrays(tensors):
    return [tensor.detach()[0].double().numpy() for tensor in tensors]


def raw_twin(method, twin, block):
    given = {"activation": twin[0][block], "gradient": twin[1][block], "score": twin[2]}
    return naive.METHODS[method](*(given[what] for what in METHODS[method].reads))


def map_twin(method, twin, n, size):
    return naive.finish([raw_twin(method, twin, block) for block in range(-n, 0)], size)


def assert_raw(method, found, expected):
    """1e-10; a method that is not stable works in float32 by its definition."""
    loose = 1e-10 if METHODS[method].stable else 1e-4 * max(np.abs(expected).max(), 1e-30)
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=loose)


def quiet(fn, *args, **options):
    """Flat maps and hidden evidence are expected on random nets; the twin holds the same zeros."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GamlensWarning)
        return fn(*args, **options)


@pytest.mark.parametrize("method", BLOCK_METHODS)
@pytest.mark.parametrize(
    ("score", "rule"),
    [
        ("logit", lambda z: z),
        ("probability", lambda z: z.exp() / z.exp().sum()),
        ("sigmoid", lambda z: 1 / (1 + (-z).exp())),
    ],
    ids=["logit", "probability", "sigmoid"],
)
def test_classification_equals_the_hand_split_twin(split, images, method, score, rule):
    trace = split.lens.trace(images[:3], list(TARGETS), n=3, score=score)
    assert trace.blocks == split.blocks
    twins = [class_twin(split, image, target, rule) for image, target in zip(images, TARGETS, strict=False)]
    np.testing.assert_allclose(trace.scores.numpy(), [twin[2] for twin in twins], rtol=0, atol=1e-12)
    for number, block in enumerate(split.blocks):
        found = trace.raw(method, block)
        for row, twin in enumerate(twins):
            assert_raw(method, found[row], raw_twin(method, twin, number))
    for n in (1, 2, 3):
        maps = quiet(trace.explain, method, n).maps
        assert maps.dtype == torch.float32
        for row, twin in enumerate(twins):
            loose = 1e-6 if METHODS[method].stable else 1e-4
            np.testing.assert_allclose(maps[row].numpy(), map_twin(method, twin, n, SIZE), rtol=0, atol=loose)


@pytest.mark.parametrize("method", BLOCK_METHODS)
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_pairs_equal_the_hand_split_twin_on_both_sides(split, images, method, score):
    trace = split.lens.trace_pair(images[:3], images[3:], n=3)
    rows = trace.sides(score)
    twins = [pair_twin(split, x, y, score) for x, y in zip(images[:3], images[3:], strict=True)]
    np.testing.assert_allclose(rows[0].scores.numpy(), [twin[0][2] for twin in twins], rtol=0, atol=1e-12)
    for side in (0, 1):
        for number, block in enumerate(split.blocks):
            for pair, twin in enumerate(twins):
                assert_raw(method, rows[side].raw(method, block)[pair], raw_twin(method, twin[side], number))
    for n in (1, 2, 3):
        found = quiet(trace.explain, method, n, score=score)
        for side, maps in enumerate((found.x.maps, found.y.maps)):
            for pair, twin in enumerate(twins):
                loose = 1e-6 if METHODS[method].stable else 1e-4
                expected = map_twin(method, twin[side], n, SIZE)
                np.testing.assert_allclose(maps[pair].numpy(), expected, rtol=0, atol=loose)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_sides_of_different_sizes_equal_the_twin(split, images, score):
    wide = torch.randn(1, 3, 18, 31, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = quiet(split.lens.compare, images[:2], wide, score=score, n=2)
    for pair in range(2):
        twin = pair_twin(split, images[pair], wide[0], score)
        for side, explanation in enumerate((found.x, found.y)):
            size = (SIZE, (18, 31))[side]
            expected = map_twin("gam", twin[side], 2, size)
            np.testing.assert_allclose(explanation.maps[pair].numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["vdsn", "vdsn_max"])
def test_vdsn_equals_the_twin(split, images, method):
    found, twin = split.lens.compare(images[:2], images[2:4], method=method, score="dot"), naive.METHODS[method]
    for pair in range(2):
        x, y = (split.blocks_of(images[number][None])[-1].detach()[0].numpy() for number in (pair, pair + 2))
        for maps, raw in ((found.x.maps, twin(x, y)), (found.y.maps, twin(y, x))):
            np.testing.assert_allclose(maps[pair].numpy(), naive.finish([raw], SIZE), rtol=0, atol=1e-6)


def test_several_targets_of_an_image_equal_the_twin(split, images):
    trace = split.lens.trace(images[:2], [[1, 3, 0], [2]], n=2)
    assert trace.index.tolist() == [0, 0, 0, 1]
    for row, (image, target) in enumerate([(0, 1), (0, 3), (0, 0), (1, 2)]):
        twin = class_twin(split, images[image], target, lambda z: z)
        assert_raw("gam", trace.raw("gam")[row], raw_twin("gam", twin, -1))
        assert_raw("hires_cam", trace.raw("hires_cam", split.blocks[1])[row], raw_twin("hires_cam", twin, -2))


def test_evidence_and_sums_equal_the_twin(split, images):
    rows = split.lens.trace_pair(images[:2], images[2:4], n=2).sides("cosine")
    for pair in range(2):
        twin = pair_twin(split, images[pair], images[pair + 2], "cosine")
        for side in (0, 1):
            for number, block in ((-2, split.blocks[-2]), (-1, split.blocks[-1])):
                h, g = twin[side][0][number], twin[side][1][number]
                positive, negative = naive.evidence(h, g)
                found = rows[side].evidence(block)
                assert_raw("grad_cam", found.positive[pair], positive)
                assert_raw("grad_cam", found.negative[pair], negative)
                assert np.array_equal(found.hidden[pair].numpy(), np.abs(negative) >= positive)
                sums = rows[side].sums(block)
                expected = (naive.relu(h), naive.relu(g), naive.relu(-g))
                for mine, theirs in zip(sums, expected, strict=True):
                    np.testing.assert_allclose(mine[pair].numpy(), theirs.sum(axis=0), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("how", "mix"),
    [
        ("max", lambda a, b: np.maximum(a, b)),
        ("product", lambda a, b: a * b),
        ([1.0, 3.0], lambda a, b: 0.25 * a + 0.75 * b),
    ],
    ids=["max", "product", "weights"],
)
def test_other_fusions_equal_the_twin(split, images, how, mix):
    found = split.lens.classify(images[:1], 1, n=2, fuse=how).maps[0]
    twin = class_twin(split, images[0], 1, lambda z: z)
    parts = [naive.min_max(naive.resize(raw_twin("gam", twin, block), SIZE)) for block in (-2, -1)]
    np.testing.assert_allclose(found.numpy(), mix(*parts), rtol=0, atol=1e-6)


# What the paper derives


@pytest.mark.parametrize("make", [relu_split, signed_split])
def test_under_the_dot_product_grad_cam_is_gam_at_the_last_block(make, images):
    torch.manual_seed(11)
    split = make()
    split.model.double().eval()
    trace = split.lens.trace_pair(images[:3], images[3:], n=1)
    for rows in trace.sides("dot"):
        torch.testing.assert_close(rows.raw("grad_cam"), rows.raw("gam"), rtol=1e-13, atol=0)
        assert (rows.evidence().negative == 0).all()
        assert (rows.evidence().hidden_share == 0).all()
        assert rows.raw("gam").amax() > 0
    cam, gam = (trace.explain(method, 1, score="dot") for method in ("grad_cam", "gam"))
    torch.testing.assert_close(cam.x.maps, gam.x.maps, rtol=0, atol=1e-7)
    torch.testing.assert_close(cam.y.maps, gam.y.maps, rtol=0, atol=1e-7)
    assert any((rows.evidence().negative < 0).any() for rows in trace.sides("cosine"))


@pytest.mark.parametrize("make", [relu_split, signed_split])
def test_at_a_pooled_linear_head_gam_is_the_activations_weighed_by_the_positive_weights(make, images):
    torch.manual_seed(11)
    split = make()
    split.model.double().eval()
    found = split.lens.classify(images, 1, n=1).maps
    for row, image in enumerate(images):
        h = split.blocks_of(image[None])[-1].detach()[0].numpy()
        weights = split.head.weight[1].tolist()
        expected = sum(max(weight, 0) * plane for weight, plane in zip(weights, h, strict=True))
        np.testing.assert_allclose(found[row].numpy(), naive.finish([expected], SIZE), rtol=0, atol=1e-6)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_gradients_of_both_sides_have_the_closed_form_of_eq_5(images, score):
    torch.manual_seed(11)
    split = relu_split()
    split.model.double().eval()
    trace = split.lens.trace_pair(images[:3], images[3:], n=1)
    f = [split.blocks_of(side)[-1].detach().mean(dim=(2, 3)).numpy() for side in (images[:3], images[3:])]
    for side, rows in enumerate(trace.sides(score)):
        gradient = rows.gradients[rows.blocks[-1]]
        area = gradient.shape[2] * gradient.shape[3]
        for pair in range(3):
            own, other = f[side][pair], f[1 - side][pair]
            lengths = np.sqrt((own**2).sum()), np.sqrt((other**2).sum())
            s = (own * other).sum() / (lengths[0] * lengths[1])
            slope = other if score == "dot" else other / (lengths[0] * lengths[1]) - s * own / lengths[0] ** 2
            expected = np.broadcast_to(slope[:, None, None] / area, gradient.shape[1:])
            np.testing.assert_allclose(gradient[pair].numpy(), expected, rtol=0, atol=1e-12)


def test_swapping_the_sides_swaps_the_maps(split, images):
    there = split.lens.compare(images[:2], images[2:4])
    back = split.lens.compare(images[2:4], images[:2])
    torch.testing.assert_close(there.x.maps, back.y.maps, rtol=0, atol=1e-7)
    torch.testing.assert_close(there.y.maps, back.x.maps, rtol=0, atol=1e-7)
    assert (there.x.maps - there.y.maps).abs().max() > 0.05


# Real networks, real photographs


def resnet_split(weights):
    m = resnet50()
    for stage in (m.layer2, m.layer3, m.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    m.load_state_dict(_single(weights / "resnet50_imagenet1k_fp16.pth"))
    stages = [
        lambda x: m.layer1(m.maxpool(m.relu(m.bn1(m.conv1(x))))),
        lambda h: m.layer2(h),
        lambda h: m.layer3(h),
        lambda h: m.layer4(h),
    ]
    return Split(m, ("layer1", "layer2", "layer3", "layer4"), stages, lambda h: h.mean(dim=(2, 3)), m.fc)


def densenet_split(weights):
    m = densenet201(num_classes=10)
    m.load_state_dict(_single(weights / "densenet201_imagenette_fp16.pth"))
    f = m.features
    stages = [
        lambda x: f.denseblock1(f.pool0(f.relu0(f.norm0(f.conv0(x))))),
        lambda h: f.denseblock2(f.transition1(h)),
        lambda h: f.denseblock3(f.transition2(h)),
        lambda h: F.relu(f.norm5(f.denseblock4(f.transition3(h)))),
    ]
    blocks = ("features.denseblock1", "features.denseblock2", "features.denseblock3", "features:relu")

    def embed(h):
        return F.adaptive_avg_pool2d(h, (1, 1)).flatten(1)

    return Split(m, blocks, stages, embed, m.classifier)


def _single(path):
    """The tensors of a file, the halves among them as float32."""
    saved = torch.load(path, weights_only=True)
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in saved.items()}


def pixels(file):
    """A photograph as the protocol has it: PIL bicubic to 224 px, ImageNet's mean and std, in float32."""
    with Image.open(file) as image:
        small = np.asarray(image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC), dtype=np.float32)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return torch.from_numpy(((small / 255 - mean) / std).transpose(2, 0, 1))


REAL = {"resnet50": (resnet_split, "ILSVRC"), "densenet201": (densenet_split, "imagenette")}
STEPS = {"resnet50": (2, 2, 1), "densenet201": (1, 1, 1)}  # which rows and columns of the last blocks are read
# XGrad-CAM divides by the sum of a channel, which comes near 0 in DenseNet's signed blocks and costs digits.
LOOSE = {"xgrad_cam": 2e-4}
REAL_METHODS = {name: LOOSE.get(name, 1e-5) for name in BLOCK_METHODS if METHODS[name].stable}


@dataclass
class Real:
    """A real network, eight photographs, and what the twin found under each score; pairs are (0,4), (1,5) .."""

    lens: Lens
    split: Split
    files: list[str]
    top: list[int]
    twins: dict[str, list[tuple]]
    steps: tuple[int, ...]

    @cached_property
    def pairs(self):
        return self.lens.trace_pair(self.files[:4], self.files[4:], n=3)


@pytest.fixture(scope="module", params=REAL)
def real(request, shared_weights, shared_data):
    make, folder = REAL[request.param]
    found = sorted((shared_data / folder / "Data" / "CLS-LOC" / "val").iterdir())
    files = [str(file) for file in found[:: len(found) // 8][:8]]
    split = make(shared_weights)
    split.model.eval()
    blocks = split.blocks_of(torch.stack([pixels(file) for file in files]), skip=1)
    f = split.embed(blocks[-1])
    output = split.head(f)
    top = output.argmax(dim=1).tolist()
    dots, lengths = (f[:4] * f[4:]).sum(dim=1), f.square().sum(dim=1).sqrt()
    values = {"logit": output[range(8), top], "dot": dots, "cosine": dots / (lengths[:4] * lengths[4:])}
    twins = {}
    for name, value in values.items():
        gradients = torch.autograd.grad(value.sum(), blocks, retain_graph=True)
        planes = [[part.detach().double().numpy() for part in parts] for parts in (blocks, gradients)]
        twins[name] = [
            ([h[row] for h in planes[0]], [g[row] for g in planes[1]], float(value[row % len(value)].detach()))
            for row in range(8)
        ]
    return Real(Lens(split.model), split, files, top, twins, STEPS[request.param])


@pytest.mark.slow
@pytest.mark.shared
def test_real_networks_read_the_blocks_of_the_specification(real):
    assert real.lens.blocks == real.split.blocks


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("score", ["logit", "cosine", "dot"])
def test_real_maps_equal_the_hand_split_twin(real, score):
    trace = real.lens.trace(real.files, n=3) if score == "logit" else real.pairs
    if score == "logit":
        assert trace.targets.tolist() == real.top
    for method, loose in REAL_METHODS.items():
        for lattice in ("read", "keep") if method == "gam" else ("read",):
            twins = [read_twins(method, twin, real.steps, lattice) for twin in real.twins[score]]
            explain = partial(trace.explain, lattice=lattice, **({} if score == "logit" else {"score": score}))
            for n in (1, 2, 3):
                found = quiet(explain, method, n)
                sides = [found] if score == "logit" else [found.x, found.y]
                maps = torch.cat([side.maps for side in sides]).numpy()
                scores = torch.cat([side.scores for side in sides]).numpy()
                np.testing.assert_allclose(scores, [twin[2] for twin in real.twins[score]], rtol=1e-5)
                for row, planes in enumerate(twins):
                    np.testing.assert_allclose(maps[row], sum(planes[3 - n :]) / n, rtol=0, atol=loose)


def read_twins(method, twin, steps, lattice):
    """The normalised maps of the last three blocks: of all positions, or of every `step`-th row and column alone."""
    planes = []
    for block, step in enumerate(steps if lattice == "read" else (1, 1, 1)):
        read = [[part[:, ::step, ::step] for part in parts] for parts in twin[:2]]
        cells = twin[0][block].shape[1:]
        planes.append(naive.min_max(naive.resize(raw_twin(method, (*read, twin[2]), block), (224, 224), step, cells)))
    return planes
