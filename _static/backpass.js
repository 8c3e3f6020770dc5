// What is wider than the page scrolls in a box of its own, and what scrolls can be reached from the keyboard.
(function () {
  const boxes =
    ".bd-article div.math, .bd-article span.math.wide, .bd-article pre, .bd-article .figure, " +
    ".bd-article .cell_output .output, .bd-article .pst-scrollable-table-container, .bd-article .scroll";

  function update() {
    for (const formula of document.querySelectorAll(".bd-article span.math")) {
      formula.classList.remove("wide");
      const line = formula.closest("p, li, td, th, dd, dt, figcaption, h1, h2, h3") || formula.parentElement;
      formula.classList.toggle("wide", formula.getBoundingClientRect().width > line.clientWidth);
    }
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible";
      if (scrolls) {
        box.tabIndex = 0;
      } else {
        box.removeAttribute("tabindex");
      }
    }
  }

  window.addEventListener("load", function () {
    const typeset = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
    Promise.resolve(typeset).then(update);
  });
  window.addEventListener("resize", update);
})();
