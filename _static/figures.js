// A slider below a figure shows one of its drawings at a time. Without this script the figure stands still.
(function () {
  function start(figure) {
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

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".backpass-steps").forEach(start));
})();
