// The search of the allocations and its table: what is live at the instant, what a row is, and from a sum to its blocks.
(function () {
  const S = window.vramscope.store, LIVE = /(^|\s)-?live:\S*/;
  const box = () => document.querySelector("input#al-search-box, #al-search-box input");
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;

  // React learns of the letters as if they were typed.
  function write(text) {
    const input = box();
    if (!input) return;
    set.call(input, text.trim());
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
  const without = (text) => text.replace(LIVE, " ").replace(/\s+/g, " ").trim();
  const live = () => `live:${S.state.at ?? "peak"}`;

  function group(name) {
    for (const button of document.querySelectorAll("[data-group]")) {
      const isHere = button.dataset.group === name;
      button.classList.toggle("here", isHere);
      button.setAttribute("aria-pressed", String(isHere));
    }
    S.remember({ group: name });
    dash_clientside.set_props("al-group", { data: name });
  }

  // From a line, module or category to its blocks.
  function narrow(term) {
    const input = box();
    if (!input) return;
    write(`${input.value} ${term}`);
    group("");
  }

  document.addEventListener("click", function (event) {
    const chosen = event.target.closest("[data-group]");
    if (chosen) group(chosen.dataset.group);
    if (event.target.closest("#al-live") && box()) write(LIVE.test(box().value) ? without(box().value) : `${live()} ${box().value}`);
  });
  document.addEventListener("input", function (event) {
    const button = event.target === box() && document.getElementById("al-live");
    if (!button) return;
    const isOn = LIVE.test(event.target.value);
    button.classList.toggle("here", isOn);
    button.setAttribute("aria-pressed", String(isOn));
  });
  // The search follows the instant.
  S.on("instant", () => { if (box() && /(^|\s)live:\S*/.test(box().value)) write(box().value.replace(/(^|\s)live:\S*/, `$1${live()}`)); });

  window.vramscope = Object.assign(window.vramscope || {}, { narrow });
})();
