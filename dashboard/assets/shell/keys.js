// The keyboard, the theme switch and the help. Keys do nothing while somebody types.
(function () {
  const root = document.documentElement;
  let count = 0;

  function theme(name) {
    root.dataset.theme = name;
    try { localStorage.setItem("vramscope-theme", name); } catch (e) { /* storage switched off */ }
  }
  const other = () => (root.dataset.theme === "dark" ? "light" : "dark");

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

  const move = () => window.vramscope.timeline.keys;
  const keys = {
    j: () => ask("j"), k: () => ask("k"), p: () => ask("p"),
    w: () => move().zoom(0.5), s: () => move().zoom(2), a: () => move().pan(-0.25), d: () => move().pan(0.25), 0: () => move().whole(),
    x: axis, "/": find, "[": () => neighbor(-1), "]": () => neighbor(1),
    t: () => theme(other()), "?": () => help(true), n: (event) => { event.preventDefault(); window.vramscope.comment(); },
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
    for (const menu of document.querySelectorAll("details.recordings[open]")) {
      if (!menu.contains(event.target) || event.target.closest("a")) menu.open = false;
    }
  });
  // The link would change the address, and Dash would lay out the page again with the view that it then reads there.
  document.addEventListener("click", function (event) {
    if (!event.target.closest(".skip")) return;
    event.preventDefault();
    document.getElementById("main").focus();
  });
})();
