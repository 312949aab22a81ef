"""The paper's own numbers (Tables 1 and 2): (task, data, subset, metric, model) -> method -> (n=1, n=2)."""

from __future__ import annotations

PaperKey = tuple[str, str, str, str, str]
PAPER_METHODS = ("gam", "grad_cam_pp", "grad_cam")


def _rows(
    task: str, data: str, metric: str, model: str, rows: dict[str, tuple[float | None, ...]]
) -> dict[PaperKey, dict[str, tuple[float | None, float | None]]]:
    """`rows`: subset -> GAM 1, 2, GC++ 1, 2, GC 1, 2."""
    return {
        (task, data, subset, metric, model): {
            method: (values[2 * place], values[2 * place + 1]) for place, method in enumerate(PAPER_METHODS)
        }
        for subset, values in rows.items()
    }


PAPER: dict[PaperKey, dict[str, tuple[float | None, float | None]]] = {
    **_rows("classification", "ilsvrc", "ADP", "resnet101", {
        "all": (17.47, 17.22, 17.62, 17.67, 18.49, 18.56),
        "25": (18.57, 18.51, 19.31, 19.45, 20.32, 20.37),
        "10": (21.02, 20.52, 22.39, 22.54, 24.89, 25.23),
    }),
    **_rows("classification", "ilsvrc", "PIC", "resnet101", {
        "all": (38.12, 39.53, 37.99, 35.76, 35.24, 33.45),
        "25": (36.87, 37.56, 35.32, 35.12, 34.70, 34.54),
        "10": (35.21, 35.48, 32.75, 31.98, 32.01, 31.03),
    }),
    **_rows("cosine", "ilsvrc", "ADP", "resnet101", {
        "all": (0.75, 0.72, 0.75, 0.79, 3.21, 3.46),
        "25": (1.10, 1.03, 1.12, 1.14, 9.65, 10.67),
        "10": (1.39, 1.31, 1.51, 1.67, 12.19, 13.45),
    }),
    **_rows("cosine", "ilsvrc", "PIC", "resnet101", {
        "all": (74.13, 75.85, 71.76, 70.43, 44.33, 42.12),
        "25": (64.23, 65.44, 61.62, 60.08, 39.14, 39.02),
        "10": (54.67, 55.96, 50.83, 48.87, 27.93, 26.89),
    }),
    **_rows("dot", "ilsvrc", "ADP", "resnet101", {
        "all": (2.15, 2.04, 53.45, 55.65, 2.16, 2.39),
        "25": (2.13, 2.04, 57.24, 60.78, 2.23, 2.35),
        "10": (2.17, 2.08, 58.02, 61.23, 2.42, 2.67),
    }),
    **_rows("dot", "ilsvrc", "PIC", "resnet101", {
        "all": (71.76, 72.96, 0.21, 0.20, 68.87, 68.02),
        "25": (68.97, 70.28, 0.07, 0.07, 66.12, 65.23),
        "10": (68.01, 68.99, 0.02, 0.02, 63.15, 62.11),
    }),
    **_rows("classification", "ilsvrc", "IoU", "densenet201", {
        "all": (54.9, 56.9, 54.9, 47.7, 52.4, 50.3),
        "25": (39.0, 43.8, 39.6, 20.8, 33.5, 26.0),
        "10": (23.4, 33.0, 22.6, 11.5, 21.3, 17.4),
    }),
    **_rows("classification", "ilsvrc", "IoU", "resnet101", {
        "all": (55.9, 57.1, 55.0, 53.8, 47.8, 47.2),
        "25": (40.8, 43.1, 40.6, 38.9, 33.6, 33.5),
        "10": (26.1, 33.4, 26.2, 23.9, 23.2, 22.7),
    }),
    **_rows("classification", "chestxray", "IoU", "chexnet", {"all": (25.8, 28.4, 26.2, 20.2, 24.9, 21.6)}),
    **_rows("cosine", "ilsvrc", "IoU", "densenet201", {
        "all": (57.4, 60.7, 57.1, 52.3, 52.8, 53.5),
        "25": (38.2, 41.9, 37.4, 21.9, 25.5, 22.6),
        "10": (31.2, 35.7, 29.7, 15.4, 18.4, 16.0),
    }),
    **_rows("cosine", "ilsvrc", "IoU", "resnet101", {
        "all": (57.1, 58.6, 56.0, 49.8, 39.1, 38.2),
        "25": (38.3, 39.3, 36.1, 28.5, 27.2, 24.9),
        "10": (31.3, 34.9, 29.4, 22.2, 21.3, 20.4),
    }),
    **_rows("dot", "ilsvrc", "IoU", "densenet201", {
        "all": (59.2, 62.4, None, None, 58.9, 54.0),
        "25": (39.6, 43.8, None, None, 38.2, 25.5),
        "10": (32.0, 36.9, None, None, 31.2, 19.6),
    }),
    **_rows("dot", "ilsvrc", "IoU", "resnet101", {
        "all": (57.9, 61.9, None, None, 57.3, 57.3),
        "25": (39.3, 43.1, None, None, 38.6, 38.1),
        "10": (31.9, 36.6, None, None, 31.2, 30.5),
    }),
    **_rows("classification", "coco", "IoU", "tresnet", {
        "all": (28.3, 30.7, 27.8, 27.3, 27.2, 27.5),
        "25": (22.7, 25.8, 21.4, 21.2, 21.5, 21.1),
        "10": (21.4, 24.9, 20.7, 20.5, 21.1, 20.3),
    }),
    **_rows("classification", "voc", "IoU", "tresnet", {
        "all": (36.2, 38.7, 35.5, 34.8, 35.5, 34.2),
        "25": (34.1, 37.2, 32.1, 31.5, 33.5, 31.1),
        "10": (27.1, 32.7, 26.8, 25.3, 26.2, 24.9),
    }),
}  # fmt: skip


def paper_of(
    task: str, data: str, subset: str, metric: str, model: str, method: str, n: int
) -> tuple[str, float] | None:
    """The paper's number and the model it is of: the same where it has one, else ResNet-101, TResNet or CheXNet."""
    names = [key[4] for key in PAPER if model.lower().startswith(key[4])] + ["resnet101", "tresnet", "chexnet"]
    for name in names:
        found = PAPER.get((task, data, subset, metric, name), {}).get(method)
        value = found[n - 1] if found is not None and n in (1, 2) else None
        if value is not None:
            return name, value
    return None
