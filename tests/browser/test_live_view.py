"""The widget of a notebook in chromium: areas of its columns, and words in the notebook's color."""

import pytest

pytest.importorskip("anywidget", reason="needs anywidget")

from vramscope.integrations._live_view import SCRIPT, STYLE

pytestmark = pytest.mark.browser
# A model as anywidget passes it to a script: get, on, off.
DRAW = """async ([script, shown]) => {
  const file = new Blob([script], { type: "text/javascript" });
  const { default: widget } = await import(URL.createObjectURL(file));
  const listeners = {};
  window.model = { shown, get: (name) => window.model[name], on: (what, call) => { listeners[what] = call; },
                   off: (what) => { delete listeners[what]; } };
  window.change = (next) => { window.model.shown = next; listeners["change:shown"]?.(); };
  window.leave = widget.render({ model: window.model, el: document.getElementById("cell") });
}"""
POINTS = "() => [...document.querySelectorAll('polygon')].map(each => each.getAttribute('points'))"
FIRST = {"text": "<b>3 B</b> allocated", "columns": [[1.0, 3, 6]]}
SECOND = {"text": "6 B allocated", "columns": [[1.0, 3, 6], [2.0, 6, 6]]}


@pytest.mark.parametrize(("theme", "ink", "paper"), [("light", "#212121", "#fff"), ("dark", "#fff", "#111")])
def test_it_draws_what_it_is_given_in_the_colors_of_the_notebook(chromium, theme, ink, paper):
    page = chromium.new_page(color_scheme=theme)
    page.set_content(
        f"<style>:root {{ --jp-ui-font-color1: {ink}; background: {paper} }} {STYLE}</style><div id=cell>"
    )
    page.evaluate(DRAW, [SCRIPT, FIRST])
    first = page.evaluate(POINTS)
    page.evaluate("change", SECOND)
    second = page.evaluate(POINTS)
    color = page.evaluate("getComputedStyle(document.querySelector('#cell div')).color")
    page.evaluate("leave()")
    page.evaluate("change", FIRST)

    # 240 wide and 60 high, the largest value 58: reserved is drawn first, below allocated.
    assert first == ["0,60 0.0,2.0 240.0,2.0 240.0,60", "0,60 0.0,31.0 240.0,31.0 240.0,60"]
    assert second[1] == "0,60 0.0,31.0 120.0,31.0 120.0,2.0 240.0,2.0 240.0,60"
    assert color == {"light": "rgb(33, 33, 33)", "dark": "rgb(255, 255, 255)"}[theme]
    assert page.inner_text("#cell") == SECOND["text"]
    assert page.locator("#cell b").count() == 0
    page.close()
