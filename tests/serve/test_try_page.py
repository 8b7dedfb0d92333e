"""The page of the service in a real browser: a text is typed, bars and the verdict are seen."""

import numpy as np
import pytest
from browser import CHROMIUM, browser_page
from PIL import Image
from served import length_student, promising_student, server_in_thread

from distilcal.inference import Student

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

BARS = """[...document.querySelectorAll("#bars li")].map((row) => [row.querySelector(".name").textContent,
  row.querySelector(".share").textContent, row.querySelector(".fill").getBoundingClientRect().width
  / row.querySelector(".track").getBoundingClientRect().width])"""
CTRL = 2


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def url():
    with server_in_thread(promising_student(), max_chars=50) as url:
        yield url


def classify(page, text):
    """Type a text where the page has put the cursor, and send it from the keyboard."""
    page.wait_for("document.getElementById('about').textContent.startsWith('Reads')")
    page.type(text)
    page.press("Enter", 13, CTRL)
    page.wait_for("!document.getElementById('result').hidden || !document.getElementById('error').hidden")


def text_of(page, identifier):
    return page.evaluate(f"document.getElementById('{identifier}').textContent")


@pytest.mark.parametrize("width", [340, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_a_text_is_typed_and_bars_are_seen(page, url, width, dark):
    page.show_as(width=width, dark=dark)
    page.open(f"{url}/")
    classify(page, "abcdefg")
    bars = page.evaluate(BARS)
    probs = [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))]
    assert [bar[:2] for bar in bars] == [["long", f"{probs[0]:.1%}"], ["short", f"{probs[1]:.1%}"]]
    assert [bar[2] for bar in bars] == pytest.approx(probs, abs=0.01)
    assert text_of(page, "verdict") == "Hand over to a human: long, 88.1% sure."
    size = page.evaluate("[document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]")
    assert size[0] <= size[1]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(background) < 60 if dark else min(background) > 200
    assert page.problems == []


def test_the_verdict_follows_the_confidence(page, url):
    page.open(f"{url}/")
    classify(page, "abcdefghijklmnop")
    assert text_of(page, "verdict").startswith("Accept: long")
    assert "at least 95.0% accurate" in text_of(page, "promise")


def test_errors_are_shown(page, url):
    page.open(f"{url}/")
    classify(page, "a" * 60)
    assert text_of(page, "error") == "texts[0] has 60 characters; send at most 50 in one example"
    page.problems.clear()  # the browser logs the status of the answer


def test_names_stay_text(page):
    student = length_student(name="<b>bold</b>")
    student.classes = ("<img src=x>", "<b>long</b>")
    with server_in_thread(student) as url:
        page.open(f"{url}/")
        classify(page, "abcdefg")
        assert [bar[0] for bar in page.evaluate(BARS)] == ["<b>long</b>", "<img src=x>"]
        assert page.evaluate("document.querySelectorAll('main img, main b').length") == 0
        assert "no accuracy can be promised" in text_of(page, "promise")


def test_vectors_and_choices_have_their_own_fields(page):
    class FirstTwo:
        def compute_logits(self, data, on_progress=None):
            return data.inputs.values.astype(float)

    class EndingLengths:
        def compute_logits(self, data, on_progress=None):
            return np.array([[len(ending) for ending in row] for row in data.inputs.endings], dtype=float)

    with server_in_thread(Student(FirstTwo(), ("a", "b"), "vectors")) as url:
        page.open(f"{url}/")
        classify(page, "1.5, -2")
        assert page.evaluate(BARS)[0][0] == "a"
    with server_in_thread(Student(EndingLengths(), ("0", "1"), "choices")) as url:
        page.open(f"{url}/")
        page.wait_for("document.getElementById('second-field').open")
        page.type("The cat")
        page.evaluate("document.getElementById('second').focus()")
        classify(page, "is\nsleeping")
        assert page.evaluate(BARS)[0][0] == "1"


def test_an_image_is_chosen(page, tmp_path):
    class Brightness:
        def compute_logits(self, data, on_progress=None):
            mean = data.inputs.pixels.mean(axis=(1, 2, 3)) / 255
            return np.stack([0.5 - mean, mean - 0.5], axis=1)

    Image.new("RGB", (8, 8), (250, 250, 250)).save(tmp_path / "light.png")
    with server_in_thread(Student(Brightness(), ("dark", "light"), "images")) as url:
        page.open(f"{url}/")
        page.wait_for("!document.getElementById('file').hidden")
        field = page.call("Runtime.evaluate", expression="document.getElementById('file')")["result"]["objectId"]
        page.call("DOM.setFileInputFiles", files=[str(tmp_path / "light.png")], objectId=field)
        page.evaluate("document.querySelector('button').click()")
        page.wait_for("!document.getElementById('result').hidden")
        assert page.evaluate(BARS)[0][0] == "light"


def test_the_description_fits_narrow_screens(page, url):
    page.show_as(width=340)
    page.open(f"{url}/docs")
    size = page.evaluate("[document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]")
    assert size[0] <= size[1]
    assert page.problems == []


def test_the_page_tells_who_answered(page):
    with server_in_thread(promising_student(), confidence=0.9, defer_to=lambda texts: ["short"] * len(texts)) as url:
        page.open(f"{url}/")
        classify(page, "abcdefg")
        assert text_of(page, "about").endswith("<lambda>.")
        assert text_of(page, "verdict") == "Answered by the teacher: short."
        assert page.evaluate(BARS) == []  # the teacher gave a label only
        assert text_of(page, "promise") == "The model's own answers from 90.0% on are kept."
        page.open(f"{url}/")
        classify(page, "abcdefghijklmno")
        assert text_of(page, "verdict") == "Accept: long, 100.0% sure."
    with server_in_thread(promising_student(), confidence=0.9, defer_to=lambda texts: [None] * len(texts)) as url:
        page.open(f"{url}/")
        classify(page, "abcdefg")
        assert text_of(page, "verdict") == "Hand over to a human: the teacher has no answer."
    assert page.problems == []
