// The line of a derivation that the reader points at or moves to, the line that it follows from, and what changed
// between the two. Up and down go from line to line.
(function () {
  let shown = [];

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

  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const line = lineAt(event.target);
      const pointed = lineAt(document.activeElement || document.body);
      show(line || pointed);
    });
  }
  document.addEventListener("focusout", (event) => show(lineAt(event.relatedTarget || document.body)));

  document.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const line = lineAt(event.target);
    if (!step || !line || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const lines = [...document.querySelectorAll(".derivation-line")];
    const next = lines[lines.indexOf(line) + step];
    if (!next || !next.checkVisibility()) return;
    event.preventDefault();
    next.querySelector(".derivation-right").focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  });
})();
