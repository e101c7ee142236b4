// Plotly's charts over time follow the timeline, and lead it where one zooms or clicks in them.
(function () {
  const NEAR_PX = 4;
  let pressed = null;

  const plot = (target) => target && target.closest && target.closest(".timeline .js-plotly-plot");
  const area = (gd) => gd.querySelector('.nsewdrag[data-subplot="xy"]').getBoundingClientRect();
  const axis = (gd) => gd._fullLayout.xaxis;

  // The drawn point nearest to the pointer: a click on the tip of a spike selects the spike, not its foot.
  function nearest(gd, event) {
    const line = gd._fullData.find((t) => t.customdata && t.x && t.x.length);
    if (!line) return null;
    const box = area(gd), xs = axis(gd), ys = gd._fullLayout.yaxis, { before } = window.vramscope.draw;
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

  // A zoom in one of Plotly's charts is that of the timeline.
  function zoomed(change) {
    const none = window.dash_clientside.no_update, T = window.vramscope.timeline;
    if (!change) return none;
    const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (change["xaxis.autorange"] === true) T.keys.whole();
    else if (Number.isFinite(range[0]) && Number.isFinite(range[1]) && !follows(range)) T.look(range[0], range[1]);
    return none;
  }
  function follows([a, b]) {
    const { a: from, b: to } = window.vramscope.timeline;
    return from !== null && Math.abs(a - from) <= 1e-9 * Math.abs(to - from) && Math.abs(b - to) <= 1e-9 * Math.abs(to - from);
  }

  // The chart that the server draws for each zoom comes with its range; drawn here too, it would be drawn twice. What
  // is out of view follows where it comes into view: a drawing takes 50 ms, for which all others wait.
  const seen = new IntersectionObserver(follow);
  function follow() {
    const T = window.vramscope.timeline, [a, b] = T.a === null ? T.whole() : [T.a, T.b];
    if (a === null) return;
    for (const gd of document.querySelectorAll(".follows .js-plotly-plot")) {
      if (!gd._fullLayout) continue;
      seen.observe(gd);
      const shown = axis(gd).range, { top, bottom } = gd.getBoundingClientRect();
      if (bottom > 0 && top < innerHeight && (shown[0] !== a || shown[1] !== b)) Plotly.relayout(gd, { "xaxis.range": [a, b] });
    }
  }
  // After the server has been asked.
  addEventListener("vs-settled", () => setTimeout(follow));

  // Plotly draws some frames after Dash has set the figure; the store gets a value when it has drawn a new chart.
  function drawn() {
    afterDrawing(window.dash_clientside.callback_context.outputs_list.id, 0);
    return window.dash_clientside.no_update;
  }
  function afterDrawing(store, frames) {
    requestAnimationFrame(function () {
      const plots = [...document.querySelectorAll(".js-plotly-plot")];
      if (!plots.length || plots.some((gd) => !gd._fullData)) {
        if (frames < 300) afterDrawing(store, frames + 1);
        return;
      }
      for (const gd of document.querySelectorAll(".timeline .js-plotly-plot")) {
        follow();
        if (gd.vramscopeRedraws) continue;
        gd.on("plotly_relayout", (change) => zoomed(change));
        gd.on("plotly_afterplot", window.vramscope.placeInstant);
        window.vramscope.placeInstant();
        gd.vramscopeRedraws = true;
        dash_clientside.set_props(store, { data: 1 });
      }
    });
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

  // The state of the run, where the page has a header for it. A reply about the run that was left comes too late.
  function stand(news, address) {
    const isAbout = news && address && news.run === address.run;
    if (isAbout && document.getElementById("standing")) dash_clientside.set_props("standing", { children: news.words });
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

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, {
    drawn, title, rested, stand,
  });
})();
