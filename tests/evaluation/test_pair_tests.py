"""The tests of pairs: their cases, their images, occlusion, and every measure against a case worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pair_data import CORNERS, Hues, hue_data
from torch import Tensor

from gamlens import GamlensError, GamlensWarning, Lens, Transform
from gamlens.data import Dataset, load
from gamlens.evaluation.pair_tests import pair_measures
from gamlens.evaluation.pair_tests.case_images import crop_window, load_case, patch_corners, quadrant_corners
from gamlens.evaluation.pair_tests.occlusion import drop_map, occluded, windows
from gamlens.evaluation.pair_tests.pair_cases import (
    CopiedPatch,
    PairCase,
    cases_sha256,
    manifest_text,
    pair_cases,
    read_cases,
)
from gamlens.evaluation.pair_tests.pair_explainers import PAIR_CONTROLS, PairExplainers, pair_rows, title_of_row
from gamlens.evaluation.pair_tests.pair_measures import largest, masses, measure_patch, partner_change, pixel_auc
from gamlens.evaluation.pair_tests.pair_plan import PATCHES, PHOTO_PAIRS, SCENES, PairPlan

PLAN = PairPlan(methods=("gam",), n=(1,), limit=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load("table", hue_data(tmp_path_factory.mktemp("hues")))


@pytest.fixture(scope="module")
def hues() -> Lens:
    return Lens(Hues(), blocks=["features"], transform=Transform((64, 64), mean=(0.0,) * 3, std=(1.0,) * 3))


def of_kind(cases: list[PairCase], kind: str) -> list[PairCase]:
    return [case for case in cases if case.kind == kind]


# Cases


def test_cases_depend_on_the_seed_alone_and_a_larger_limit_only_adds(data: Dataset) -> None:
    cases = pair_cases(data, PLAN)
    assert cases == pair_cases(data, PLAN)
    for kind in (PHOTO_PAIRS, SCENES, PATCHES):
        assert of_kind(pair_cases(data, replace(PLAN, limit=3)), kind) == of_kind(cases, kind)[:3]
    assert cases_sha256(cases) != cases_sha256(pair_cases(data, replace(PLAN, seed=1)))


def test_scenes_share_exactly_one_class_by_two_photos(data: Dataset) -> None:
    scenes = of_kind(pair_cases(data, PLAN), SCENES)
    assert [case.objects for case in scenes] == [1, 2, 3, 4, 1, 2, 3, 4]
    for case in scenes:
        x, y = ({one.label: one.image for one in scene} for scene in case.scenes)
        (shared,) = x.keys() & y.keys()
        assert [scene[at].label for scene, at in zip(case.scenes, case.shared, strict=True)] == [shared, shared]
        assert x[shared] != y[shared]
        for scene, found in zip(case.scenes, (x, y), strict=True):
            assert len(found) == len(scene) == len({one.quadrant for one in scene})
    assert len({case.scenes[0][case.shared[0]].quadrant for case in scenes}) > 1


def test_photos_and_patches_show_the_classes_they_should(data: Dataset) -> None:
    cases = pair_cases(data, PLAN)
    for case in of_kind(cases, PHOTO_PAIRS):
        assert case.labels[0] == case.labels[1] != case.labels[2]
        assert len(set(case.images)) == 3
    for case in of_kind(cases, PATCHES):
        assert case.labels[0] != case.labels[1]
        assert case.patch is not None
        assert 1 / 9 <= case.patch.side**2 <= 1 / 4
        assert case.patch.x_place != case.patch.y_place
    assert [case.held_out for case in of_kind(pair_cases(data, replace(PLAN, hold_out=3)), PHOTO_PAIRS)] == [
        number % 3 == 0 for number in range(8)
    ]


def test_the_manifest_has_names_numbers_and_seeds(data: Dataset) -> None:
    cases = pair_cases(data, replace(PLAN, limit=2))
    found = json.loads(manifest_text(data, PLAN, cases))
    assert (found["seed"], found["source"], len(found["cases"])) == (0, data.fingerprint(), 6)
    assert found["cases"][1]["seed"] == "0:scenes:0"
    assert {"name", "kind", "seed", "scenes"} <= found["cases"][1].keys()


def test_cases_are_read_back(data: Dataset, tmp_path: Path) -> None:
    plan = replace(PLAN, hold_out=3)
    cases, file = pair_cases(data, plan), tmp_path / "cases.json"
    file.write_text(manifest_text(data, plan, cases))
    assert read_cases(file, data, plan) == cases
    assert read_cases(file, data, replace(plan, tests=("patch",))) == of_kind(cases, PATCHES)
    with pytest.raises(GamlensError, match=r"names the photo .*, which the data set .* does not have: "):
        read_cases(file, replace(data, samples=data.samples[:1]), plan)
    file.write_text(manifest_text(data, plan, of_kind(cases, PATCHES)))
    with pytest.raises(GamlensError, match="has no photos, which the tests need"):
        read_cases(file, data, plan)
    for wrong in ("[]", '{"cases": [{"kind": "photos"}]}', '{"cases": [{"kind": "photos", "name": "a", "odd": 1}]}'):
        file.write_text(wrong)
        with pytest.raises(GamlensError, match="is no list of cases as gamlens evaluate pairs writes it"):
            read_cases(file, data, plan)


def test_only_kinds_that_are_tested_are_drawn_and_data_without_boxes_is_refused(data: Dataset) -> None:
    bare = replace(data, samples=tuple(replace(sample, boxes=(), size=None) for sample in data))
    some = pair_cases(bare, replace(PLAN, tests=("curves", "partner")))
    assert {case.kind for case in some} == {PHOTO_PAIRS}
    assert not any(case.held_out for case in some)
    with pytest.raises(GamlensError, match=r"has no boxes, which photos are made by.*--tests curves,partner"):
        pair_cases(bare, PLAN)
    unread = replace(data, samples=(replace(data.samples[0], size=None), *data.samples[1:]))
    with pytest.warns(GamlensWarning, match=f"One photo with boxes .* cannot be read: '{unread.samples[0].name}'"):
        cases = pair_cases(unread, PLAN)
    assert not any(unread.samples[0].name in case.images for case in cases)
    few = replace(data, samples=data.samples[:6])  # two classes
    with pytest.raises(GamlensError, match=r"shows none of the .* classes .*--objects"):
        pair_cases(few, PLAN)
    with pytest.raises(GamlensError, match="There are 1 classes"):
        pair_cases(replace(data, samples=data.samples[:3]), PLAN)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": "classification"}, "task cannot be 'classification'"),
        ({"tests": ("curve",)}, "did you mean 'curves'"),
        ({"objects": (2, 5)}, "1 to 4 objects"),
        ({"methods": ("gam", "gam")}, "'gam' is named twice"),
        ({"curves": 1}, "2 steps or more"),
        ({"hold_out": 10, "limit": 1}, "every pair would be held out"),
        ({"hold_out": 1}, "every pair would be held out"),
        ({"fill": "pink"}, "fill cannot be 'pink'"),
        ({"stride": 0.5}, "its stride at most as large"),
        ({"limit": 0}, "one case"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        replace(PLAN, **wrong)


def test_a_plan_is_what_its_record_says() -> None:
    plan = replace(PLAN, objects=(2, 3), n=(1, 2), window=0.5, stride=0.25)
    assert PairPlan.from_record(json.loads(json.dumps(plan.record()))) == plan


# Images


def test_a_scene_shows_every_object_in_its_quadrant_on_the_mean_colour(data: Dataset) -> None:
    case = of_kind(pair_cases(data, PLAN), SCENES)[2]  # three objects
    transform = Transform((64, 64))
    ready = load_case(case, {sample.name: sample for sample in data}, transform)
    mean, std = torch.tensor(transform.mean), torch.tensor(transform.std)
    for scene, image, truth, singles in zip(case.scenes, ready.images, ready.truth, ready.singles, strict=True):
        rest = torch.ones(64, 64, dtype=torch.bool)
        for one, box, single in zip(scene, truth.int().tolist(), singles, strict=True):
            x0, y0, x1, y1 = box
            colour = (torch.tensor(CORNERS[int(data.classes[one.label])]) - mean) / std
            torch.testing.assert_close(image[:, y0:y1, x0:x1], colour[:, None, None].expand(3, 32, 32))
            assert (single != 0).any(dim=0).sum() == 32 * 32
            rest[y0:y1, x0:x1] = False
        assert int(rest.sum()) == 32 * 32
        assert (image[:, rest] == 0).all()


def test_places_of_quadrants_patches_and_crops() -> None:
    assert [quadrant_corners(place, (8, 10)) for place in (0, 3)] == [(0, 0, 5, 4), (5, 4, 10, 8)]
    found = patch_corners(CopiedPatch(0.5, (0.0, 1.0), (0.5, 0.25)), (8, 8))
    assert found == ((0.0, 4.0, 4.0, 8.0), (2.0, 1.0, 6.0, 5.0))
    assert crop_window((0.4, 0.4, 0.6, 0.6), 100, 100) == (38, 38, 62, 62)  # the box and a tenth of it on every side
    assert crop_window((0.0, 0.4, 0.1, 0.9), 100, 100) == (0, 35, 60, 95)  # a square, moved into the photo
    assert crop_window((0.0, 0.0, 1.0, 1.0), 100, 50) == (0, 0, 100, 50)  # the photo is not square


def test_a_patch_of_x_lies_in_y(data: Dataset) -> None:
    case = of_kind(pair_cases(data, PLAN), PATCHES)[0]
    ready = load_case(case, {sample.name: sample for sample in data}, Transform((64, 64), (0.0,) * 3, (1.0,) * 3))
    (x0, y0, x1, y1), (u0, v0, u1, v1) = (truth[0].int().tolist() for truth in ready.truth)
    assert torch.equal(ready.images[0][:, y0:y1, x0:x1], ready.images[1][:, v0:v1, u0:u1])
    changed = (ready.images[1] == ready.images[0][:, :1, :1]).all(dim=0)
    assert int(changed.sum()) == (x1 - x0) * (y1 - y0)


# Explainers


def test_rows_are_explainers_for_every_n_and_controls() -> None:
    plan = replace(PLAN, methods=("gam", "vdsn", "occlusion", "gam+refine", "input_gradient"), n=(1, 2))
    rows = pair_rows(plan)
    keys = ["gam@1", "gam@2", "vdsn", "occlusion", "gam+refine@1", "gam+refine@2", "input_gradient", *PAIR_CONTROLS]
    assert [row.key for row in rows] == keys
    assert [title_of_row(row, several=True) for row in rows[1:4]] == ["GAM, n=2", "VDSN", "Occlusion"]
    with pytest.raises(GamlensError, match=r"leave \+views out"):
        pair_rows(replace(PLAN, methods=("gam+views",)))


def test_windows_cover_every_pixel_and_lie_inside() -> None:
    found = windows((10, 8), window=0.5, stride=0.25)
    assert found.shape == (12, 10, 8)  # rows start at 0, 2, 4 and the last at 5; columns at 0, 2, 4
    assert found.flatten(1).sum(dim=1).tolist() == [5 * 4] * 12
    assert found.any(dim=0).all()
    assert found[-1, 5:, 4:].all()


def test_occlusion_by_hand(hues: Lens) -> None:
    """Red and blue left and right, against red: hiding red lowers the cosine from 1 / sqrt 2 to 0, blue raises it."""
    plan = replace(PLAN, methods=("occlusion",), window=0.5, stride=0.5)
    maker = PairExplainers(hues, plan)
    x, y = torch.zeros(3, 64, 64), torch.zeros(3, 64, 64)
    x[0, :, :32], x[2, :, 32:], y[0] = 1.0, 1.0, 1.0
    explained = maker.explain(x, y, ("x", "y"))
    assert float(maker.similarity(*explained.embeddings)) == pytest.approx(0.5**0.5)
    # One window hides half of the red: (1, 2) / sqrt 5 against (1, 0).
    drops = [0.5**0.5 - 5**-0.5, 0.5**0.5 - 2 * 5**-0.5] * 2
    torch.testing.assert_close(explained.maps["occlusion"][0], drop_map(torch.tensor(drops), maker.windows))
    assert explained.maps["occlusion"][0][:, :32].unique().tolist() == [1.0]
    assert explained.maps["occlusion"][0][:, 32:].unique().tolist() == [0.0]
    assert explained.maps["occlusion"][1].unique().tolist() == [0.0]  # no half of y matters
    assert explained.seconds["occlusion"] > explained.forward


def test_occluded_pixels_have_the_fill(hues: Lens) -> None:
    hidden = windows((4, 4), window=0.5, stride=0.5)
    found = occluded(torch.ones(2, 4, 4), hidden, torch.tensor([0.0, -1.0]))
    assert found[0, :, 0, 0].tolist() == [0.0, -1.0]
    assert found[0, :, 3, 3].tolist() == [1.0, 1.0]
    black = PairExplainers(
        Lens(Hues(), blocks=["features"], transform=Transform((64, 64))), replace(PLAN, fill="black")
    )
    torch.testing.assert_close(black.fill[0], torch.tensor(-0.485 / 0.229))


def test_maps_of_x_with_another_partner(hues: Lens) -> None:
    """GAM, occlusion and interactions follow the partner; Eigen-CAM, which reads x alone, and controls do not."""
    methods = ("gam", "occlusion", "interactions", "eigen_cam")
    maker = PairExplainers(hues, replace(PLAN, methods=methods))
    x, y, z = (torch.zeros(3, 64, 64) for _ in range(3))
    x[0, :32], x[2, 32:], y[0], z[2] = 1.0, 1.0, 1.0, 1.0
    first = maker.explain(x, y, ("x", "y"))
    again = maker.with_partner(first, x, z, ("x", "z"))
    for key in ("gam@1", "occlusion", "interactions"):
        assert first.maps[key][0][:24].min() > first.maps[key][0][40:].max()
        assert again[key][:24].max() < again[key][40:].min()
        assert partner_change(first.maps[key][0], again[key]) > 1.5
    for key in ("eigen_cam@1", *PAIR_CONTROLS):
        assert partner_change(first.maps[key][0], again[key]) == 0
    # The same maps as with z from the start.
    fresh = maker.explain(x, z, ("x", "z"))
    for key, values in again.items():
        torch.testing.assert_close(values, fresh.maps[key][0])


def test_a_lens_without_a_transform_of_ours_is_refused() -> None:
    with pytest.raises(GamlensError, match=r"gamlens\.Transform"):
        PairExplainers(Lens(Hues(), blocks=["features"], transform=lambda image: torch.zeros(3, 8, 8)), PLAN)


# Measures


def test_masses_and_ties() -> None:
    values = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 3.0, 1.0]])
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [2.0, 0.0, 4.0, 2.0]])
    assert masses(values, boxes).tolist() == [0.5, 1.0]
    assert largest(torch.tensor([1.0, 3.0, 3.0 - 1e-9])).tolist() == [0.0, 0.5, 0.5]
    assert largest(torch.zeros(2, 2)).tolist() == [[0.25, 0.25], [0.25, 0.25]]
    assert largest(torch.tensor([-2.0, -1.0])).tolist() == [0.0, 1.0]


def test_pixel_auc_against_a_plain_loop() -> None:
    make = torch.Generator().manual_seed(0)
    values, inside = torch.randint(0, 4, (5, 6), generator=make).float(), torch.rand(5, 6, generator=make) < 0.4
    pairs = [(float(a > b) + 0.5 * float(a == b)) for a in values[inside] for b in values[~inside]]
    assert pixel_auc(values, inside) == pytest.approx(sum(pairs) / len(pairs))


def test_partner_change() -> None:
    ramp = torch.arange(12.0).view(3, 4)
    assert partner_change(ramp, ramp) == 0
    assert partner_change(ramp, ramp**2) == pytest.approx(0)
    assert partner_change(ramp, -ramp) == pytest.approx(2)
    assert partner_change(ramp, torch.ones(3, 4)) == 1
    assert partner_change(torch.ones(3, 4), torch.ones(3, 4)) == 0


def test_the_patch_by_hand(data: Dataset, hues: Lens) -> None:
    case = of_kind(pair_cases(data, PLAN), PATCHES)[0]
    ready = load_case(case, {sample.name: sample for sample in data}, hues.transform)
    explained = PairExplainers(hues, PLAN).explain(ready.images[0], ready.images[1], ("x", "y"))
    right = tuple(pair_measures._inside(truth, torch.Size((64, 64))).float() for truth in ready.truth)
    explained.maps = {"right": right, "ones": explained.maps["ones"]}  # type: ignore[dict-item]
    found = measure_patch(ready, explained)
    area = float(right[0].mean())
    whole = {"patch_peak": 1.0, "patch_both": 1.0, "patch_energy": 1 / area, "patch_auc": 1.0}
    assert found.values["right"] == pytest.approx(whole)
    assert found.values["ones"] == pytest.approx(found.chance)
    none = {"patch_peak": area, "patch_both": area**2, "patch_energy": 1.0, "patch_auc": 0.5}
    assert found.chance == pytest.approx(none)
    explained.maps = {"half": (right[0], 1 - right[1])}
    assert measure_patch(ready, explained).values["half"] == pytest.approx(
        {"patch_peak": 0.5, "patch_both": 0.0, "patch_energy": 0.5 / area, "patch_auc": 0.5}
    )


def test_a_network_that_knows_colours_finds_the_shared_object(data: Dataset, hues: Lens) -> None:
    """The embedding counts the pixels of each colour, so that objects of one class match and no others do."""
    methods = ("gam", "occlusion", "interactions")
    plan = replace(PLAN, methods=methods, window=0.5, stride=0.5)
    maker, samples = PairExplainers(hues, plan), {sample.name: sample for sample in data}
    for case in of_kind(pair_cases(data, plan), SCENES)[1:4]:
        ready = load_case(case, samples, maker.transform)
        explained = maker.explain(ready.images[0], ready.images[1], ("x", "y"))
        found = pair_measures.measure_scene(maker, ready, explained)
        assert found.exact == {"object_hit": 1.0, "link_hit": 1.0}
        for key in ("gam@1", "occlusion", "interactions"):
            assert [found.values[key][name] for name in ("object_hit", "link_hit", "object_agrees")] == [1.0, 1.0, 1.0]
        # Resizing overshoots at the edge of an object, and normalising then lifts all other pixels above 0.
        assert found.values["interactions"]["object_share"] > 0.7
        assert found.values["ones"] == pytest.approx(found.chance)
        assert found.chance == pytest.approx(
            {"object_hit": 1 / case.objects, "object_share": 1 / case.objects, "link_hit": case.objects**-2,
             "object_agrees": 1 / case.objects}
        )  # fmt: skip
        links = pair_measures.object_links(explained.interactions["interactions"], ready.truth)
        wanted = torch.zeros_like(links)
        wanted[case.shared] = explained.interactions["interactions"].score
        torch.testing.assert_close(links, wanted, atol=1e-6, rtol=0)


def test_curves_by_hand(data: Dataset, hues: Lens) -> None:
    """x is half red, half blue, y half red, half green: all of their dot product comes from the red halves."""
    plan = replace(PLAN, task="dot", methods=("gam",), tests=("curves",), curves=2)
    maker, samples = PairExplainers(hues, plan), {sample.name: sample for sample in data}
    ready = load_case(of_kind(pair_cases(data, plan), PHOTO_PAIRS)[0], samples, maker.transform)
    x, y = torch.full((3, 64, 64), 0.0), torch.full((3, 64, 64), 0.0)
    x[0, :32], x[2, 32:], y[0, :32], y[1, 32:] = 1.0, 1.0, 1.0, 1.0
    ready = replace(ready, images=(x, y, y))
    explained = maker.explain(x, y, ("x", "y"))
    half: Tensor = torch.cat([torch.ones(32, 64), torch.zeros(32, 64)])
    explained.maps = {"right": (half, half), "wrong": (1 - half, 1 - half)}
    found = pair_measures.measure_photos(maker, ready, explained).values
    # The steps of the shared half first are 0, 1/4, 1/4 and vanish as 1/4, 0, 0; the other half adds nothing.
    early, late = (0 + 2 * 0.25 + 0.25) / 4, (0 + 2 * 0 + 0.25) / 4
    assert found["right"] == pytest.approx({"inserted": early, "deleted": late}, abs=1e-6)
    assert found["wrong"] == pytest.approx({"inserted": late, "deleted": early}, abs=1e-6)


def test_hue_data_is_what_it_says(tmp_path: Path) -> None:
    data = load("table", hue_data(tmp_path))
    assert len(data) == 3 * len(CORNERS) == 21
    assert all(sample.boxes for sample in data)
