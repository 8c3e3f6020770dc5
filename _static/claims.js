// Above a list of claims: choose which to see. Without a script all are shown.
document.addEventListener("DOMContentLoaded", () => {
  const claims = [...document.querySelectorAll(".claim")];
  if (claims.length < 2) return;

  const form = document.createElement("form");
  form.className = "claims-filter";
  const chosen = {};
  for (const key of ["text", "verdict", "topic"]) {
    const values = [...new Set(claims.map((claim) => claim.dataset[key]))];
    if (values.length < 2) continue;
    if (key === "topic") values.sort();
    const label = form.appendChild(document.createElement("label"));
    label.append(`${key} `);
    chosen[key] = label.appendChild(document.createElement("select"));
    chosen[key].append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
  }
  const label = form.appendChild(document.createElement("label"));
  label.append("words ");
  const words = label.appendChild(document.createElement("input"));
  words.type = "search";
  const says = form.appendChild(document.createElement("output"));

  const sections = [...document.querySelectorAll("section section")].filter((each) => each.querySelector(".claim"));
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
    for (const section of sections) section.hidden = !section.querySelector(".claim:not([hidden])");
    says.textContent = `${seen} of ${claims.length} claims`;
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  const first = sections.length > 1 ? sections[0] : claims[0].closest(".cell");
  first.before(form);
  filter();
});
