"""What ipywidgets leaves out for a screen reader, put to the controls of our figures in the page.

A slider of ipywidgets 8 has a label beside it and no name of its own, the number beside it can be typed into and says
so to nobody, and of a row of buttons the pressed one is told by its colour. ipywidgets offers no way to set such
attributes from Python (`description` and `tooltip` reach the label alone), so a few lines of JavaScript set them:
`aria-label`, `aria-pressed` and `aria-valuetext`, of WAI-ARIA 1.2. Where a front-end runs no JavaScript, nothing
changes.
"""

from typing import Any

from IPython.display import Javascript

CLASS = "tapelab-figure"  # of the box around the controls

# Widgets are drawn when they are ready, and drawn anew when a notebook is opened again: so the page is watched, once
# for all of our figures. Each attribute is written only where it changes, for writing it is seen by the watch, too.
_SCRIPT = """
window.tapelabNames ??= (() => {
  const put = (element, name, value) => {
    if (element && element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const name = () => document.querySelectorAll(".CLASS > *").forEach((row) => {
    const text = row.querySelector(":scope > .widget-label"), label = text?.textContent;
    if (!label) return;
    if (text.title === "null") text.removeAttribute("title");
    row.querySelectorAll("[role=slider]").forEach((handle) => {
      put(handle, "aria-label", label);
      // 0.30000000000000004 is read out digit by digit.
      put(handle, "aria-valuetext", String(Number(Number(handle.getAttribute("aria-valuetext")).toPrecision(6))));
    });
    row.querySelectorAll("[contenteditable]").forEach((number) => {
      put(number, "role", "textbox");
      put(number, "aria-label", label);
    });
    const buttons = row.querySelectorAll(":scope > div > button");
    if (buttons.length) {
      put(row, "role", "group");
      put(row, "aria-label", label);
    }
    buttons.forEach((one) => put(one, "aria-pressed", String(one.classList.contains("mod-active"))));
  });
  const watch = new MutationObserver(name);
  watch.observe(document.body, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["aria-valuetext", "class"],
  });
  name();
  return watch;
})();
""".replace("CLASS", CLASS)


def script(widgets: Any) -> Any:
    """Return an ipywidgets output, not seen, that names the controls in every box of the class `CLASS` in its page."""
    hidden = widgets.Output(layout={"display": "none"})
    hidden.append_display_data(Javascript(_SCRIPT))
    return hidden
