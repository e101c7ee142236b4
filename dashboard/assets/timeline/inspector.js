// The inspector beside the page: opens for what is picked, previews what is pointed at, closes with Escape.
(function () {
  const S = window.vramscope.store, T = S.state;
  const HOVER_MS = 140;
  let shown = "", waiting = null, opener = null;

  const panel = () => document.getElementById("inspector");
  const valid = (what) => /^[bflp]\d{1,17}$|^i$/.test(what || "");

  function fill(what, preview) {
    const name = `${what}|${T.at}`;
    const hint = document.getElementById("inspector-hint");
    if (hint) hint.textContent = preview ? "Pointed at; click to keep" : "";
    if (name === shown) return;
    shown = name;
    dash_clientside.set_props("selected", { data: { what, at: T.at, preview: Boolean(preview) } });
  }

  function show(isOpen) {
    const aside = panel();
    if (!aside || aside.hidden === !isOpen) return;
    aside.hidden = !isOpen;
    document.documentElement.classList.toggle("has-inspector", isOpen);
  }

  // What is picked is in the URL, so that a link opens the same.
  function inspect(what, at) {
    clearTimeout(waiting);
    if (!valid(what)) { close(); return; }
    if (at !== undefined && at !== null) S.choose(at);
    if (panel() && panel().hidden) opener = document.activeElement;
    S.select(what);
    show(true);
    fill(what, false);
  }

  function close() {
    if (!panel() || panel().hidden) return false;
    const hadFocus = panel().contains(document.activeElement);
    S.select("");
    shown = "";
    show(false);
    if (hadFocus && opener && opener.isConnected) opener.focus();
    return true;
  }

  // Pointing previews only where the inspector is open already: nothing opens by itself.
  function preview(what) {
    clearTimeout(waiting);
    if (!panel() || panel().hidden || !matchMedia("(min-width: 1280px)").matches) return;
    waiting = setTimeout(() => fill(valid(what) ? what : T.sel, valid(what) && what !== T.sel), HOVER_MS);
  }

  document.addEventListener("click", function (event) {
    if (event.target.closest("#inspector-close")) { close(); return; }
    const button = event.target.closest("[data-inspect]");
    if (button) {
      const at = button.dataset.at === undefined ? null : Number(button.dataset.at);
      inspect(button.dataset.inspect, at);
    }
  });
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]") && !event.target.closest("input, details[open]")) close();
    if (event.key === "i" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select, .ag-root")) {
      if (!close() && document.querySelector(".track")) inspect(T.sel || "i");
    }
  });
  S.on("instant", () => { if (panel() && !panel().hidden && T.sel) fill(T.sel, false); });

  // A page was laid out: the address says what is picked there.
  function inspected(address) {
    const what = new URLSearchParams(location.search).get("sel") || "";
    shown = "";
    const has = valid(what) && Boolean(address && address.run) && document.getElementById("inspector");
    if (has) { S.select(what); show(true); setTimeout(() => fill(what, false)); } else show(false);
    return window.dash_clientside.no_update;
  }

  // A row of a table of lines or blocks.
  function rowPicked(rows) {
    const row = rows && rows[0];
    if (row && row.term) window.vramscope.narrow(row.term);
    else if (row && row.at !== undefined) inspect(row.stack ? `l${row.stack}` : "i", row.at);
    else if (row && row.stack) inspect(`l${row.stack}`);
    else if (row && row.block !== undefined) inspect(`b${row.block}`);
    return window.dash_clientside.no_update;
  }

  window.vramscope = Object.assign(window.vramscope || {}, { inspect, preview });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { inspected, rowPicked });
})();
