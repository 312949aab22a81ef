"""The layout of the paper's tables, and its numbers."""

from __future__ import annotations

import pytest

from gamlens import DATASETS, METHODS, METRICS, MODELS, GamlensError
from gamlens.evaluation.paper_layout import by_network, default_methods, paper_networks, paper_table, paper_tables
from gamlens.evaluation.paper_numbers import paper_numbers, paper_of


def test_every_number_of_the_paper_has_one_place() -> None:
    """The lines of both tables and the rows of the file are the same, in the same order."""
    rows = list(dict.fromkeys(key[:5] for key in paper_numbers()))
    lines = [
        (line.section.task, line.network.data, line.subset, line.metric, line.network.model)
        for table in paper_tables()
        for line in table.lines()
    ]
    short = [(*line[:4], line[4].partition("_")[0]) for line in lines]  # the paper says TResNet for L and XL
    assert sorted(short) == sorted(rows)
    assert [len(table.lines()) for table in paper_tables()] == [18, 25]
    for line in lines:
        for method in ("gam", "grad_cam_pp_literal", "grad_cam"):
            number = paper_of(*line, method, 2)
            assert number is not None
            assert line[4].startswith(number.model)


def test_the_layout_names_what_exists() -> None:
    assert all(name in METHODS for name in default_methods())
    for network in paper_networks().values():
        assert network.model in MODELS
        assert network.data in DATASETS
    for table in paper_tables():
        for line in table.lines():
            assert any(line.metric == m.title and line.section.kind in m.kinds for m in METRICS.values())


def test_the_first_and_last_lines_are_the_papers() -> None:
    one, two = paper_table(1).lines(), paper_table(2).lines()
    assert [(line.section.title, line.data, line.metric) for line in (one[0], one[4], one[-1])] == [
        ("Classification", "VRC", "ADP"),
        ("Classification", "VRC (25 %)", "PIC"),
        ("Similarity (dot)", "VRC (10 %)", "PIC"),
    ]
    assert [(line.data, line.network.title) for line in (two[0], two[3], two[6], two[-1])] == [
        ("VRC", "DenseNet201"), ("VRC", "ResNet101"), ("XRAY", "CheXNet"), ("VOC (10 %)", "TResNet-XL"),
    ]  # fmt: skip
    with pytest.raises(GamlensError, match="has the tables 1 and 2 to reproduce, not 3"):
        paper_table(3)


def test_options_per_network() -> None:
    networks = paper_table(2).networks
    assert by_network("--model", ["resnet=resnet50", "voc=a=b.py:build"], networks) == {
        "resnet": "resnet50", "voc": "a=b.py:build",
    }  # fmt: skip
    assert by_network("--model", ["my/x=y.py:net"], networks, only="coco") == {"coco": "my/x=y.py:net"}
    for given, message in (
        (["resnett=resnet50"], "did you mean 'resnet'"),
        (["resnet50"], "there are densenet, resnet, chexnet, coco, voc"),
        (["resnet="], "such as --model densenet=VALUE"),
        (["resnet=a", "resnet=b"], "given twice for resnet: 'a' and 'b'"),
    ):
        with pytest.raises(GamlensError, match=message):
            by_network("--model", given, networks)
