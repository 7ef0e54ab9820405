/* The order of what a search finds: pages that answer a question, then names, then notebooks. */
const ANSWERS = [
  "how_it_compares", "working", "derivatives_by_task", "retracing", "gradient_is_nan_or_zero", "which_derivative",
  "gradient_is_none",
]; // where two are as good, the later one comes first
const BACKGROUND = /^(audit\/|for_teachers$|how_it_is_built$)/;

/* How many of the words that are searched for stand in a title. */
const wordsIn = (title) => {
  const query = new URLSearchParams(location.search).get("q") ?? "";
  const words = query.toLowerCase().match(/\w{3,}/g) ?? [];
  return words.filter((word) => title.toLowerCase().includes(word)).length;
};

var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    if (kind === "index") return Math.min(score, 24); // the glossary
    if (BACKGROUND.test(page)) return score - 20;
    if (!ANSWERS.includes(page)) return score;
    const inHeading = score >= Scorer.partialTitle;
    return score + (inHeading ? 20 : 4) + wordsIn(title) + ANSWERS.indexOf(page) / 10;
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
