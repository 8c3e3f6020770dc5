// What is wider than the page scrolls in a box of its own, and what scrolls can be reached from the keyboard.
(function () {
  const boxes =
    ".bd-article div.math, .bd-article .formula, .bd-article span.math.wide, .bd-article pre, .bd-article .figure, " +
    ".bd-article .cell_output .output, .bd-article .pst-scrollable-table-container, .bd-article .scroll";

  // Measure every element before changing any: a change makes the next measurement recompute the layout. What is in a
  // closed fold is measured when it opens, since then the article grows.
  function each(...tasks) {
    const measured = tasks.map(([selector, measure, change]) =>
      [...document.querySelectorAll(selector)]
        .filter((element) => element.checkVisibility())
        .map((element) => [element, measure(element), change]),
    );
    for (const [element, value, change] of measured.flat()) change(element, value);
  }

  const overflows = (box) => box.scrollWidth > box.clientWidth + 1;

  function update() {
    each([
      ".bd-article span.math math",
      function (formula) {
        const line = formula.closest("p, li, td, th, dd, dt, figcaption, h1, h2, h3");
        return Boolean(line) && formula.getBoundingClientRect().width > line.clientWidth;
      },
      (formula, wide) => formula.closest("span.math").classList.toggle("wide", wide),
    ]);
    each(
      [
        ".derivation-right, div.math, .formula, pre",
        overflows,
        (box, scrolls) => box.classList.toggle("scrolls", scrolls),
      ],
      [
        boxes,
        (box) => overflows(box) && getComputedStyle(box).overflowX !== "visible",
        (box, scrolls) => (scrolls ? (box.tabIndex = 0) : box.removeAttribute("tabindex")),
      ],
    );
    document.dispatchEvent(new Event("backpass:measured"));
  }

  window.addEventListener("load", function () {
    const article = document.querySelector(".bd-article");
    if (article) new ResizeObserver(update).observe(article); // at once, and when its size changes
  });

  // A link into a fold opens it; not every browser does this by itself.
  function open() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const closed = () => target && target.closest("details:not([open])");
    if (!closed()) return;
    while (closed()) closed().open = true;
    target.scrollIntoView();
  }

  window.addEventListener("load", open);
  window.addEventListener("hashchange", open);
})();
