// The index of all claims: choose by text, place, verdict, topic, harm and words, or find what is nearest to a sentence.
// It ranks as `backpass claims` does (backpass_ledger/claims/search.py). What it shows is in claims/index.js.
(function () {
  const place = document.getElementById("ledger-index");
  if (!place) return;
  const { rank, texts, parts, verdicts, topics, chapters, cited, costly, formulas } = LEDGER;
  const claims = LEDGER.claims.map(([name, part, verdict, topic, chapter, harm, where, says, truth]) => ({
    name, part, verdict, topic, chapter, harm, where, says, truth, text: parts[part][0],
    words: `${name} ${where} ${says} ${truth}`.toLowerCase(),
  }));
  const STEP = 20; // claims at a time

  // Ranking

  const common = new Set(rank.common);
  // The words of a text, each with its stem.
  function stemmed(text) {
    const plain = text.toLowerCase().replace(/\\(?:[a-zA-Z]+|.)/g, " ");
    const found = plain.match(/[a-zα-ω]+\d*|\d+x\b|\d+(?:[.,]\d+)*/g) || [];
    const words = found.flatMap((word) => (Object.hasOwn(rank.same, word) ? rank.same[word].split(" ") : [word]));
    const kept = words.filter((word) => !common.has(word));
    return kept.map((word) => [word, /^[a-zα-ω]+$/.test(word) ? `${word.slice(0, rank.stem)}*` : word]);
  }
  function terms(text) {
    const words = stemmed(text);
    return [...words.map(([word]) => word), ...words.filter(([word, stem]) => stem !== word).map(([, stem]) => stem)];
  }

  let indexed; // how rare each term is, and each claim with the saturated counts of its terms
  function index() {
    if (indexed) return indexed;
    const counted = claims.map((claim) => {
      const counts = new Map();
      const count = (text, weight) => terms(text).forEach((term) => counts.set(term, (counts.get(term) || 0) + weight));
      count(claim.says, 1);
      count(claim.truth, rank.truthWeight);
      count(`${parts[claim.part][1]} ${claim.where} ${topics[claim.topic]}`, rank.placeWeight);
      return { claim, counts, length: [...counts.values()].reduce((a, b) => a + b, 0) };
    });
    const mean = counted.reduce((sum, { length }) => sum + length, 0) / counted.length;
    const rarity = new Map();
    for (const { counts } of counted) for (const term of counts.keys()) rarity.set(term, (rarity.get(term) || 0) + 1);
    for (const [term, n] of rarity) rarity.set(term, rare(n));
    for (const { counts, length } of counted) {
      const share = rank.k * (1 - rank.b + (rank.b * length) / mean);
      for (const [term, n] of counts) counts.set(term, (n * (rank.k + 1)) / (n + share));
    }
    return (indexed = { rarity, counted });
  }
  const rare = (found) => Math.log(1 + (claims.length - found + 0.5) / (found + 0.5));

  // The text and the name of the claim whose number the sentence is, whether or not there is such a claim.
  function numbered(sentence) {
    const match = sentence.match(/^\s*#?([A-Z])0*(\d+)\s*$/i);
    const text = match ? texts.findIndex(([, , letter]) => letter === match[1].toUpperCase()) : -1;
    return text < 0 ? null : { text, name: `${texts[text][2]}${match[2]}` };
  }

  // The claims that share a word with the sentence, the nearest first; none if no claim is close to it.
  function nearest(sentence) {
    const asked = numbered(sentence);
    if (asked) return claims.filter(({ name }) => name === asked.name);
    const { rarity, counted } = index();
    const wanted = [...new Set(terms(sentence))].filter((term) => rarity.has(term));
    const weights = new Map(wanted.map((term) => [term, rarity.get(term) * (term.endsWith("*") ? rank.stemWeight : 1)]));
    const whole = wanted.reduce((sum, term) => sum + weights.get(term), 0);
    const words = new Map(stemmed(sentence).map(([word, stem]) => [word, { stem, weight: rarity.get(stem) ?? rare(0) }]));
    const length = Math.min([...words.values()].reduce((sum, { weight }) => sum + weight, 0), rank.long);
    const scored = [];
    let closest = 0;
    for (const { claim, counts } of counted) {
      const shared = wanted.filter((term) => counts.has(term));
      if (!shared.length) continue;
      const part = shared.reduce((sum, term) => sum + weights.get(term), 0) / whole;
      const score = shared.reduce((sum, term) => sum + weights.get(term) * counts.get(term), 0);
      scored.push([Number((part * score).toFixed(rank.digits)), claim]);
      const has = (term) => Math.min(1, counts.get(term) || 0);
      let held = 0;
      for (const [word, { stem, weight }] of words) held += weight * Math.max(has(word), rank.stemShare * has(stem));
      closest = Math.max(closest, held / length);
    }
    if (closest < rank.close) return [];
    scored.sort(([a, one], [b, other]) => b - a || (one.name < other.name ? -1 : 1));
    return scored.map(([, claim]) => claim);
  }

  function whyNone(sentence) {
    const asked = numbered(sentence);
    if (!asked) return "No close record: no claim shares enough words with this sentence.";
    const [name, , letter] = texts[asked.text];
    const last = claims.filter(({ text }) => text === asked.text).length;
    return `No claim ${asked.name}: ${name} has ${letter}1 to ${letter}${last}.`;
  }

  // The form

  function element(name, attributes = {}, ...inside) {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    made.append(...inside);
    return made;
  }

  const sentence = element("textarea", { rows: 2, id: "ledger-sentence" });
  const form = element("form", { className: "claims-filter ledger-form" });
  form.append(
    element("label", { htmlFor: "ledger-sentence", className: "ledger-sentence" }, "A sentence that you have read"), sentence,
  );
  const chosen = {};
  function choice(key, name, values) {
    const options = values.map(([value, words]) => new Option(words, value));
    chosen[key] = element("select", { id: `ledger-${key}` }, new Option("all", ""), ...options);
    form.append(element("span", {}, element("label", { htmlFor: `ledger-${key}` }, name), " ", chosen[key]));
  }
  choice("text", "text", texts.map(([name], at) => [at, name]));
  choice("part", "section", []);
  choice("verdict", "verdict", verdicts.map(([sign, words], at) => [at, `${sign} ${words}`]));
  choice("topic", "topic", topics.map((name, at) => [at, name]));
  choice("harm", "harm", [
    [costly, "what I must change"],
    [2 * costly, "what costs most"],
  ]);
  const words = element("input", { type: "search", id: "ledger-words" });
  form.append(element("span", {}, element("label", { htmlFor: "ledger-words" }, "words"), " ", words));
  const says = element("output");
  form.append(says);

  // The sections of the chosen text alone.
  function offerParts() {
    const { text, part } = chosen;
    const found = parts.map(([of, title], at) => [of, title, at]).filter(([of]) => String(of) === text.value);
    part.replaceChildren(new Option("all", ""), ...found.map(([, title, at]) => new Option(title, at)));
    part.parentElement.hidden = !found.length;
  }

  // The address holds what was asked, in words, so that a way back or a link finds it again. In its fragment, because a
  // page that is opened from disk has no other part that a script may change.
  const fields = { sentence, ...chosen, words };
  const inWords = (field) => (field.options ? field.value && field.selectedOptions[0].text : field.value.trim());
  const isState = () => location.hash.includes("="); // rather than a heading's
  function toAddress() {
    const asked = Object.entries(fields).map(([key, field]) => [key, inWords(field)]);
    const state = String(new URLSearchParams(asked.filter(([, value]) => value)));
    const hash = state ? `#${state}` : isState() ? "" : location.hash;
    if (hash !== location.hash) history.replaceState(null, "", `${location.pathname}${location.search}${hash}`);
  }
  function fromAddress() {
    const state = new URLSearchParams(isState() ? location.hash.slice(1) : "");
    for (const [key, field] of Object.entries(fields)) {
      const wanted = state.get(key) || "";
      const option = [...(field.options || [])].find(({ text, value }) => value && text === wanted);
      field.value = field.options ? option?.value || "" : wanted;
      if (key === "text") offerParts();
    }
  }

  // The results

  const escaped = (text) => text.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
  // Code, mathematics and citations of Markdown; the claims have no other markup.
  function html(text) {
    return text
      .split(/(\{cite:\w\}`\w+`|`[^`]+`|\$[^$]+\$)/)
      .map((piece) => {
        const citation = piece.match(/^\{cite:\w\}`(\w+)`$/);
        if (citation) return escaped(cited[citation[1]]);
        if (/^`.+`$/s.test(piece)) return `<code class="docutils literal notranslate">${escaped(piece.slice(1, -1))}</code>`;
        if (/^\$.+\$$/s.test(piece))
          return `<span class="math notranslate nohighlight">${formulas[piece.slice(1, -1)]}</span>`;
        return escaped(piece).replaceAll("'", "’").replace(/"([^"]*)"/g, "“$1”");
      })
      .join("");
  }

  function result({ name, part, verdict, chapter, where, says, truth, text }) {
    const [sign, inWords] = verdicts[verdict], [address, title] = chapters[chapter];
    const shown = element("div", { className: "claim" });
    shown.innerHTML =
      `<p><strong><a href="${texts[text][1]}.html#${name.toLowerCase()}">${name}</a></strong> · ${escaped(texts[text][0])}, ` +
      `${html(where)} · <span class="verdict${"✗≠−".includes(sign) ? " wrong" : ""}">${sign} ${inWords}</span> · <a href="${address}">${escaped(title)}</a></p>` +
      `<p>${html(says)}</p>` + (truth ? `<p><strong>Right:</strong> ${html(truth)}</p>` : "");
    return shown;
  }

  const list = element("div", { className: "ledger-results" });
  const more = element("button", { type: "button", className: "ledger-more" });
  let found = [];

  function show(number) {
    const start = list.childElementCount;
    const added = found.slice(start, start + number).map(result);
    list.append(...added);
    more.hidden = list.childElementCount >= found.length;
    const next = Math.min(STEP, found.length - list.childElementCount);
    more.textContent = list.childElementCount ? `Show ${next} more` : `Show the first ${next}`;
  }

  function update() {
    const wanted = words.value.toLowerCase().split(/\s+/);
    const asked = sentence.value.trim();
    const fits = (claim) =>
      Object.entries(chosen).every(
        ([key, { value }]) => !value || (key === "harm" ? claim.harm >= Number(value) : claim[key] === Number(value)),
      ) && wanted.every((word) => claim.words.includes(word));
    const near = asked ? nearest(asked) : claims;
    found = near.filter(fits);
    list.replaceChildren();
    list.ariaBusy = "false";
    if (!near.length) says.textContent = whyNone(asked);
    else if (asked && !numbered(asked)) says.textContent = `${found.length} of ${claims.length} share a word with the sentence; the nearest first`;
    else says.textContent = `${found.length} of ${claims.length}`;
    toAddress();
    // All at once would say little: a reader asks first.
    show(asked || words.value.trim() || Object.values(chosen).some(({ value }) => value) ? STEP : 0);
  }

  chosen.text.addEventListener("input", offerParts);
  let waiting;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    list.ariaBusy = "true";
    waiting = setTimeout(update, 150);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => show(STEP));
  window.addEventListener("hashchange", () => {
    if (!isState()) return;
    fromAddress();
    update();
  });
  fromAddress();
  place.replaceChildren(form, list, more);
  update();
})();
