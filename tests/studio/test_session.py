"""What a session keeps, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from studio_kit import noise

from gamlens import GamlensError
from gamlens.studio.actions import Actions
from gamlens.studio.controls import Controls
from gamlens.studio.example_photos import copy_examples
from gamlens.studio.session import LATE_SECONDS, MOST_ENDED, SessionId, Sessions


def test_sessions_end_with_their_files(tmp_path: Path) -> None:
    sessions = Sessions(2, folder=tmp_path)
    files = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        files.append(noise(tmp_path / str(number) / "photo.png", seed=number))
        sessions.get(f"visitor {number}").set_photo("photo", files[-1])
    assert len(sessions) == 2
    assert [file.exists() for file in files] == [False, True, True]
    assert not files[0].parent.exists()
    sessions.get("visitor 1").set_photo("photo", None)
    assert not files[1].exists()
    sessions.end("visitor 2")
    assert not files[2].exists()
    sessions.clear()
    assert len(sessions) == 0


def test_a_visitor_with_many_sessions_closes_only_own_ones(tmp_path: Path) -> None:
    sessions = Sessions(3, folder=tmp_path)
    sessions.get(SessionId("guest", "10.0.0.1")).model = "kept"
    for number in range(9):
        sessions.get(SessionId(f"many {number}", "10.0.0.2"))
    assert sessions.get("guest").model == "kept"
    assert len(sessions) == 3
    sessions.get(SessionId("other guest", "10.0.0.3")).model = "kept"
    assert {session.visitor for session in sessions._open.values()} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_a_photo_of_two_places_stays_until_both_are_done(tmp_path: Path) -> None:
    session = Sessions(folder=tmp_path).get("one")
    file = noise(tmp_path / "photo.png", seed=0)
    session.set_photo("x", file)
    session.set_photo("y", file)
    session.set_photo("x", None)
    assert file.exists()
    session.close()
    assert not file.exists()


def test_visitors_who_give_the_same_photo_share_it(tmp_path: Path) -> None:
    sessions, file = Sessions(folder=tmp_path), noise(tmp_path / "photo.png", seed=0)
    sessions.get("one").set_photo("photo", file)
    sessions.get("two").set_photo("photo", file)
    sessions.get("one").set_photo("photo", file)
    sessions.end("one")
    assert file.exists()
    sessions.end("two")
    assert not file.exists()


def test_a_file_that_is_no_photo_goes_with_the_next(tmp_path: Path) -> None:
    sessions, files = Sessions(folder=tmp_path), [tmp_path / "one.jpg", tmp_path / "two.jpg"]
    for file in files:
        file.write_text("no image")
        with pytest.raises(GamlensError):
            sessions.get("me").set_photo("photo", file)
    assert [file.exists() for file in files] == [False, True]
    sessions.end("me")
    assert not files[1].exists()


def test_a_file_that_is_no_photo_and_is_given_again_is_still_there(tmp_path: Path) -> None:
    session, file = Sessions(folder=tmp_path).get("me"), tmp_path / "one.jpg"
    file.write_text("no image")
    for _ in range(2):
        with pytest.raises(GamlensError, match=r"Cannot read 'one\.jpg'"):
            session.set_photo("photo", file)
    session.close()
    assert not file.exists()


def test_examples_are_never_deleted(tmp_path: Path) -> None:
    examples = copy_examples(tmp_path)
    assert set(examples.of("class")) == {"cheetah", "lion", "cat", "coffee", "both"}
    session = Sessions(folder=tmp_path, keep=examples.files.values()).get("one")
    session.set_photo("photo", examples.files["both"])
    session.set_photo("x", tmp_path / "." / "both.jpg")
    session.close()
    assert examples.files["both"].exists()


def test_files_that_were_not_uploaded_are_never_deleted(tmp_path: Path) -> None:
    """A path outside of the upload folder may be anything: a file of an installed package, or of the user."""
    (tmp_path / "uploads").mkdir()
    other, link = noise(tmp_path / "mine.png", seed=0), tmp_path / "uploads" / "link.png"
    link.symlink_to(other)
    for session in (Sessions(folder=tmp_path / "uploads").get("one"), Sessions().get("one")):
        for file in (other, link):
            session.set_photo("photo", file)
        session.close()
    assert other.exists()


def test_an_event_handled_after_its_page_was_closed_leaves_nothing(tmp_path: Path, actions: Actions) -> None:
    """Neither one that waited in the queue, nor one that was on its way: no session, no photo, no use of the model."""
    sessions = actions.sessions
    before = time.monotonic()
    sessions.get("me")
    sessions.end("me")
    for arrived in (before, time.monotonic() + LATE_SECONDS / 2):
        late = SessionId("me", "10.0.0.1", arrived)
        actions.redraw(late, "class", Controls())
        update = actions.set_photos(late, {"photo": noise(tmp_path / "late.png", seed=0)}, Controls())
        assert "This visit has ended" in update.stage
        assert len(sessions) == 0
    assert sessions.files._uploads == {}


def test_an_action_that_got_its_session_just_before_it_ended_leaves_no_photo(tmp_path: Path) -> None:
    sessions, file = Sessions(folder=tmp_path), noise(tmp_path / "photo.png", seed=0)
    session = sessions.get("me")
    sessions.end("me")
    with pytest.raises(GamlensError, match="This visit has ended"):
        session.set_photo("photo", file)
    assert sessions.files._uploads == {}


def test_a_page_that_lost_its_connection_for_a_moment_goes_on(tmp_path: Path) -> None:
    sessions = Sessions(folder=tmp_path)
    sessions.get("me")
    sessions.end("me")
    back = SessionId("me", "10.0.0.1", time.monotonic() + LATE_SECONDS + 1)
    sessions.get(back).set_photo("photo", noise(tmp_path / "photo.png", seed=0))
    assert len(sessions) == 1
    assert sessions.get(back).photos


def test_remembers_a_limited_number_of_ended_sessions() -> None:
    sessions = Sessions()
    for number in range(MOST_ENDED + 9):
        sessions.end(f"visitor {number}")
    assert len(sessions._ended) == MOST_ENDED
    assert sessions.get(f"visitor {MOST_ENDED}").closed
    assert not sessions.get("visitor 0").closed


def test_a_session_that_nobody_uses_ends_with_its_files(tmp_path: Path) -> None:
    """As after a browser that crashed before it had opened the connection by whose end the studio sees that it left."""
    sessions, file = Sessions(folder=tmp_path), noise(tmp_path / "photo.png", seed=0)
    sessions.get("gone").set_photo("photo", file)
    sessions.get("here")
    sessions._open["gone"].used -= 100
    sessions.sweep(50)
    assert not file.exists()
    assert list(sessions._open) == ["here"]
    assert not sessions.get("gone").closed
