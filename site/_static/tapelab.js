/* A search that finds no page with all of its words shows those with the most; what is folded is no excerpt. */
document.addEventListener("DOMContentLoaded", () => { // on the page of the search, before it begins
  if (typeof Search === "undefined") return;
  const withAll = Search.performTermsSearch, plain = Search.htmlToText;
  Search.performTermsSearch = (words, excluded) => {
    const found = withAll(words, excluded);
    if (found.length > 0 || words.size < 2) return found;
    const pages = new Map();
    for (const word of words) {
      for (const result of withAll(new Set([word]), excluded)) {
        const before = pages.get(result[0]);
        pages.set(result[0], before ? before.with(4, before[4] + result[4]) : result);
      }
    }
    return [...pages.values()];
  };
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll("details.hide, .no-search, .about-the-page").forEach((part) => part.remove());
    return plain(page.documentElement.outerHTML, anchor);
  };
});
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
    const picture = play.parentElement.querySelector("svg");
    play.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches; // whoever asked for less motion sees it whole
    play.addEventListener("click", () => {
      picture.classList.remove("plays");
      picture.getBoundingClientRect(); // or the browser sees no change
      picture.classList.add("plays");
    });
  }
  /* A long table shows the rows that have all words. */
  const filter = document.querySelector(".filter");
  if (filter) {
    const rows = [...document.querySelectorAll("article tbody tr")], count = filter.querySelector("output");
    filter.hidden = false;
    filter.addEventListener("input", ({ target }) => {
      const words = target.value.toLowerCase().match(/\S+/g) ?? [];
      rows.forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    });
  }
  /* The sidebar alone is moved to the present page: scrollIntoView would move the text, too. */
  const present = document.querySelector(".sidebar-tree .current-page");
  const sidebar = present?.closest(".sidebar-scroll");
  if (sidebar) {
    const below = present.getBoundingClientRect().bottom - sidebar.getBoundingClientRect().bottom;
    if (below > 0) sidebar.scrollTop += below + sidebar.clientHeight / 3;
  }
});
