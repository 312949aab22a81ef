"""The wheel and the sdist, built once for all tests of a file."""

from __future__ import annotations

from email import message_from_string
from zipfile import ZipFile

import pytest
from packaging_kit import Built, build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    sdist, wheel = build(tmp_path_factory.mktemp("dist"))
    with ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return Built(sdist, wheel, message_from_string(files.read(name).decode()))
