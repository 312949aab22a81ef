"""The commands `index add`, `update`, `remove`, `info`, `duplicates` and `clusters`: a search index that stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gamlens import GamlensError, Lens
from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, lens_maker, make_lens
from gamlens.cli.index_search import listed_file
from gamlens.cli.terminal import note, say, say_rows
from gamlens.cli.waiting import ItemProgress, waiting
from gamlens.engine import ENGINES
from gamlens.errors import near, readable
from gamlens.files import claimed
from gamlens.index.backends import BACKENDS
from gamlens.index.catalogue import CATALOGUE, OWN_COLUMNS
from gamlens.index.changes import IndexChanges
from gamlens.index.filter_tokens import as_written
from gamlens.index.hits import Hit
from gamlens.index.image_listing import absolute, check_there, find_images
from gamlens.index.index import INDEX_SUFFIX, Index
from gamlens.index.metadata_table import mixed_columns, read_metadata
from gamlens.index.snapshot import AUTO_BACKEND
from gamlens.models.devices import AUTO
from gamlens.render import write
from gamlens.report.image_files import PAGE_FILE
from gamlens.report.index_pages import groups_page
from gamlens.scores import PAIR_SCORES

app = typer.Typer(
    help="Keep a search index of many images on disk. `gamlens search photo.jpg --in shop.gamlens` searches it.",
    no_args_is_help=True,
)
LINES_NAMED = 5
DEFAULT_SCORE = "cosine"
MADE_WITH = ("model", "weights", "blocks", "embedding")

IndexFolder = Annotated[Path, Argument(help="The folder of the index, such as shop.gamlens.", show_default=False)]
IndexModel = Annotated[
    str | None,
    Option("--model", "-m", help=f"{options.MODEL_HELP} By default the model that made the index.", show_default=False),
]
RecheckFlag = Annotated[
    bool, Option("--recheck", help="Read all files again, also those whose size and time have not changed.")
]
EmbeddingBatch = Annotated[
    int | None,
    Option("--batch-size", help="Number of images per forward pass. By default 8 on a CPU and 32 on a GPU.", min=1),
]
GroupsShown = Annotated[int, Option(help="How many groups the page shows.", min=1)]
MembersShown = Annotated[int, Option(help="How many images of a group the page explains.", min=2, max=24)]


@command("index add photos/ --to shop.gamlens --meta products.csv", of=app, resumes=True)
def add(
    places: Annotated[
        list[str] | None, Argument(help="Image files, folders of images, or globs in quotes.", show_default=False)
    ] = None,
    to: Annotated[
        Path | None, Option("--to", help="The folder of the index; it is made if it is not there.", show_default=False)
    ] = None,
    meta: Annotated[
        Path | None,
        Option(
            "--meta",
            help="A CSV file with a column path (or file, filename, image) and further columns that --where of a "
            "search can name, such as price and colour. Without images, it sets columns of images that are there.",
            show_default=False,
        ),
    ] = None,
    model: IndexModel = None,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    activations: Annotated[
        bool,
        Option(
            "--activations",
            help="For a new index: remember the last block of every image, in half precision, so that hits are "
            "explained without running the model again. It takes disk space.",
        ),
    ] = False,
    score: Annotated[
        str, Option(help=f"For a new index: by which score images are ranked: {', '.join(PAIR_SCORES)}.")
    ] = DEFAULT_SCORE,
    backend: Annotated[
        str,
        Option(
            help="For a new index: how it is searched: "
            f"{', '.join((AUTO_BACKEND, *BACKENDS))}. {AUTO_BACKEND} is exact up to 100,000 images, and beyond that "
            "approximate by usearch, where it is installed."
        ),
    ] = AUTO_BACKEND,
    recheck: RecheckFlag = False,
    batch_size: EmbeddingBatch = None,
    engine: options.EngineName = ENGINES[0],
    address: options.ClusterAddress = None,
    workers: options.WorkerCount = None,
    device: options.DeviceName = AUTO,
) -> Any:
    """Add images to an index, which is made if it is not there.

    Files that are there and have not changed are not read again, so that the same command continues an `add` that was
    stopped. Files that cannot be read are listed and left out.
    """
    if engine not in ENGINES:
        raise GamlensError(f"There is no engine {engine!r}: {near(engine, ENGINES)}")
    if to is None:
        raise GamlensError(f"Name the index: --to shop{INDEX_SUFFIX}.")
    if not places and meta is None:
        raise GamlensError("Name images or folders to add, or a table with --meta.")
    exists = (to / CATALOGUE).exists()
    if not exists and not places:
        raise GamlensError(f"There is no index {str(to)!r} yet: name images or folders to add.")
    if meta is not None:
        read_metadata(meta, [])  # finds mistakes before images are embedded
    check_there(places or [])
    found = find_images(places, skip=to) if places else []
    if exists:
        asked = {"--activations": activations, "--score": score != DEFAULT_SCORE, "--backend": backend != AUTO_BACKEND}
        if new_only := [option for option, given in asked.items() if given]:
            raise GamlensError(f"{new_only[0]} is for a new index, and {str(to)!r} is there already: leave it out.")
        index = opened(to, model, weights, blocks, embedding, device, lens=bool(places))
    else:
        named = dict(zip(MADE_WITH, (model or options.DEFAULT_MODEL, weights, blocks, embedding), strict=True))
        lens = make_lens(named["model"] or "", weights, blocks, device, embedding=embedding)
        index = Index.create(
            to, lens, activations=activations, score=score, backend=backend,
            made_with={name: _absolute_if_file(value) for name, value in named.items() if value is not None},
        )  # fmt: skip
    with index:
        changes = IndexChanges()
        if meta is not None:
            read_metadata(meta, [], index.catalogue.kinds())  # these, too
        if places:
            with ItemProgress("embedding", len(found)) as progress:
                progress(0, 0)
                how: dict[str, Any] = {"recheck": recheck, "batch_size": batch_size, "status": progress, "skip": to}
                if engine == ENGINES[0]:
                    changes = index.add(places, workers=workers, **how)
                else:
                    made = {name: index.made_with.get(name) for name in MADE_WITH}
                    make = lens_maker(
                        str(made["model"]), made["weights"], made["blocks"], device, embedding=made["embedding"]
                    )
                    changes = index.add_on_cluster(places, make, address=address, workers=workers, **how)
        if meta is not None:
            index.follow_move()
            paths = [image.path for image in index.catalogue.images().values()]
            rows, unmatched = read_metadata(meta, paths, index.catalogue.kinds())
            changes = changes.joined(IndexChanges(annotated=index.annotate(rows)))
            for column, cell in mixed_columns(meta):
                note(f"The column {column} is text, because not all of its cells are numbers: {cell!r:.40}.")
            if unmatched:
                names = ", ".join(unmatched[:LINES_NAMED]) + (", ..." if len(unmatched) > LINES_NAMED else "")
                rows_name = "1 row" if len(unmatched) == 1 else f"{len(unmatched)} rows"
                note(f"{rows_name} of {meta} name{'s' * (len(unmatched) == 1)} no image of the index: {names}.")
        return _show_changes(index, changes)


@command("index update shop.gamlens", of=app, resumes=True)
def update(
    folder: IndexFolder,
    model: IndexModel = None,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    recheck: RecheckFlag = False,
    batch_size: EmbeddingBatch = None,
    workers: Annotated[int | None, Option(help="Number of threads that read files.", min=1)] = None,
    device: options.DeviceName = AUTO,
) -> Any:
    """Look at all folders that were added again: new, changed, renamed and vanished files.

    A renamed file is known by its contents and keeps its columns. The images of a folder that is not there stay, since
    a disk may not be mounted; `gamlens index remove` takes them out.
    """
    with opened(folder, model, weights, blocks, embedding, device) as index:
        with ItemProgress("looking", max(1, len(index))) as progress:
            progress(0, 0)
            changes = index.update(recheck=recheck, batch_size=batch_size, workers=workers, status=progress)
        for place in changes.missing:
            note(f"{place} is not there, or holds no image: its images stay in the index.")
        return _show_changes(index, changes)


@command('index remove shop.gamlens photos/old --where "price > 500"', of=app)
def remove(
    folder: IndexFolder,
    places: Annotated[
        list[str] | None, Argument(help="Files or folders whose images are taken out.", show_default=False)
    ] = None,
    where: options.WhereFilter = None,
) -> dict[str, Any]:
    """Take images out of an index. Their files stay.

    An update takes images in again whose files are still in a folder that was added.
    """
    with Index.open(folder) as index:
        with waiting("removing"):
            changes = index.remove(places or [], where=where)
        if changes.removed and index.sources():
            note(f"`gamlens index update` takes them in again as long as their files are in {index.sources()[0]}.")
        return _show_changes(index, changes)


@command("index info shop.gamlens --check", of=app, whole=True)
def info(
    folder: IndexFolder,
    check: Annotated[bool, Option("--check", help="Read the whole index, and say what is damaged.")] = False,
) -> dict[str, Any]:
    """Say what an index holds: images, columns, model, files on disk, and files that could not be read."""
    with Index.open(folder) as index, waiting("reading the index"):
        found = index.info()
        problems = index.check() if check else []
    _show_info(found)
    if check and not problems:
        say("Nothing is damaged.")
    record = found | ({"problems": problems} if check else {})
    if problems:
        exit_with_failures("\n".join(problems), record)
    return record


@command("index duplicates shop.gamlens --threshold 0.97 --out alike", of=app)
def duplicates(
    folder: IndexFolder,
    threshold: Annotated[
        float, Option(help="The cosine from which two images are nearly the same.", min=-1, max=1)
    ] = 0.97,
    groups: GroupsShown = 20,
    members: MembersShown = 6,
    out: options.PageFolder = Path("gamlens-out/duplicates"),
    device: options.DeviceName = AUTO,
) -> Any:
    """Find groups of images that are nearly the same, and show on each what it shares with the others of its group."""
    with opened(folder, None, None, None, None, device) as index:
        with ItemProgress("comparing", max(1, len(index))) as progress:
            found = index.duplicates(threshold, status=lambda done, total: progress(done, 0))
        title, lead = "Nearly the same", f"Images with a cosine of {threshold:g} or more, by `{index.lens.name}`."
        if not found:
            lead = f"No two of the {len(index)} images have a cosine of {threshold:g} or more: lower --threshold."
        return _show_groups(index, found, "group", title, lead, groups, members, out)


@command("index clusters shop.gamlens --count 12 --out clusters", of=app)
def clusters(
    folder: IndexFolder,
    count: Annotated[int, Option(help="How many clusters.", min=2)] = 12,
    seed: Annotated[int, Option(help="Seed of the first middles.")] = 0,
    members: MembersShown = 6,
    out: options.PageFolder = Path("gamlens-out/clusters"),
    device: options.DeviceName = AUTO,
) -> Any:
    """Divide the images of an index into clusters, and show on the most typical ones what they share."""
    with opened(folder, None, None, None, None, device) as index:
        with waiting(f"dividing {len(index)} images"):
            found = index.clusters(count, seed=seed)
        if len(index) < count:
            note(f"There are {len(found)} clusters, not {count}: the index has only {len(index)} images.")
        lead = f"Spherical k-means of {len(index)} images into {len(found)} clusters, by `{index.lens.name}`."
        return _show_groups(index, found, "cluster", "Clusters", lead, count, members, out)


def opened(
    folder: Path,
    model: str | None,
    weights: str | None,
    blocks: str | None,
    embedding: str | None,
    device: str,
    *,
    lens: bool = True,
) -> Index:
    """Open an index with the model that made it, or another one if its options name one, which must be the same."""
    found = Index.open(folder)
    if not lens:
        return found
    try:
        known = {name: value for name, value in found.made_with.items() if name in MADE_WITH}
        given = dict(zip(MADE_WITH, (model, weights, blocks, embedding), strict=True))
        chosen: dict[str, Any] = known if model is None else {}
        chosen |= {name: value for name, value in given.items() if value is not None}
        if not known and model is None and "(" not in found.identity.get("model", "("):
            chosen.setdefault("model", found.identity["model"])  # a lens that was made by name; it is checked below
        if "model" not in chosen:
            raise GamlensError(
                f"The index {str(folder)!r} was made with a model that has no name here "
                f"({found.identity.get('model')}): give it with --model file.py:build."
            )
        made = make_lens(
            chosen["model"], chosen.get("weights"), chosen.get("blocks"), device, embedding=chosen.get("embedding")
        )
    finally:
        found.close()
    return Index.open(folder, made)


def _absolute_if_file(value: str | None) -> str | None:
    """An option that names a file, as an absolute path; file.py:build is one, too."""
    if value is None:
        return None
    file, colon, name = value.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{absolute(file)}:{name}"
    return absolute(value) if Path(value).is_file() else value


def _show_changes(index: Index, changes: IndexChanges) -> dict[str, Any]:
    """Print what changed, with notes about the first files that cannot be read; the same for JSON."""
    rate = f", {changes.forwards / changes.seconds:.1f} images per second" if changes.forwards else ""
    say(f"{changes}: {len(index)} images in {index.folder}{rate}")
    if still := len(set(index.catalogue.bad()) - changes.bad.keys()):
        note(f"{still} file{'s' * (still != 1)} still cannot be read; see `gamlens index info {index.folder}`.")
    for path, reason in list(changes.bad.items())[:LINES_NAMED]:
        note(_about_bad(path, reason))
    if len(changes.bad) > LINES_NAMED:
        note(f"{len(changes.bad) - LINES_NAMED} more; `gamlens index info {index.folder}` lists them.")
    return {**changes.record, "images": len(index)}


def _show_info(found: dict[str, Any]) -> None:
    size = found["bytes"] / 2**20
    rows = [
        ("images", str(found["images"])),
        ("added", _first_of(found["sources"])),
        ("columns", ", ".join(map(as_written, [*found["columns"], *OWN_COLUMNS]))),
        ("model", found["identity"].get("model", "?")),
        ("embedding", f"{found['dimension']} numbers at {found['identity'].get('embedding', '?')}"),
        ("preprocessing", found["identity"].get("preprocessing", "")),
        ("weights", found["identity"].get("weights_sha256", "")[:16]),
        ("ranked by", f"{found['score']}, {BACKENDS[found['backend']].title}"),
        ("activations", "remembered" if found["activations"] else "not remembered"),
        ("on disk", f"{size:.1f} MiB: " + ", ".join(f"{name} {n / 2**20:.1f}" for name, n in found["files"].items())),
    ]
    say_rows(("", ""), rows)
    if found["bad"]:
        count = len(found["bad"])
        head = f"{count} file{'s' * (count != 1)} could not be read:"
        say_rows((head,), [(_about_bad(path, reason),) for path, reason in found["bad"].items()])


def _first_of(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - LINES_NAMED} more; --json has all" if len(names) > LINES_NAMED else ""
    return ", ".join(names[:LINES_NAMED]) + more if names else "nothing"


def _about_bad(path: str, reason: str) -> str:
    """Why a file cannot be read; most reasons name the file already."""
    name = readable(path)
    return reason if name in reason or repr(name)[1:-1] in reason else f"{name}: {reason}"


def _show_groups(
    index: Index,
    found: Sequence[Sequence[Hit]],
    what: str,
    title: str,
    lead: str,
    groups: int,
    members: int,
    out: Path,
) -> list[list[dict[str, Any]]]:
    """Write a page with the first groups, and print these; all of them for JSON."""
    with claimed(out), ItemProgress("explaining", min(groups, len(found)) or 1) as progress:
        page = groups_page(
            index, found[:groups], title=title, lead=lead, what=what, members=members,
            status=lambda done: progress(done, 0), total=len(found),
        )  # fmt: skip
        place = write(page, out / PAGE_FILE)
    if not found:
        say(f"{lead} Open {place}")
        return []
    lines = [
        (str(number), str(len(group)), ", ".join(listed_file(hit, Path(hit.file).name) for hit in group[:3]))
        for number, group in enumerate(found[:groups], 1)
    ]
    say_rows((what, "images", "such as"), lines)
    more = f" The page shows the first {groups}." if len(found) > groups else ""
    count = f"{len(found)} {what}{'s' * (len(found) != 1)}"
    say(f"{count} in {len(index)} images.{more} Open {place}")
    return [[hit.record for hit in group] for group in found]


__all__ = ["Lens", "app", "opened"]
