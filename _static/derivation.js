// The line of a derivation that the reader points at or moves to, the line that it follows from, and what changed
// between the two. Up and down go from line to line, Enter goes to a line's address, and so a derivation needs one stop of
// the tab key. On a page's first derivation two buttons step through it.
(function () {
  let shown = [];
  let stepped = null; // the line to which the buttons have led
  const current = new WeakMap(); // of each derivation, the right side that the tab key reaches

  function show(line) {
    for (const [element, name] of shown) element.classList.remove(name);
    shown = [];
    if (!line) return;
    shown.push([line, "derivation-here"]);
    const above = line.dataset.above && document.getElementById(line.dataset.above);
    if (above) shown.push([above, "derivation-above"]);
    for (const [element, name] of shown) element.classList.add(name);
  }

  const lineAt = (element) => element.closest && element.closest(".derivation-line");
  const stepperAt = (element) => element.closest && element.closest(".derivation-stepper");

  // A formula that scrolls is a stop of its own, since without the arrow keys its end could not be reached.
  // All are measured before any changes, since a change makes the next measurement recompute the layout.
  function setStops(derivations) {
    const stops = [...derivations].flatMap((derivation) => {
      const rights = [...derivation.querySelectorAll(".derivation-right")];
      const chosen = current.get(derivation) || rights[0];
      const scrolls = (right) => right.checkVisibility() && right.scrollWidth > right.clientWidth;
      return rights.map((right) => [right, right === chosen || scrolls(right)]);
    });
    for (const [right, stop] of stops) right.tabIndex = stop ? 0 : -1;
  }

  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const line = lineAt(event.target);
      if (line && name === "focusin" && event.target.matches(".derivation-right")) {
        current.set(line.closest(".derivation"), event.target);
        setStops([line.closest(".derivation")]);
      }
      if (line || !stepperAt(document.activeElement || document.body)) stepped = null;
      show(line || lineAt(document.activeElement || document.body) || stepped);
    });
  }
  document.addEventListener("focusout", (event) => {
    const next = event.relatedTarget || document.body;
    if (!stepperAt(next)) stepped = null;
    show(lineAt(next) || stepped);
  });

  document.addEventListener("keydown", (event) => {
    const line = lineAt(event.target);
    if (!line || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.key === "Enter" && event.target.matches(".derivation-right")) line.querySelector(".derivation-number").click();
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    const lines = [...line.closest(".derivation").querySelectorAll(".derivation-line")];
    const next = lines[lines.indexOf(line) + step];
    if (!next || !next.checkVisibility()) return;
    event.preventDefault();
    next.querySelector(".derivation-right").focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  });

  function prepareSteps(stepper) {
    const steps = [...stepper.closest(".derivation").querySelectorAll(".derivation-line[data-above]")];
    const buttons = stepper.querySelectorAll("button");
    const number = (id) => document.getElementById(id).querySelector(".derivation-number").textContent;
    let at = -1;
    stepper.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button || button.getAttribute("aria-disabled") === "true") return;
      button.focus(); // which a click does not do in every browser
      at += Number(button.dataset.by);
      stepped = steps[at];
      show(stepped);
      stepped.scrollIntoView({ block: "nearest" });
      stepper.querySelector("output").textContent =
        `${at + 1} of ${steps.length}: ${number(stepped.id)} from ${number(stepped.dataset.above)}`;
      buttons[0].setAttribute("aria-disabled", at === 0);
      buttons[1].setAttribute("aria-disabled", at === steps.length - 1);
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".derivation-number").forEach((link) => (link.tabIndex = -1));
    document.querySelectorAll(".derivation-stepper").forEach(prepareSteps);
  });
  // Which formulas scroll is known once `backpass.js` has measured them.
  document.addEventListener("backpass:measured", () => setStops(document.querySelectorAll(".derivation")));
})();
