// The keyboard, the theme switch and the help. Keys do nothing while somebody types.
(function () {
  const root = document.documentElement;
  let count = 0;

  function theme(name) {
    root.dataset.theme = name;
    try { localStorage.setItem("vramscope-theme", name); } catch (e) { /* storage switched off */ }
    mantine();
  }
  function mantine() {
    root.setAttribute("data-mantine-color-scheme", root.dataset.theme);
  }
  const other = () => (root.dataset.theme === "dark" ? "light" : "dark");

  function graph() {
    return document.querySelector(".timeline .js-plotly-plot, .bands .js-plotly-plot");
  }
  function range(change) {
    const gd = graph();
    if (!gd || !gd._fullLayout) return;
    const [a, b] = gd._fullLayout.xaxis.range;
    const [low, high] = change(a, b);
    Plotly.relayout(gd, { "xaxis.range[0]": low, "xaxis.range[1]": high });
  }
  const zoom = (factor) => range((a, b) => {
    const middle = (a + b) / 2, half = ((b - a) / 2) * factor;
    return [middle - half, middle + half];
  });
  const pan = (share) => range((a, b) => [a + share * (b - a), b + share * (b - a)]);

  function neighbor(step) {
    const links = [...document.querySelectorAll("#menu a")];
    const here = links.findIndex((link) => link.classList.contains("here"));
    const next = links[here + step];
    if (here >= 0 && next) next.click();
  }
  function help(open) {
    const dialog = document.getElementById("help");
    if (!dialog) return;
    if (open && !dialog.open) dialog.showModal(); else dialog.close();
  }
  function code(button) {
    count += 1;
    dash_clientside.set_props("code-ask", { data: { stack: Number(button.dataset.stack), count } });
  }
  function opened(content) {
    const dialog = document.getElementById("code-box");
    if (content && dialog && !dialog.open) dialog.showModal();
    return window.dash_clientside.no_update;
  }
  function find(event) {
    const box = document.querySelector("input.search, .search input");
    if (!box) return;
    event.preventDefault();
    box.focus();
  }
  function ask(key) {
    count += 1;
    dash_clientside.set_props("key", { data: { key, count } });
  }
  function axis() {
    const link = document.querySelector("#axis-choice a:not(.here)");
    if (link) link.click();
  }

  const keys = {
    j: () => ask("j"), k: () => ask("k"), p: () => ask("p"),
    w: () => zoom(0.5), s: () => zoom(2), a: () => pan(-0.25), d: () => pan(0.25),
    0: () => graph() && Plotly.relayout(graph(), { "xaxis.autorange": true, "yaxis.autorange": true }),
    x: axis, "/": find, "[": () => neighbor(-1), "]": () => neighbor(1),
    t: () => theme(other()), "?": () => help(true),
  };

  // Tab leaves a table: cell after cell of 500 rows would be a trap. Arrows move in it, Enter selects a row.
  document.addEventListener("keydown", function (event) {
    const cell = event.target.closest(".ag-cell");
    if (!cell) return;
    if (event.key === "Enter") { event.stopPropagation(); cell.click(); }
    if (event.key !== "Tab") return;
    event.stopPropagation();
    const stops = cell.closest(".ag-root-wrapper").querySelectorAll('[tabindex="0"]');
    for (const stop of stops) stop.tabIndex = -1;
    setTimeout(() => { for (const stop of stops) stop.tabIndex = 0; });
  }, true);

  document.addEventListener("keydown", function (event) {
    const menu = event.key === "Escape" && document.querySelector("details.recordings[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    if (event.target.closest(".ag-root") && event.key.length > 1) return;
    const action = keys[event.key];
    if (action) action(event);
  });
  document.addEventListener("click", function (event) {
    if (event.target.closest("#theme-button")) theme(other());
    else if (event.target.closest("#help-button")) help(true);
    else if (event.target.closest("#help-close")) help(false);
    else if (event.target.closest("#code-close")) document.getElementById("code-box").close();
    else if (event.target.closest(".to-code")) code(event.target.closest(".to-code"));
    for (const menu of document.querySelectorAll("details.recordings[open]")) {
      if (!menu.contains(event.target) || event.target.closest("a")) menu.open = false;
    }
  });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { opened });
  // Mantine sets its own color scheme when it starts; this restores ours.
  new MutationObserver(function () {
    if (root.getAttribute("data-mantine-color-scheme") !== root.dataset.theme) mantine();
  }).observe(root, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
})();
