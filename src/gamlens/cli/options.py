"""Options and arguments that several commands have: their names, their help, and what they accept."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gamlens import METHODS, MODELS
from gamlens.data import DATASETS
from gamlens.fuse import FUSIONS
from gamlens.methods import Kind, names
from gamlens.scores import PAIR_SCORES

DEFAULT_MODEL = "efficientnet_lite0"
MODEL_HELP = (
    f"{', '.join(MODELS)}; any classifier of torchvision; timm/NAME; hf/ID or hf/FOLDER; or your own: file.py:build."
)


def _several(*kinds: Kind, pairs: bool = False) -> str:
    """The help of an option that takes methods of these kinds, and of kind "pair" where pairs are explained."""
    known = f"Methods, comma separated: {', '.join(names(*kinds))}"
    return f"{known}; for pairs also {', '.join(names('pair'))}." if pairs else f"{known}."


# The model
ModelName = Annotated[str, Option("--model", "-m", help=MODEL_HELP)]
WeightsFile = Annotated[str | None, Option(help="A .safetensors or .pth file of weights, or 'random'.")]
BlockNames = Annotated[str | None, Option(help="Blocks by name, comma separated, in place of the found ones.")]
EmbeddingLayer = Annotated[str | None, Option(help="Pairs: the layer whose output is compared, such as fc1.")]
DeviceName = Annotated[str | None, Option(help="cpu, cuda, cuda:1, mps ...")]

# What is explained, and how
ImagePaths = Annotated[list[str], Argument(help="Image files, folders or globs.", show_default=False)]
MethodName = Annotated[str, Option(help=f"Method: {', '.join(METHODS)}.")]
ClassMethodName = Annotated[str, Option(help=f"Method: {', '.join(names('block', 'input'))}.")]
BlockMethodNames = Annotated[str, Option(help=_several("block"))]
EvaluatedMethodNames = Annotated[str, Option(help=_several("block", pairs=True))]
ClassMethodNames = Annotated[str, Option(help=_several("block", "input"))]
TestedMethodNames = Annotated[str, Option(help=_several("block", "input", pairs=True))]
BlockCount = Annotated[int, Option("--n", "-n", help="How many of the last blocks to use.")]
FusionName = Annotated[str, Option(help=f"How blocks are joined: {', '.join(FUSIONS)}.")]
PairScoreName = Annotated[str, Option(help=f"Similarity of pairs: {', '.join(PAIR_SCORES)}.")]

# Data sets and what is measured on them
DatasetName = Annotated[str, Option(help=f"Data set: {', '.join(DATASETS)}.")]
DatasetRoot = Annotated[Path, Option(help="The folder of the data set.", show_default=False)]
DatasetSplit = Annotated[str | None, Option(help="Split of the data set, such as val.")]
RunFolders = Annotated[list[str], Argument(help="Folders of runs (gamlens evaluate).", show_default=False)]
ItemLimit = Annotated[int | None, Option(help="Only the first so many items.", min=1)]
BatchSize = Annotated[int, Option(help="Images per forward.", min=1)]
Confidence = Annotated[str, Option(help="ADP and PIC of the logit or the probability.")]

# Where results go
MapsFolder = Annotated[Path, Option("--out", "-o", help="Folder for overlays, maps and JSON.")]
PageFolder = Annotated[Path, Option("--out", "-o", help="Folder for the page and pictures.")]
TablesFolder = Annotated[Path, Option("--out", "-o", help="Folder for tables, plots and pictures.")]
JsonOutput = Annotated[bool, Option("--json", help="Print JSON and nothing else on standard output.")]
