// The figures that a reader moves; without this script they stand still. A slider below a figure shows one of its drawings
// at a time. In a movable figure a handle, an arrow key or a number in a box changes a number, and the model of the figure,
// a function in `backpassFigures`, computes what the drawing shows.
(function () {
  const models = (self.backpassFigures ??= {});

  function step(figure) {
    const steps = [...figure.querySelectorAll(".step")];
    const control = figure.querySelector(".steps-control");
    const [slider, value] = [control.querySelector("input"), control.querySelector("output")];
    control.hidden = false;
    function show() {
      steps.forEach((step, at) => (step.hidden = at !== Number(slider.value)));
      const words = steps[Number(slider.value)].dataset.value;
      slider.setAttribute("aria-valuetext", words);
      value.textContent = words;
    }
    slider.addEventListener("input", show);
    show(); // a browser may have kept the slider's place
  }

  // The value of a name such as y.0, and of a sum of products such as y.0*-60+100.
  const named = (name, values) => (isNaN(name) ? name.split(".").reduce((found, key) => found[key], values) : Number(name));
  const sum = (terms, values) =>
    terms
      .split("+")
      .map((product) => product.split("*").reduce((so, factor) => so * named(factor, values), 1))
      .reduce((one, other) => one + other);

  function filled(terms, places, values) {
    const text = /[*+]/.test(terms) ? "" : named(terms, values);
    if (typeof text === "string" && text) return text;
    const number = sum(terms, values).toFixed(places ?? 2);
    return places === undefined ? Number(number) : number.replace("-", Number(number) ? "−" : "");
  }
  const fill = (template, values) =>
    template.replace(/\[([^[\]:]+)(?::(\d))?\]/g, (_, terms, places) => filled(terms, places, values));

  // What fills the holes of a movable figure at these numbers of the reader.
  const valuesOf = (name, numbers) => ({ ...numbers, ...models[name](numbers) });

  const KEYS = {
    ArrowRight: ["across", 1],
    ArrowLeft: ["across", -1],
    ArrowUp: ["up", 1],
    ArrowDown: ["up", -1],
    Home: ["across", -Infinity],
    End: ["across", Infinity],
  };

  function move(figure) {
    const svg = figure.querySelector("svg");
    const form = figure.querySelector(".movable-numbers");
    const boxes = Object.fromEntries([...form.querySelectorAll("input")].map((box) => [box.name, box]));
    const numbers = {};
    const handles = [...svg.querySelectorAll(".handle")];
    const holes = [svg, ...svg.querySelectorAll("*")].flatMap((element) =>
      [...element.attributes]
        .filter(({ name }) => name.startsWith("data-set-"))
        .map(({ name, value }) => [element, name.slice(9), value]),
    );

    function show() {
      const values = valuesOf(figure.dataset.figure, numbers);
      for (const [element, name, template] of holes) {
        const to = fill(template, values);
        if (name === "text") element.textContent = to;
        else element.setAttribute(name, to);
      }
      for (const handle of handles) handle.setAttribute("aria-valuenow", numbers[handle.axis.name]);
      for (const [name, box] of Object.entries(boxes)) {
        if (box !== document.activeElement) box.value = numbers[name];
      }
    }

    function set(name, number) {
      const { min, max, step } = boxes[name];
      if (!Number.isFinite(number)) number = number < 0 ? min : max;
      const near = Number((Math.round(number / step) * step).toFixed(9));
      numbers[name] = Math.min(Math.max(near, min), max);
    }

    function reset() {
      for (const [name, box] of Object.entries(boxes)) set(name, Number(box.defaultValue));
    }

    function arm(handle) {
      const axes = {};
      for (const way of ["up", "across"]) {
        const [name, pixels] = (handle.dataset[way] || "").split(" ");
        if (name) handle.axis = axes[way] = { name, per: (way === "up" ? -1 : 1) / pixels };
      }
      const place = (event) =>
        new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let from;
      handle.addEventListener("pointerdown", (event) => {
        event.preventDefault(); // selects no text
        handle.focus({ preventScroll: true });
        handle.setPointerCapture(event.pointerId);
        from = { place: place(event), numbers: { ...numbers } };
      });
      handle.addEventListener("pointermove", (event) => {
        if (!from) return;
        const { x, y } = place(event);
        const moved = { across: x - from.place.x, up: y - from.place.y };
        for (const [way, { name, per }] of Object.entries(axes)) set(name, from.numbers[name] + moved[way] * per);
        show();
      });
      handle.addEventListener("lostpointercapture", () => (from = undefined));
      handle.addEventListener("keydown", (event) => {
        const [way, sign] = KEYS[event.key] || [];
        if (!way || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        const { name } = axes[way] || handle.axis;
        set(name, numbers[name] + sign * (event.shiftKey ? 10 : 1) * boxes[name].step);
        show();
      });
      const { min, max } = boxes[handle.axis.name];
      const attributes = { role: "slider", tabindex: 0, "aria-label": handle.dataset.label };
      Object.assign(attributes, { "aria-valuemin": min, "aria-valuemax": max });
      for (const [name, value] of Object.entries(attributes)) handle.setAttribute(name, value);
    }

    handles.forEach(arm);
    form.addEventListener("input", ({ target }) => {
      if (target.value === "") return;
      set(target.name, Number(target.value));
      show();
    });
    form.addEventListener("focusout", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", (event) => {
      event.preventDefault();
      reset();
      show();
    });
    svg.setAttribute("role", "group");
    form.hidden = false;
    reset();
    show();
    figure.classList.add("moves");
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".backpass-steps").forEach(step);
    document.querySelectorAll(".backpass-movable").forEach(move);
  });
})();
