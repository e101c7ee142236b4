// The timeline in the browser: the value under the pointer, the click on an instant, the zoom in the URL.
(function () {
  const NEAR_PX = 4;
  const SCALE = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
  let pressed = null, picks = 0;

  const plot = (target) => target && target.closest && target.closest(".timeline .js-plotly-plot");
  const area = (gd) => gd.querySelector('.nsewdrag[data-subplot="xy"]').getBoundingClientRect();
  const axis = (gd) => gd._fullLayout.xaxis;
  const onEvents = (gd) => !axis(gd).ticksuffix;
  const trace = (gd, uid) => gd._fullData.find((t) => t.uid === uid);

  // Index of the last point at or before x; −1 before the first.
  function before(xs, x) {
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  function value(gd, name, x) {
    const line = trace(gd, name);
    if (!line || !line.x || !line.x.length || !line.x.length) return null;
    const at = before(line.x, x);
    return at < 0 ? null : line.y[at] * SCALE[line.meta];
  }

  function position(gd, x) {
    if (onEvents(gd)) return `instant ${Math.round(x).toLocaleString("en-US")}`;
    const shown = Math.abs(axis(gd).range[1] - axis(gd).range[0]);
    const digits = Math.max(0, Math.min(9, Math.ceil(4 - Math.log10(shown || 1))));
    return `${x.toFixed(digits)} s`;
  }

  function readout(gd, x) {
    const chart = gd.closest(".chart"), legend = chart && chart.querySelector(".chart-bar");
    if (!legend) return;
    const rest = trace(gd, "cursor");
    const at = x === null ? (rest && rest.x && rest.x.length ? rest.x[0] : null) : x;
    for (const output of legend.querySelectorAll("[data-q]")) {
      const name = output.dataset.q;
      if (at === null) output.textContent = "";
      else if (name === "position") output.textContent = position(gd, at);
      else output.textContent = window.vramscope.bytes(value(gd, name, at)) || "";
    }
  }

  document.addEventListener("mousemove", function (event) {
    const gd = plot(event.target);
    if (!gd || !gd._fullData) return;
    const box = area(gd);
    const inside = event.clientX >= box.left && event.clientX <= box.right;
    readout(gd, inside ? axis(gd).p2d(event.clientX - box.left) : null);
  });
  document.addEventListener("mouseout", function (event) {
    const gd = plot(event.target);
    if (gd && gd._fullData && !gd.contains(event.relatedTarget)) readout(gd, null);
  });

  // The drawn point nearest to the pointer: a click on the tip of a spike selects the spike, not its foot.
  function nearest(gd, event) {
    const line = gd._fullData.find((t) => t.customdata && t.x && t.x.length);
    if (!line) return null;
    const box = area(gd), xs = axis(gd), ys = gd._fullLayout.yaxis;
    const px = event.clientX - box.left, py = event.clientY - box.top;
    const low = Math.max(0, before(line.x, xs.p2d(px - NEAR_PX))), high = before(line.x, xs.p2d(px + NEAR_PX));
    let best = Math.max(0, before(line.x, xs.p2d(px))), least = Infinity;
    for (let i = low; i <= high; i++) {
      const x = xs.d2p(line.x[i]);
      if (Math.abs(x - px) > NEAR_PX) continue;
      const distance = (x - px) ** 2 + (ys.d2p(line.y[i]) - py) ** 2;
      if (distance < least) { least = distance; best = i; }
    }
    return Number(line.customdata[best]);
  }

  document.addEventListener("pointerdown", function (event) {
    const gd = event.button === 0 ? plot(event.target) : null;
    pressed = gd ? { gd, x: event.clientX, y: event.clientY } : null;
  }, true);
  document.addEventListener("pointerup", function (event) {
    const from = pressed;
    pressed = null;
    if (!from || Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4) return;
    const box = area(from.gd);
    if (event.clientX < box.left || event.clientX > box.right) return;
    const instant = nearest(from.gd, event);
    if (instant !== null) pick(from.gd, instant);
  }, true);

  function pick(gd, instant) {
    const prefix = gd.closest(".dash-graph").id.split("-")[0];
    dash_clientside.set_props(`${prefix}-at`, { data: instant });
  }

  // The address follows the view, without an entry in the history and without drawing the page again.
  function remember(changes) {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined) url.searchParams.delete(name);
      else url.searchParams.set(name, String(value));
    }
    history.replaceState(history.state, "", url);
  }

  function zoomed(change, known, address) {
    const none = window.dash_clientside.no_update;
    if (!change) return none;
    if (document.querySelector(".bands .js-plotly-plot")) rememberHeights(change);
    const whole = change["xaxis.autorange"] === true;
    const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!whole && !(Number.isFinite(range[0]) && Number.isFinite(range[1]))) return none;
    const scale = address && address.axis === "events" || !hasClock() ? 1 : 1e9;
    const view = whole ? [null, null] : range.map((edge) => Math.round(edge * scale));
    remember({ t0: view[0], t1: view[1] });
    return known && known[0] === view[0] && known[1] === view[1] ? none : view;
  }

  // The zoom in bytes stays in the browser: the server needs it only to restore a link.
  function rememberHeights(change) {
    if (change["yaxis.autorange"] === true) { remember({ b0: null, b1: null }); return; }
    const gd = document.querySelector(".bands .js-plotly-plot"), unit = SCALE[(trace(gd, "allocated") || {}).meta] || 1;
    const range = change["yaxis.range"] || [change["yaxis.range[0]"], change["yaxis.range[1]"]];
    if (!(Number.isFinite(range[0]) && Number.isFinite(range[1]))) return;
    remember({ b0: Math.max(0, Math.round(range[0] * unit)), b1: Math.round(range[1] * unit) });
  }

  function hasClock() {
    const gd = document.querySelector(".timeline .js-plotly-plot, .bands .js-plotly-plot");
    return !gd || !onEvents(gd);
  }

  // A picture below the timeline shows the same interval of the same axis.
  function lead(gd) {
    const range = axis(gd).range;
    for (const other of document.querySelectorAll(".follows .js-plotly-plot")) {
      if (!other._fullLayout) continue;
      const shown = axis(other).range;
      if (shown[0] !== range[0] || shown[1] !== range[1]) Plotly.relayout(other, { "xaxis.range": range.slice() });
    }
  }

  // Plotly draws some frames after Dash has set the figure.
  function drawn(figure, frames) {
    requestAnimationFrame(function () {
      const plots = [...document.querySelectorAll(".js-plotly-plot")];
      if (!plots.length || plots.some((gd) => !gd._fullData)) {
        if ((frames || 0) < 300) drawn(figure, (frames || 0) + 1);
        return;
      }
      for (const gd of document.querySelectorAll(".timeline .js-plotly-plot")) {
        readout(gd, null);
        lead(gd);
        if (gd.vramscopeRedraws) continue;
        gd.on("plotly_afterplot", () => { readout(gd, null); lead(gd); });
        gd.vramscopeRedraws = true;
      }
      for (const gd of document.querySelectorAll(".icicle .js-plotly-plot")) {
        if (gd.on && !gd.vramscopeClicks) {
          // The server prunes the tree again for every root; Plotly's own zoom would only enlarge the old one.
          const id = gd.closest(".dash-graph").id;
          gd.on("plotly_icicleclick", function (event) {
            picks += 1;
            dash_clientside.set_props(`${id}-pick`, { data: { node: event.points[0].customdata, picks } });
            return false;
          });
          gd.vramscopeClicks = true;
        }
      }
    });
    return window.dash_clientside.no_update;
  }

  // Dash calls its check boxes the options of a list; to a screen reader they are a group of check boxes.
  function named() {
    for (const list of document.querySelectorAll(".legend[role=listbox]")) {
      list.setAttribute("role", "group");
      list.setAttribute("aria-label", "Curves shown");
    }
    for (const option of document.querySelectorAll(".legend [aria-selected]")) {
      option.removeAttribute("role");
      option.removeAttribute("aria-selected");
    }
  }
  new MutationObserver(named).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["aria-selected"],
  });

  function title(text) {
    if (text) document.title = text;
    return window.dash_clientside.no_update;
  }

  // The state of the run, where the page has a header for it.
  function stand(text) {
    if (text && document.getElementById("standing")) dash_clientside.set_props("standing", { children: text });
    return window.dash_clientside.no_update;
  }

  // The typed text, a quarter of a second after the last letter. Not a promise: Dash drops overtaken ones.
  const typing = {};
  function rested(text) {
    const name = window.dash_clientside.callback_context.outputs_list.id;
    clearTimeout(typing[name]);
    typing[name] = setTimeout(() => dash_clientside.set_props(name, { data: text }), 250);
    return window.dash_clientside.no_update;
  }

  function chosen(at) {
    if (at !== null && at !== undefined) remember({ at });
    return window.dash_clientside.no_update;
  }

  window.vramscope = Object.assign(window.vramscope || {}, { remember });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, {
    zoomed, drawn, title, chosen, rested, stand,
  });
})();
