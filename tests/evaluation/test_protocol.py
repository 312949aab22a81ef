"""What a run records about its protocol, and how runs of early versions are read."""

from __future__ import annotations

from typing import Any

import pytest

from gamlens import GamlensError
from gamlens.evaluation.protocol import Protocol, variant


def about(protocol: Protocol, *, without: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    record = {name: value for name, value in protocol.record().items() if name not in without}
    return {"data": "ilsvrc", "protocol": record, **more}


def test_a_protocol_is_what_its_record_says() -> None:
    protocol = Protocol("objective", "cosine", ("gam",), (1, 3), masked="both", hold_out_by="maps", views=("flip", 2.0))
    listed = {name: list(v) if isinstance(v, tuple) else v for name, v in protocol.record().items()}
    assert Protocol.from_record(listed) == protocol
    assert Protocol.from_record(Protocol().record()) == Protocol()


def test_a_run_without_the_field_held_out_single_maps() -> None:
    record = {name: value for name, value in Protocol(task="dot").record().items() if name != "hold_out_by"}
    assert Protocol.from_record(record) == Protocol(task="dot", hold_out_by="maps")


def test_the_hold_out_of_single_maps_is_named_where_it_matters() -> None:
    old = ("hold_out_by",)
    assert variant(about(Protocol(task="cosine"))) == ""
    assert variant(about(Protocol(task="cosine"), without=old)) == "hold_out_by=maps"
    assert variant(about(Protocol(task="cosine", hold_out_by="maps"))) == "hold_out_by=maps"
    assert variant(about(Protocol(), without=old)) == ""
    assert variant(about(Protocol("objective", "cosine"), without=old)) == ""
    assert variant(about(Protocol(task="cosine", hold_out=0), without=old)) == "hold_out=0"
    named = about(Protocol(task="cosine", hold_out=0), without=old, manifests={"hold_out": "0123456789"})
    assert variant(named) == "hold_out_by=maps, hold_out=01234567"


def test_another_word_is_an_error() -> None:
    with pytest.raises(GamlensError, match="hold_out_by cannot be 'map': did you mean 'maps'"):
        Protocol(hold_out_by="map")
