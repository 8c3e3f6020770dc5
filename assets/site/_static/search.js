// Puts the chapters first among the results of Sphinx's search, and a line of their text beside them.
(function () {
  const PART = [
    [/^chapters\/(foundations|operations|attention|networks|cost|numerics)\//, 30],
    [/^chapters\/reference\//, 15],
    [/^chapters\/claims\//, 5],
  ];
  const OBJECT = -20; // a function of the package
  const WHOLE_PAGE = 4; // rather than one of its sections
  const OF_PHRASE = 100, OF_WORDS = 60, OF_TITLE = 40, OF_HEADING = 12;

  const plain = (text) => text.toLowerCase().replace(/[^\p{Letter}\p{Number}]+/gu, " ").trim();

  // What is spelt together or apart, in the singular or the plural, is the same here.
  const joined = (text) => plain(text).replaceAll(" ", "");
  // The title of a chapter without its number, which the index has in a tag of its own.
  const unnumbered = (title) => title.replace(/<[^>]*>/g, "").replace(/^[\d.]+ /, "");
  const stemmer = new Stemmer();
  const stems = (text) => plain(text).split(" ").filter((word) => word && !stopwords.includes(word)).map((w) => stemmer.stemWord(w));
  const has = (text, wanted) => {
    const there = new Set(stems(text));
    return wanted.length > 0 && wanted.every((word) => there.has(word));
  };

  // How well a page answers the query, by its title, its own words, and its headings.
  function relevance(doc, query, wanted, headings) {
    const title = unnumbered(Search._index.titles[Search._index.docnames.indexOf(doc)]);
    const phrases = PAGE_WORDS[doc] || [];
    let score = (PART.find(([part]) => part.test(doc)) || [null, 0])[1];
    if ([title, ...phrases].some((phrase) => joined(phrase) === joined(query))) score += OF_PHRASE;
    else if (phrases.some((phrase) => has(phrase, wanted))) score += OF_WORDS;
    // Of several words, those of the page's own count, whatever the others are.
    const own = new Set(stems([title, ...phrases].join(" ")));
    score += (OF_TITLE * wanted.filter((word) => own.has(word)).length) / Math.max(wanted.length, 1);
    if (has(title, wanted)) score += OF_TITLE;
    else if ((headings.get(doc) || []).some((heading) => has(heading, wanted))) score += OF_HEADING;
    return score;
  }

  const found = Search._performSearch;
  Search._performSearch = function (query, ...rest) {
    const index = Search._index;
    const wanted = stems(query);
    const headings = new Map();
    for (const [heading, places] of Object.entries(index.alltitles)) {
      for (const [at] of places) {
        const doc = index.docnames[at];
        headings.set(doc, [...(headings.get(doc) || []), heading]);
      }
    }
    const scores = new Map(index.docnames.map((doc) => [doc, relevance(doc, query, wanted, headings)]));
    const titleOf = (doc) => index.titles[index.docnames.indexOf(doc)];
    const isPage = (doc, title) => unnumbered(title.split(" > ").at(-1)) === unnumbered(titleOf(doc));

    // Each page once, whatever it was found by, then its sections and the package's functions.
    const pages = new Map(), parts = [];
    for (const item of found.call(Search, query, ...rest)) {
      const [doc, title, anchor, description, score, file] = item;
      if (isPage(doc, title)) {
        const best = Math.max(score, (pages.get(doc) || item)[4]);
        pages.set(doc, [doc, titleOf(doc), "", description, best, file]);
      } else parts.push(item);
    }
    for (const doc of Object.keys(PAGE_WORDS)) {
      if (!pages.has(doc) && scores.get(doc) >= OF_WORDS) {
        pages.set(doc, [doc, titleOf(doc), "", null, 0, index.filenames[index.docnames.indexOf(doc)]]);
      }
    }
    const ranked = [...pages.values(), ...parts].map((item) => {
      const [doc, , anchor, description, score] = item;
      const base = description ? OBJECT + (query.includes(".") ? 200 : 0) : scores.get(doc) - (anchor ? OF_HEADING : 0);
      return { item, score: base + Math.min(score, 15) / 5 + (anchor || description ? 0 : WHOLE_PAGE) };
    });
    // The last is shown first; of equals, the one that the book has first.
    const place = (doc) => Object.keys(PAGE_WORDS).indexOf(doc);
    ranked.sort((a, b) => a.score - b.score || place(b.item[0]) - place(a.item[0]));
    return ranked.map(({ item }) => item);
  };

  // The line of text beside a result is of the article, without formulas, code, and what can be folded.
  const NO_TEXT =
    "h1, .derivation, .derivation-line, pre, details, table, svg, .bp-strip, .headerlink, .section-number, script, style";
  const textOf = Search.htmlToText;
  Search.htmlToText = function (page, anchor) {
    const parsed = new DOMParser().parseFromString(page, "text/html");
    const article = parsed.querySelector("article");
    if (!article) return textOf(page, anchor);
    article.querySelectorAll(".math").forEach((element) => element.replaceWith("…"));
    article.querySelectorAll(NO_TEXT).forEach((element) => element.remove());
    const text = textOf(`<div role="main">${article.innerHTML}</div>`, anchor);
    return text.replace(/\s+/g, " ").replace(/ ([.,;:])/g, "$1");
  };

  // Whole words only.
  const summary = Search.makeSearchSummary;
  Search.makeSearchSummary = function (...given) {
    const shown = summary.apply(Search, given);
    if (shown) shown.textContent = shown.textContent.replace(/^\.\.\.\S* /, "… ").replace(/ \S*\.\.\.$/, " …");
    return shown;
  };
})();
