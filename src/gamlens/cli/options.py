"""The options and arguments that several commands share: their names, their types and their help texts."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gamlens import METHODS, MODELS, GamlensError, Refinement
from gamlens.capture.forward import BY_NETWORK
from gamlens.data import DATASETS
from gamlens.engine import ENGINES
from gamlens.evaluation.protocol import CHOICES
from gamlens.fuse import FUSIONS, MAP_SIGNS
from gamlens.lattice import READINGS
from gamlens.methods import ATTENTION_DEFAULT, BLOCK_DEFAULT, Kind, names
from gamlens.models import DEFAULT_MODEL as DEFAULT_MODEL
from gamlens.scores import PAIR_SCORES

MODEL_HELP = (
    f"The model: {', '.join(MODELS)}; any torchvision classifier by its name; timm/NAME; hf/ID or hf/FOLDER (Hugging "
    "Face); or file.py:build, a function in a file of yours that returns a module or a Lens."
)
LITERAL_HELP = "grad_cam_pp_literal is Grad-CAM++ exactly as published, which can overflow."
DATASET_HELP = ", ".join(f"{name} ({entry.title})" for name, entry in DATASETS.items())


def _several(*kinds: Kind, pairs: bool = False) -> str:
    """The help of an option that takes methods of these kinds, and of kind "pair" where pairs are explained."""
    known = f"Methods, comma separated: {', '.join(names(*kinds))}"
    return f"{known}; for pairs also {', '.join(names('pair'))}." if pairs else f"{known}."


def completed(known: Iterable[str]) -> Callable[[str], list[str]]:
    """What the shell completes a word to: these names, also those after a comma.

    >>> completed(["gam", "grad_cam"])("gam,gr")
    ['gam,grad_cam']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


# The model
ModelName = Annotated[str, Option("--model", "-m", help=MODEL_HELP, autocompletion=completed(MODELS))]
WeightsFile = Annotated[
    str | None,
    Option(
        help="The weights: a .safetensors or .pth file; 'random'; or for models of torchvision the name of their "
        "weights, such as IMAGENET1K_V1, IMAGENET1K_V2 or DEFAULT, which are downloaded once. By default the model's "
        "own pretrained weights."
    ),
]
BlockNames = Annotated[
    str | None,
    Option(
        help="The layers (blocks) that maps can be computed from, by name, comma separated. -n counts from the last of "
        "them. By default they are found automatically; `gamlens blocks MODEL` lists them."
    ),
]
EmbeddingLayer = Annotated[
    str | None,
    Option(
        help="The layer whose output is compared between images, such as fc1. By default it is found automatically; "
        "`gamlens blocks MODEL` names it."
    ),
]
DeviceName = Annotated[
    str,
    Option(
        help="Where the model runs: auto, cpu, cuda, cuda:1 (the second GPU), mps. 'auto' is a GPU where there is one, "
        "else the CPU; a model of file.py:build that is on a GPU already stays there."
    ),
]

# What is explained, and how
ImagePaths = Annotated[
    list[str], Argument(help="Image files, folders of images, or globs in quotes.", show_default=False)
]
AUTO_HELP = (
    f"{BY_NETWORK} is {ATTENTION_DEFAULT} for a transformer whose attention can be read, and {BLOCK_DEFAULT} otherwise."
)
MethodName = Annotated[
    str,
    Option(
        help=f"Method: {BY_NETWORK}, {', '.join(METHODS)}. {AUTO_HELP} {LITERAL_HELP}",
        autocompletion=completed((BY_NETWORK, *METHODS)),
    ),
]
ClassMethodName = Annotated[
    str,
    Option(
        help=f"Method: {BY_NETWORK}, {', '.join(names('block', 'attention', 'input'))}. {AUTO_HELP} {LITERAL_HELP}",
        autocompletion=completed((BY_NETWORK, *names("block", "attention", "input"))),
    ),
]
SearchMethodName = Annotated[
    str,
    Option(
        help=f"Method: {', '.join(names('block', 'pair', 'input'))}. {LITERAL_HELP}",
        autocompletion=completed(names("block", "pair", "input")),
    ),
]
EXPLAINER_HELP = (
    "A name may end in +refine, +views or both, for refined maps and maps averaged over views. Explainers of other "
    "packages: captum:IntegratedGradients, grad_cam_lib:ScoreCAM, torchcam:LayerCAM (pip install 'gamlens\\[peers]'), "
    "with options as in captum:Occlusion?window=32&stride=16; a function of yours: my_file.py:explain; maps that "
    "another program wrote: maps:FOLDER."
)
EvaluatedMethodNames = Annotated[
    str,
    Option(
        help=f"{_several('block', 'attention', 'input', pairs=True)} {EXPLAINER_HELP}",
        autocompletion=completed(METHODS),
    ),
]
RoadShares = Annotated[
    str,
    Option(
        help="With objective: also measure ROAD, the score after these percentages of pixels were replaced by a mean "
        "of their neighbours, such as 20,40,60,80. Empty: not measured."
    ),
]
InfidelityCount = Annotated[
    int, Option(help="With objective: also measure infidelity, by hiding this many random squares. 0: not measured.")
]
SensitivityCount = Annotated[
    int,
    Option(
        help="With objective: also measure the maximal sensitivity, by explaining this many noisy copies of every "
        "image. 0: not measured."
    ),
]
CoherencyFlag = Annotated[
    bool,
    Option(
        "--coherency/--no-coherency",
        help="With objective: also explain image x map again, which coherency and ADCC need.",
    ),
]
CompileFlag = Annotated[
    bool,
    Option(
        "--compile",
        help="With objective: compile the network for the forward passes of masked images. Results differ in the last "
        "digits; long runs are faster.",
    ),
]
CurveSteps = Annotated[
    int, Option(help="With objective: also measure insertion and deletion curves, in this many steps. 0: none.")
]
ClassMethodNames = Annotated[str, Option(help=_several("block", "input"))]
TestedMethodNames = Annotated[str, Option(help=_several("block", "attention", "input", pairs=True))]
BlocksOrLayers = Annotated[
    int | None,
    Option(
        "--n",
        "-n",
        help="How many blocks, or attention layers of a transformer, to use, counted from the last; their maps are "
        "fused into one. By default 2 blocks, or all attention layers.",
        show_default=False,
    ),
]
BlockCount = Annotated[
    int, Option("--n", "-n", help="How many blocks to use, counted from the last; their maps are fused into one.")
]
FusionName = Annotated[str, Option(help=f"How the maps of the blocks are fused into one: {', '.join(FUSIONS)}.")]
LatticeReading = Annotated[
    str,
    Option(
        help="If a network reads only every second row and column of a block, as the original ResNet does: make the "
        f"map of these positions (read), or of all of them, as a lattice of dots (keep): {', '.join(READINGS)}. "
        "`gamlens blocks MODEL` says whether it does."
    ),
]
PairScoreName = Annotated[
    str,
    Option(
        help=f"How the similarity of two images is computed: {', '.join(PAIR_SCORES)}.",
        autocompletion=completed(PAIR_SCORES),
    ),
]
MapSign = Annotated[
    str | None,
    Option(
        "--sign",
        help="Maps with a sign, and a colour bar that has raw values: what raises the score (positive), what lowers it "
        f"(negative), or the first minus the second in two colours (both): {', '.join(MAP_SIGNS)}. By default maps as "
        "the method makes them.",
        show_default=False,
    ),
]
ViewNames = Annotated[
    str,
    Option(
        "--views",
        help="Average each map with maps of other views of the image: mirrored (flip) and scaled, such as "
        "flip,1.43,2.0. Every view takes a forward pass of its own. By default only the image itself.",
    ),
]
RefineBlocks = Annotated[
    int,
    Option(
        "--refine",
        help="Refine each map by this many earlier blocks of the network, so that it follows the outlines of objects: "
        "places that look alike to the network get similar values. 2 is usual, 0 leaves maps as they are. It takes no "
        "further forward pass. Methods that read the pixels instead of blocks cannot be refined.",
    ),
]
RefineKeep = Annotated[
    float | None,
    Option(
        "--keep",
        help="With --refine or --sharp: the weight of the map before refinement in the refined one, from 0 (follow "
        f"outlines as closely as possible) to 1 (no change). By default {Refinement.keep:g}.",
        show_default=False,
    ),
]
SharpFlag = Annotated[bool, Option("--sharp", help=f"Make sharper maps: the same as --refine {Refinement.blocks}.")]

WhereFilter = Annotated[
    str | None,
    Option(
        "--where",
        help='Only images that this filter lets through, by the columns of the table that was added: "price < 50 and '
        "colour = 'red'\". It knows = != < <= > >=, in (...), like 'a%', between a and b, is null, and, or, not. "
        "image.path, image.name, image.width, image.height and image.bytes can be named, too.",
        show_default=False,
    ),
]

# Data sets and what is measured on them
DatasetName = Annotated[str, Option(help=f"The kind of data set: {DATASET_HELP}.", autocompletion=completed(DATASETS))]
DatasetRoot = Annotated[
    Path, Option(help="The folder of the data set (with --data table: the table file).", show_default=False)
]
DatasetSplit = Annotated[
    str | None,
    Option(help="The split of the data set, such as val. By default the one that is usual for the kind of data set."),
]
RunFolders = Annotated[
    list[str], Argument(help="Folders of runs, as `gamlens evaluate --out` wrote them.", show_default=False)
]
ItemLimit = Annotated[int | None, Option(help="Use only the first items, this many. By default all.", min=1)]
BatchSize = Annotated[int, Option(help="Number of images per forward pass.", min=1)]
Confidence = Annotated[str, Option(help="What counts as the model's confidence in ADP and PIC: logit or probability.")]

SubsetName = Annotated[
    str,
    Option(
        help=f"Measure all items, or only the 25 or 10 % with the smallest objects: {', '.join(CHOICES['subset'])}."
    ),
]
InputChoice = Annotated[
    str,
    Option(
        help="How images get the size of the model's input, stretched or with the centre cut out: "
        f"{', '.join(CHOICES['input'])}."
    ),
]
BoxChoice = Annotated[
    str,
    Option(
        "--box",
        help="With localization: the predicted box encloses all bright pixels, or their largest region: "
        f"{', '.join(CHOICES['box'])}.",
    ),
]
PairChoice = Annotated[
    str,
    Option(
        "--pairs",
        help="For tasks that compare pairs: pairs of a class are drawn at random, or are neighbours by file name: "
        f"{', '.join(CHOICES['pairs'])}.",
    ),
]
PairSeed = Annotated[int, Option(help="Seed of the drawn pairs.")]
PairsPerClass = Annotated[
    int, Option(help="For tasks that compare pairs: how many pairs of each class are drawn.", min=1)
]

# Where a long run happens, and in which pieces
EngineName = Annotated[
    str, Option(help="Where to run, in this process or on a Ray cluster: " + ", ".join(ENGINES) + ".")
]
ClusterAddress = Annotated[
    str | None, Option(help="The address of a Ray cluster. By default one is started on this machine.")
]
WorkerCount = Annotated[
    int | None, Option(help="Number of threads that decode images; with --engine ray, of copies of the model.")
]
ChunkSize = Annotated[int, Option(help="Number of items per result file. A stopped run repeats at most this many.")]

# Where results go
MapsFolder = Annotated[Path, Option("--out", "-o", help="Write overlays, maps and JSON files into this folder.")]
PageFolder = Annotated[Path, Option("--out", "-o", help="Write the page and its pictures into this folder.")]
TablesFolder = Annotated[Path, Option("--out", "-o", help="Write tables, plots and pictures into this folder.")]
JsonOutput = Annotated[
    bool,
    Option(
        "--json",
        help="Print the results as JSON on standard output in place of text. The files are written all the same.",
    ),
]


def chosen_refinement(
    *, refine: int, keep: float | None, sharp: bool, methods: Sequence[str] = ()
) -> Refinement | None:
    """What --refine, --keep and --sharp ask for together; None for no refinement. No model is needed to tell.

    Args:
        refine: The value of --refine, 0 if it was not given.
        keep: The value of --keep, None if it was not given.
        sharp: Whether --sharp was given.
        methods: The methods of the command. It is an error if one of them makes maps that cannot be refined.
    """
    if sharp and refine:
        raise GamlensError(
            f"--sharp stands for --refine {Refinement.blocks}: leave one of them out, --sharp or --refine {refine}."
        )
    if not sharp and not refine:
        if keep is not None:
            raise GamlensError(f"--keep {keep:g} is a weight in refined maps: give --refine or --sharp, too.")
        return None
    blocks = Refinement.blocks if sharp else refine
    found = Refinement(blocks, Refinement.keep if keep is None else keep)
    own = [name.split("+")[0] for name in methods if name != BY_NETWORK and ":" not in name]
    if pixels := [name for name in own if METHODS[name].kind == "input"]:
        raise GamlensError(
            f"{'--sharp' if sharp else f'--refine {refine}'}: {METHODS[pixels[0]].title} reads the pixels, not blocks, "
            f"so its maps cannot be refined. Leave the option out, or choose other methods: "
            f"{', '.join(names('block', 'attention'))}."
        )
    return found


def chosen_sign(sign: str | None, *, against: str | None = None, methods: Sequence[str] = ()) -> str | None:
    """What --sign asks for; maps of a contrast (--against) have both signs by default. No model is needed to tell.

    Args:
        sign: The value of --sign, None if it was not given.
        against: The value of --against, None if it was not given.
        methods: The methods of the command. It is an error if one of them has no maps with a sign.
    """
    option = f"--sign {sign}" if sign is not None else "--against"
    if sign is not None and sign not in MAP_SIGNS:
        raise GamlensError(f"{option}: give one of {', '.join(MAP_SIGNS)}.")
    sign = MAP_SIGNS[-1] if sign is None and against is not None else sign
    if sign is not None and (bad := [name for name in methods if name != BY_NETWORK and not METHODS[name].has_sign]):
        able = ", ".join(name for name, entry in METHODS.items() if entry.has_sign)
        raise GamlensError(
            f"{option}: {METHODS[bad[0]].title} does not tell what raises the score from what lowers it: choose "
            f"another --method: {able}."
        )
    return sign
