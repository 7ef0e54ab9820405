// Widgets are drawn when they are ready, and drawn anew when a notebook is opened again: so the page is watched, once
// for all of our figures. Each attribute is written only where it changes, for writing it is seen by the watch, too.
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
