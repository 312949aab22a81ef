"""Answers the page's uploads in place of gradio, whose uploads of the same photo by two visitors share one file."""

import json
import shutil
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from gamlens.errors import GamlensError
from gamlens.studio.request_body import Receive, RefusedBodyError
from gamlens.studio.uploads import MEGA, MOST_BYTES, UploadedFiles


async def save_upload(files: UploadedFiles, visitor: str, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
    """Write the photo of a multipart request into a folder of its own; returns the answer that the page expects.

    While it arrives the photo is in memory or in a nameless temporary file, which is gone if the visitor goes away.
    """
    from anyio import to_thread
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request

    request, file = Request(scope, receive), None
    length = request.headers.get("content-length")
    place = files.begin(visitor, MOST_BYTES if length is None else int(length))
    try:
        async with request.form(max_files=1, max_fields=4, max_part_size=1024) as form:
            given = form.get("files")
            if given is None or isinstance(given, str):
                raise GamlensError("The request holds no photo.")
            if (given.size or 0) > MOST_BYTES:
                raise RefusedBodyError(413, f"The photo exceeds {MOST_BYTES // MEGA} MB, the maximum allowed size.")
            file = await to_thread.run_sync(_write, place, given.filename or "", given.file)
    except (HTTPException, ClientDisconnect, KeyError, ValueError, OSError) as error:
        raise GamlensError(f"The photo did not arrive: {getattr(error, 'detail', type(error).__name__)}.") from error
    finally:
        files.finish(place, file)
    return json.dumps([str(file)]).encode()


def _write(place: Path, name: str, source: Any) -> Path:
    """Write an upload into its folder under a harmless version of the visitor's name for it."""
    from gradio_client.utils import strip_invalid_filename_characters  # type: ignore[import-untyped]

    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    file = place / (strip_invalid_filename_characters(last).strip(". ") or "photo")
    with file.open("xb") as out:
        shutil.copyfileobj(source, out)
    file.chmod(0o600)
    return file
