// Ranks the pages for Sphinx's search: by their titles, their own words, their headings and their text, so that a page may
// lack some of the words of a query. Chapters come first. Beside each result stands a line of its text.
(function () {
  const PART = [
    [/^chapters\/(foundations|operations|attention|networks|cost|numerics|parallel)\//, 30],
    [/^chapters\/reference\//, 15],
    [/^chapters\/claims\//, 5],
  ];
  const OBJECT = -20; // a function of the package
  const WHOLE_PAGE = 4; // rather than one of its sections
  const OF_PHRASE = 100, OF_WORDS = 60, OF_TITLE = 40, OF_HEADING = 12;
  // The share of a word's weight that a page has if the word is in its title, else in its own words, and so on.
  const IN_TITLE = 1, IN_OWN = 0.85, IN_HEADING = 0.6, IN_TEXT = 0.25, IN_PART = 0.15;
  const OF_COVER = 100, OF_INNER = 30;
  const RARE = 4; // a word that fewer pages have weighs no more
  const NO_SUBJECT = 0.4; // the share of its weight that a word has if no page has it in its title, own words or headings
  const OF_BEST = 0.5; // a page is listed if it covers this much of what the best page covers
  const AT_MOST = 30; // pages
  const QUESTION = new Set("how why what when which where who do does did can could should would i me my you your we us our need want get much many".split(" "));
  const SAME = { derivative: "gradient", derivatives: "gradient", grad: "gradient", backprop: "backward", backpropagation: "backward" };

  const plain = (text) => text.toLowerCase().replace(/[^\p{Letter}\p{Number}]+/gu, " ").trim();

  // What is spelt together or apart, in the singular or the plural, is the same here.
  const joined = (text) => plain(text).replaceAll(" ", "");
  // The title of a chapter without its number, which the index has in a tag of its own.
  const unnumbered = (title) => title.replace(/<[^>]*>/g, "").replace(/^[\d.]+ /, "");
  const readable = (heading) => heading.replace(/\\sqrt\{(\w+)\}/g, "√$1");
  const stemmer = new Stemmer();
  const stems = (text) =>
    plain(text).split(" ").filter((word) => word && !stopwords.includes(word)).map((word) => stemmer.stemWord(SAME[word] || word));
  const has = (there, wanted) => wanted.length > 0 && wanted.every((word) => there.has(word));

  // The words of a query that say what it is about: without those of any question, and single letters beside longer words.
  function subject(query) {
    const all = [...new Set(stems(query))];
    for (const keep of [(word) => (word.length > 1 || /\d/.test(word)) && !QUESTION.has(word), (word) => !QUESTION.has(word)]) {
      if (all.some(keep)) return all.filter(keep);
    }
    return all;
  }

  // What the index says of each page, in the order of its numbers.
  let pages = null;
  function read(index) {
    const found = index.docnames.map((doc, at) => {
      const title = unnumbered(index.titles[at]);
      const own = [title, ...(PAGE_WORDS[doc] || [])];
      return {
        title: new Set(stems(title)),
        exact: new Set(own.map(joined)),
        own: new Set([...stems(own.join(" ")), ...own.map((each) => stemmer.stemWord(joined(each)))]),
        sets: own.map((each) => new Set(stems(each))), // the title's first
        headings: [],
        part: (PART.find(([part]) => part.test(doc)) || [null, 0])[1],
      };
    });
    for (const [text, places] of Object.entries(index.alltitles)) {
      const words = new Set(subject(text));
      for (const [at, anchor] of places) found[at].headings.push({ text, anchor, words });
    }
    return found;
  }

  // The pages with a word in their text, and those where it is part of a longer one.
  function places(word) {
    const index = Search._index;
    const numbers = (found) => (found === undefined ? [] : [].concat(found));
    const exact = new Set([index.terms, index.titleterms].flatMap((terms) => (Object.hasOwn(terms, word) ? numbers(terms[word]) : [])));
    const partial = new Set();
    if (word.length > 3 && !exact.size) {
      for (const [term, found] of Object.entries(index.terms)) if (term.includes(word)) numbers(found).forEach((at) => partial.add(at));
    }
    return { exact, partial };
  }

  // How well each page answers the query; null where it has too little of it.
  function relevance(query) {
    const wanted = subject(query);
    const words = wanted.map((word) => {
      const { exact, partial } = places(word);
      const strength = pages.map((page, at) =>
        page.title.has(word) ? IN_TITLE
        : page.own.has(word) ? IN_OWN
        : word.length > 3 && [...page.own].some((each) => each.startsWith(word)) ? IN_HEADING
        : page.headings.some(({ words }) => words.has(word)) ? IN_HEADING
        : exact.has(at) ? IN_TEXT
        : partial.has(at) ? IN_PART : 0,
      );
      const known = strength.filter((each) => each > 0).length;
      const rarity = known ? Math.log(1 + pages.length / Math.max(known, RARE)) : 0;
      return { word, strength, weight: rarity * (Math.max(...strength) < IN_HEADING ? NO_SUBJECT : 1) };
    });
    const total = words.reduce((sum, { weight }) => sum + weight, 0) || 1;
    const share = (measure) => words.reduce((sum, each) => sum + each.weight * measure(each), 0) / total;
    const covered = pages.map((page, at) => share(({ strength }) => Math.ceil(strength[at])));
    const least = OF_BEST * Math.max(...covered);
    // A heading that says at least half of the query, and little else.
    const sections = pages.map(({ headings }) =>
      headings.filter(({ anchor, words: own }) => {
        const common = wanted.filter((word) => own.has(word));
        return anchor && common.length * 2 >= own.size && share(({ word }) => Number(own.has(word))) >= OF_BEST;
      }),
    );
    const scores = pages.map((page, at) => {
      if (!covered[at] || covered[at] < least) return null;
      let score = page.part + OF_COVER * share(({ strength }) => strength[at]);
      if (page.exact.has(joined(query))) score += OF_PHRASE;
      else if (page.sets.slice(1).some((set) => has(set, wanted))) score += OF_WORDS;
      if (has(page.title, wanted)) score += OF_TITLE;
      else if (page.headings.some(({ words }) => has(words, wanted))) score += OF_HEADING;
      // A phrase of the page's own that the query has whole.
      const inner = page.sets.filter((set) => set.size && [...set].every((word) => wanted.includes(word)));
      score += OF_INNER * Math.max(0, ...inner.map((set) => share(({ word }) => Number(set.has(word)))));
      return score;
    });
    return { scores, sections };
  }

  const found = Search._performSearch;
  Search._performSearch = function (query, ...rest) {
    const index = Search._index;
    pages ||= read(index);
    const { scores, sections } = relevance(query);
    const order = Object.keys(PAGE_WORDS);
    const place = (at) => order.indexOf(index.docnames[at]);

    // Each page once, with its sections, then the package's functions and the entries of the index that Sphinx found.
    const ranked = scores.flatMap((score, at) => (score === null ? [] : [{ at, score: score + WHOLE_PAGE }]));
    ranked.sort((a, b) => b.score - a.score || place(a.at) - place(b.at));
    const listed = ranked.slice(0, AT_MOST).flatMap(({ at, score }) => {
      const item = (title, anchor) => [index.docnames[at], title, anchor, null, 0, index.filenames[at]];
      return [
        { at, score, item: item(index.titles[at], "") },
        ...sections[at].map(({ text, anchor }) => ({
          at, score: score - WHOLE_PAGE - OF_HEADING, item: item(`${index.titles[at]} > ${readable(text)}`, `#${anchor}`),
        })),
      ];
    });
    for (const item of found.call(Search, query, ...rest)) {
      const [doc, , anchor, description, score] = item, at = index.docnames.indexOf(doc);
      if (!anchor || listed.some(({ item }) => item[0] === doc && item[2] === anchor)) continue;
      const base = description ? OBJECT + (query.includes(".") ? 300 : 0) : (scores[at] ?? 0) - OF_HEADING;
      listed.push({ at, score: base + Math.min(score, 15) / 5, item });
    }
    // The last is shown first; of equals, the one that the book has first.
    listed.sort((a, b) => a.score - b.score || place(b.at) - place(a.at));
    return listed.map(({ item }) => item);
  };

  // A page that was opened from disk may not read others for it.
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

  // The line of text beside a result is of the article, without formulas, code, and what can be folded.
  const NO_TEXT =
    "h1, .derivation, .derivation-line, pre, details, table, svg, .bp-strip, .bp-where, .headerlink, .section-number, script, style";
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
