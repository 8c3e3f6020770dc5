// Above a list of claims, or of bugs: choose which to see. Each data attribute is a choice, data-caught-by that of
// "caught by". Without a script all are shown.
document.addEventListener("DOMContentLoaded", () => {
  const claims = [...document.querySelectorAll(".claim")];
  if (claims.length < 2) return;

  const form = document.createElement("form");
  form.className = "claims-filter";
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
  const texts = claims.map((claim) => claim.textContent.toLowerCase());
  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/);
    let seen = 0;
    claims.forEach((claim, i) => {
      const fits =
        Object.entries(chosen).every(([key, { value }]) => !value || claim.dataset[key] === value) &&
        wanted.every((word) => texts[i].includes(word));
      claim.hidden = !fits;
      seen += fits;
    });
    for (const group of groups) group.hidden = !group.querySelector(".claim:not([hidden])");
    says.textContent = `${seen} of ${claims.length} shown`;
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  const first = sections.length > 1 ? sections[0] : claims[0].closest(".cell");
  first.before(form);
  filter();
});
