/* What the theme leaves out for readers by keyboard and by ear. */
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
  document.querySelectorAll("pre, .table-wrapper, .output").forEach((box) => {
    if (box.scrollWidth > box.clientWidth && !box.querySelector("a, button")) box.tabIndex = 0;
  });
});
