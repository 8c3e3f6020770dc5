// Above the claims of a text, or the bugs: choose which to see. Each data attribute is a choice, data-caught-by that of
// "caught by". A text's claims are folded by section; a link to one opens its section and its check, whose code is in a
// script of its own. Without a script all can be read, except the code.
(function () {
  const folder = document.currentScript.src.replace(/[^/]*$/, "claims/");
  const loads = {};

  // The code of a text's checks, once.
  function checks(stem) {
    loads[stem] ||= new Promise((loaded, failed) => {
      const script = document.createElement("script");
      script.src = `${folder}${stem}.js`;
      script.onload = () => loaded(window.CHECKS);
      script.onerror = failed;
      document.head.append(script);
    });
    return loads[stem];
  }

  async function showCheck(fold) {
    const all = await checks(fold.closest(".claims-section").dataset.checks);
    if (fold.childElementCount > 1) return;
    fold.insertAdjacentHTML("beforeend", all[fold.closest(".claim").querySelector("[id]").id.toUpperCase()]);
  }

  // Checks are offered in a section that is open.
  const prepared = new WeakSet();

  function prepare(section) {
    if (prepared.has(section)) return;
    prepared.add(section);
    for (const claim of section.querySelectorAll(".claim:not([data-verdict^='cannot'])")) {
      const fold = claim.appendChild(document.createElement("details"));
      fold.className = "claim-check";
      fold.appendChild(document.createElement("summary")).textContent = "The check";
    }
  }

  document.addEventListener(
    "toggle",
    ({ target }) => {
      if (!target.open) return;
      if (target.matches(".claims-section")) prepare(target);
      if (target.matches(".claim-check")) showCheck(target);
    },
    true,
  );

  function openLinked() {
    const linked = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const section = linked?.closest(".claims-section");
    if (!section) return;
    section.open = true;
    prepare(section);
    const check = linked.closest(".claim")?.querySelector(".claim-check");
    if (check) check.open = true;
    linked.scrollIntoView();
  }

  window.addEventListener("hashchange", openLinked);
  window.addEventListener("load", openLinked);

  function addFilter() {
    const claims = [...document.querySelectorAll(".claim")];
    if (claims.length < 2 || document.getElementById("ledger-index")) return;
    const form = document.createElement("form");
    form.className = "claims-filter";
    if (document.querySelector(".claims-section")) {
      form.appendChild(document.createElement("strong")).textContent = "All records, by section";
    }
    const chosen = {};
    for (const key of Object.keys(claims[0].dataset)) {
      const values = [...new Set(claims.map((claim) => claim.dataset[key]))];
      if (values.length < 2) continue;
      if (key === "topic" || key === "caughtBy") values.sort();
      const label = form.appendChild(document.createElement("label"));
      label.append(`${key.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)} `);
      chosen[key] = label.appendChild(document.createElement("select"));
      chosen[key].append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    }
    const label = form.appendChild(document.createElement("label"));
    label.append("words ");
    const words = label.appendChild(document.createElement("input"));
    words.type = "search";
    const says = form.appendChild(document.createElement("output"));

    const holding = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.querySelector(".claim"));
    const sections = holding("section section");
    const groups = [...sections, ...holding(".claims-group")];
    const folds = holding(".claims-section");
    const texts = claims.map((claim) => claim.textContent.toLowerCase());
    function filter() {
      const wanted = words.value.toLowerCase().split(/\s+/);
      const all = !words.value.trim() && Object.values(chosen).every(({ value }) => !value);
      let seen = 0;
      claims.forEach((claim, i) => {
        const fits =
          Object.entries(chosen).every(([key, { value }]) => !value || claim.dataset[key] === value) &&
          wanted.every((word) => texts[i].includes(word));
        claim.hidden = !fits;
        seen += fits;
      });
      for (const group of groups) group.hidden = !group.querySelector(".claim:not([hidden])");
      for (const fold of folds) fold.open = !all;
      says.textContent = `${seen} of ${claims.length} shown`;
    }
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    const first = sections.length > 1 ? sections[0] : claims[0].closest(".cell");
    first.before(form);
    says.textContent = `${claims.length} of ${claims.length} shown`;
  }
  document.addEventListener("DOMContentLoaded", addFilter);
})();
