// What is wider than the page scrolls in a box of its own, and what scrolls can be reached from the keyboard.
(function () {
  const boxes =
    ".bd-article div.math, .bd-article .formula, .bd-article span.math.wide, .bd-article pre, .bd-article .figure, " +
    ".bd-article .cell_output .output, .bd-article .pst-scrollable-table-container, .bd-article .scroll";

  function update() {
    for (const formula of document.querySelectorAll(".bd-article span.math mjx-math")) {
      const line = formula.closest("p, li, td, th, dd, dt, figcaption, h1, h2, h3");
      const wide = line && formula.getBoundingClientRect().width > line.clientWidth;
      formula.closest("span.math").classList.toggle("wide", Boolean(wide));
    }
    // A formula has a copy for screen readers, which is out of sight and may be wider.
    for (const box of document.querySelectorAll(".derivation-right, div.math, .formula, pre")) {
      const formula = box.querySelector("mjx-math");
      const width = formula ? formula.getBoundingClientRect().width : box.scrollWidth;
      box.classList.toggle("scrolls", width > box.clientWidth + 1);
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
    Promise.resolve(typeset)
      .then(() => document.fonts.ready)
      .then(function () {
        update();
        const article = document.querySelector(".bd-article");
        if (article) new ResizeObserver(update).observe(article);
      });
  });
})();
