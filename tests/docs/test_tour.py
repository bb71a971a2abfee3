"""The pages about the sources name every file and every room, and none that is not there."""

import re

import pytest
from tests.docs import files_page, gallery_page
from tests.docs.files_page import ROOT, SOURCES, rooms

TOUR = ROOT / "docs" / "tour.md"


def test_every_file_is_listed_in_the_words_at_its_top() -> None:
    assert files_page.PAGE.read_text(encoding="utf-8") == files_page.page(), (
        "run: python -m tests.docs.files_page"
    )


def test_every_topology_is_shown_as_it_plans() -> None:
    text, pictures = gallery_page.page()
    anew = "run: python -m tests.docs.gallery_page"
    assert gallery_page.PAGE.read_text(encoding="utf-8") == text, anew
    files = gallery_page.PICTURES.iterdir()
    assert {file.name: file.read_text(encoding="utf-8") for file in files} == pictures, anew


def test_the_start_page_has_the_steps_of_its_spec_and_of_the_first_advice() -> None:
    files = gallery_page.START_PICTURES.iterdir()
    drawn = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert drawn == gallery_page.start_pictures(), "run: python -m tests.docs.gallery_page"


def test_the_film_of_a_terminal_is_never_an_empty_box() -> None:
    """Each of its screens has some lines; without animation the last one is seen."""
    film = (ROOT / "docs" / "img" / "quickstart.svg").read_text(encoding="utf-8")
    screens = re.findall(r'<g class="f f\d+">(.*?)</g>', film, re.DOTALL)
    assert screens
    assert all(len(set(re.findall(r'<text x="\S+" y="(\S+)"', each))) > 4 for each in screens)
    assert f"\n.f{len(screens) - 1} {{ visibility: visible; }}\n" in film
    assert ">done: 500 steps" in screens[-1].splitlines()[-2] + screens[-1].splitlines()[-1]


def test_the_tour_has_every_room_in_the_order_of_imports() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TOUR.read_text(encoding="utf-8"), re.MULTILINE) == rooms()


@pytest.mark.parametrize("name", ["docs/tour.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(name: str) -> None:
    named = re.findall(
        r"`((?:[a-z_]+/)+[a-z0-9_-]+\.(?:py|md|yaml))`", (ROOT / name).read_text("utf-8")
    )
    missing = [each for each in named if not any((p / each).exists() for p in (SOURCES, ROOT))]
    assert named
    assert not missing
