/* The order of what a search finds: pages that answer a question, then names, then notebooks. */
const ANSWERS = [
  "how_it_compares", "working", "traps", "cheat_sheet", "phrasebook", "derivatives_by_task", "retracing", "gradient_is_nan_or_zero", "which_derivative",
  "gradient_is_none",
]; // where two are as good, the later one comes first
const BACKGROUND = /^(audit\/|for_teachers\/|how_it_is_built$)/;

const query = (new URLSearchParams(location.search).get("q") ?? "").trim().toLowerCase();

/* How many of the words that are searched for stand in a title. */
const wordsIn = (title) => {
  const words = query.match(/\w{3,}/g) ?? [];
  return words.filter((word) => title.toLowerCase().includes(word)).length;
};

/* The same of the heading of a page that has most of them. */
const wordsBelow = (page) => {
  const number = Search._index.docnames.indexOf(page);
  const headings = Object.entries(Search._index.alltitles).filter(([, places]) => places.some(([n]) => n === number));
  return Math.max(0, ...headings.map(([heading]) => wordsIn(heading)));
};

var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    if (kind === "index") return Math.min(score, 24); // the glossary
    if (BACKGROUND.test(page)) return score - 20;
    if (title.toLowerCase() === query) return score + 40; // whoever types a title wants that page
    const named = title.match(/\w{3,}/g) ?? [];
    if (named.length > 1 && named.every((word) => query.includes(word.toLowerCase()))) score += 30; // a title within what is asked for
    if (!ANSWERS.includes(page)) return score;
    const inHeading = score >= Scorer.partialTitle;
    return score + (inHeading ? 20 : 4) + wordsIn(title) + wordsBelow(page) + ANSWERS.indexOf(page) / 10;
  },

  // What follows are Sphinx's own weights, but for objPrio: a function's name is no better than a heading.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
