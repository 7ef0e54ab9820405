/* What the theme leaves out for readers by keyboard and by ear. */
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
  /* What is wider than its column says that it scrolls, and can be scrolled by keyboard. */
  const tellWhatScrolls = () => document.querySelectorAll("pre, .table-wrapper, .output").forEach((box) => {
    const wide = box.scrollWidth > box.clientWidth;
    box.classList.toggle("scrolls", wide);
    if (wide && !box.querySelector("a, button")) box.tabIndex = 0;
  });
  tellWhatScrolls();
  addEventListener("resize", tellWhatScrolls);
  addEventListener("toggle", tellWhatScrolls, true); // what was folded has no width
  const play = document.querySelector("figure.tape button");
  if (play) {
    const moves = play.parentElement.querySelector("svg").getAnimations({ subtree: true });
    play.hidden = moves.length === 0; // whoever asked for less motion sees the picture still
    play.addEventListener("click", () => moves.forEach((move) => { move.cancel(); move.play(); }));
  }
  /* The sidebar alone is moved to the present page: scrollIntoView would move the text, too. */
  const present = document.querySelector(".sidebar-tree .current-page");
  const sidebar = present?.closest(".sidebar-scroll");
  if (sidebar) {
    const below = present.getBoundingClientRect().bottom - sidebar.getBoundingClientRect().bottom;
    if (below > 0) sidebar.scrollTop += below + sidebar.clientHeight / 3;
  }
});
