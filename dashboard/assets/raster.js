// Canvases painted with ids from the server: one color per allocation; the hit test reads the id of the pixel.
(function () {
  const S = window.vramscope.store;
  const BEFORE = 1, MISS = 4, EMPTY = -1, SMALLER = -2, FIRST_FREE = -10;
  const known = new WeakMap();
  const details = new Map();
  let pressed = null, hovering = null, waiting = null;

  const state = (figure) => known.get(figure);
  const asks = (figure) => JSON.parse(figure.dataset.asks);
  const hasAxes = (figure) => figure.classList.contains("bands");
  const canvases = (figure) => [...figure.querySelectorAll("canvas.raster")];

  // ------------------------------------------------------------------------------- asking
  function ranges(figure) {
    if (hasAxes(figure)) return window.vramscope.timeline.boxOf(figure);
    const box = figure.getBoundingClientRect();
    return { left: 0, top: 0, width: Math.floor(box.width), height: Math.floor(box.height) };
  }

  function address(figure, view) {
    const query = asks(figure), here = new URLSearchParams(location.search);
    const url = new URLSearchParams();
    for (const name of ["run", "rank", "device", "restart"]) if (here.get(name)) url.set(name, here.get(name));
    for (const [name, value] of Object.entries(query)) if (name !== "url" && value !== "" && value !== null) url.set(name, value);
    for (const name of ["a", "b", "lo", "hi"]) if (name in view) url.set(name, String(view[name]));
    url.set("w", view.width);
    url.set("h", view.height);
    return `${query.url}?${url}`;
  }

  const RESTED_MS = 20, HOVER_MS = 50;
  function refresh(figure, force, hasRested) {
    const view = ranges(figure);
    if (!view || view.width < 2 || view.height < 2) return;
    place(figure, view);
    const its = state(figure), url = address(figure, view);
    const isAsked = url === its.asked && !(hasRested && its.timer);
    if (!force && (url === its.url || isAsked)) return;
    its.asked = url;
    clearTimeout(its.timer);
    const begin = () => { its.timer = null; load(figure, url, view); };
    // A timer of 0 ms comes after the frame, 11 ms later.
    if (!its.data || its.eager || hasRested) begin(); else its.timer = setTimeout(begin, RESTED_MS);
  }

  async function load(figure, url, view) {
    const its = state(figure);
    if (its.control) its.control.abort();
    its.control = new AbortController();
    try {
      const answer = await fetch(url, { signal: its.control.signal });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const data = decode(await answer.arrayBuffer());
      Object.assign(its, { data, url, box: view, asked: null, picked: pickedRow() });
      paint(figure);
      const now = ranges(figure);
      if (now) place(figure, now);
      if (its.again) { its.again = false; refresh(figure, true); }
      answered(figure);
    } catch (error) {
      if (error.name === "AbortError") return;
      its.asked = null;
      tell(figure, error.message === "404" ? "This run is not here any more." : "The picture could not be loaded; it will be tried again at the next move.");
    }
  }

  function decode(buffer) {
    const data = window.vramscope.timeline.columns(buffer);
    data.start = new Uint32Array(data.length.length + 1);
    for (let i = 0; i < data.length.length; i++) data.start[i + 1] = data.start[i] + data.length[i];
    // Neighboring columns that show the same instant are sent once.
    if (!data.rows) {
      const n = Math.floor(data.start[data.length.length] / data.h);
      Object.assign(data, { from: new Uint32Array(n), to: new Uint32Array(n) });
      for (let x = data.w - 1; x >= 0; x--) {
        const sent = data.column[x];
        data.from[sent] = x;
        if (!data.to[sent]) data.to[sent] = x + 1;
      }
    }
    return data;
  }

  // ------------------------------------------------------------------------------ painting
  const dark = () => document.documentElement.dataset.theme === "dark";
  const part = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);

  // Neighbors of one color differ in shade, and have a thin edge where there is space.
  const HOLES = { hole: ["#dbe1e7", "#2b353f"], whole: ["#eef1f4", "#1d262e"] };
  const solid = (hex) => (255 << 24 | part(hex, 2) << 16 | part(hex, 1) << 8 | part(hex, 0)) >>> 0;
  function tone(hex, shade, flags) {
    if (hex in HOLES) return solid(HOLES[hex][dark() ? 1 : 0]);
    const to = dark() ? 14 : 255, weight = (dark() ? 0.06 : 0.02) + 0.075 * shade;
    const mixed = [0, 1, 2].map((i) => Math.round(part(hex, i) * (1 - weight) + to * weight));
    const faded = flags & MISS ? mixed.map((c) => Math.round((dark() ? 27 : 244) * 0.86 + c * 0.14)) : mixed;
    return ((255 << 24) | (faded[2] << 16) | (faded[1] << 8) | faded[0]) >>> 0;
  }
  const lighter = (color, by) => {
    let made = 255 << 24;
    for (let i = 0; i < 3; i++) {
      const c = (color >>> (8 * i)) & 255;
      made |= Math.max(0, Math.min(255, Math.round(c + (by > 0 ? (255 - c) * by : c * by)))) << (8 * i);
    }
    return made >>> 0;
  };

  const tinted = (color, isHatched) => [color, isHatched ? lighter(color, dark() ? -0.34 : 0.42) : color, lighter(color, dark() ? -0.3 : -0.16)];

  // The function with a memory of what it returned.
  function once(make) {
    const known = new Map();
    return function (name) {
      let made = known.get(name);
      if (made === undefined) known.set(name, made = make(name));
      return made;
    };
  }

  function paint(figure) {
    const { data } = state(figure), [canvas] = canvases(figure), { w, h } = data;
    canvas.width = w;
    canvas.height = h;
    const context = canvas.getContext("2d"), image = context.createImageData(w, h);
    const pixels = new Uint32Array(image.data.buffer);
    // Thousands of blocks have some dozens of looks, each of which is mixed once.
    const lookOf = once((name) => tinted(tone(data.colors[name >> 8], (name >> 4) & 15, name & MISS), name & BEFORE));
    const smaller = tinted(tone("#999999", 2, 0), true), [colors, stripes, edges] = [0, 1, 2].map(() => new Uint32Array(data.ids.length));
    data.ids.forEach(function (id, i) {
      if (id === EMPTY) return;
      [colors[i], stripes[i], edges[i]] = id === SMALLER ? smaller : lookOf(data.group[i] << 8 | data.shade[i] << 4 | data.flags[i] & (MISS | BEFORE));
    });
    if (data.rows) paintStrip(data, pixels, { colors, stripes, edges });
    else paintBands(data, pixels, { colors, stripes, edges, wide: Math.max(1, Math.round((figure.clientWidth || w) / w)) });
    context.putImageData(image, 0, 0);
    mark(figure);
    key(figure);
  }

  function paintStrip({ w, local, length }, pixels, { colors, stripes, edges }) {
    for (let run = 0, at = 0; run < local.length; run++) {
      const id = local[run], color = colors[id], stripe = stripes[id], n = length[run], end = at + n;
      if (!color) { at = end; continue; }
      for (; at < end; at++) pixels[at] = stripe !== color && ((at % w + Math.floor(at / w)) & 7) < 3 ? stripe : color;
      if (n > 4) pixels[end - 1] = edges[id];
    }
  }

  // From bottom to top; a run never spans two columns, and may be that of several side by side. A dense picture has
  // 170,000 runs.
  function paintBands({ w, h, local, length, from, to }, pixels, { colors, stripes, edges, wide }) {
    for (let run = 0, sent = 0, row = 0; run < local.length; run++) {
      const id = local[run], color = colors[id], stripe = stripes[id], end = row + length[run], first = from[sent], last = to[sent];
      for (; color && row < end; row++) {
        const line = (h - 1 - row) * w, shown = row === end - 1 && length[run] > 4 ? edges[id] : color;
        if (shown === color && stripe !== color) for (let x = first; x < last; x++) pixels[line + x] = ((x * wide + row) & 7) < 3 ? stripe : color;
        else for (let x = first; x < last; x++) pixels[line + x] = shown;
      }
      row = end === h ? 0 : end;
      if (!row) sent += 1;
    }
  }

  // The hovered band and the picked one, over the others.
  function mark(figure) {
    const its = state(figure), { data } = its, [, canvas] = canvases(figure);
    if (!data) return;
    const marked = [...new Set([its.hover, its.picked])].map((id) => (id === undefined || id === null || id < 0 && !data.rows ? -1 : data.ids.indexOf(id))).filter((local) => local >= 0);
    // A canvas whose size is set is drawn anew, even if it is empty and stays so.
    if (!marked.length && !its.isMarked) return;
    its.isMarked = marked.length > 0;
    canvas.width = data.w;
    canvas.height = data.h;
    const context = canvas.getContext("2d");
    context.fillStyle = dark() ? "rgba(255,255,255,.5)" : "rgba(16,32,44,.42)";
    for (const local of marked) {
      for (let run = 0; run < data.local.length; run++) {
        if (data.local[run] !== local) continue;
        let from = data.start[run], left = data.length[run];
        if (!data.rows) {
          const sent = Math.floor(from / data.h), row = from - sent * data.h;
          context.fillRect(data.from[sent], data.h - row - left, data.to[sent] - data.from[sent], left);
          continue;
        }
        while (left > 0) {
          const x = from % data.w, n = Math.min(left, data.w - x);
          context.fillRect(x, Math.floor(from / data.w), n, 1);
          from += n;
          left -= n;
        }
      }
    }
  }

  // The block in the inspector is marked in every picture.
  const pickedRow = () => { const { sel } = window.vramscope.store.state; return /^b\d+$/.test(sel) ? Number(sel.slice(1)) : null; };
  S.on("selection", function () {
    for (const figure of document.querySelectorAll(".bands, .strip")) if (state(figure)) { state(figure).picked = pickedRow(); mark(figure); }
  });

  function place(figure, view) {
    const its = state(figure), clip = figure.querySelector(".raster-clip");
    Object.assign(clip.style, { left: `${view.left}px`, top: `${view.top}px`, width: `${view.width}px`, height: `${view.height}px` });
    const box = its.box;
    for (const canvas of canvases(figure)) {
      if (!box || !("a" in view)) { Object.assign(canvas.style, { left: 0, top: 0, width: "100%", height: "100%" }); continue; }
      const sx = view.width / (view.b - view.a), sy = view.height / (view.hi - view.lo);
      Object.assign(canvas.style, {
        left: `${(box.a - view.a) * sx}px`, width: `${(box.b - box.a) * sx}px`,
        top: `${(view.hi - box.hi) * sy}px`, height: `${(box.hi - box.lo) * sy}px`,
      });
    }
  }

  function key(figure) {
    const { data } = state(figure), prefix = prefixOf(figure);
    const list = document.getElementById(`${prefix}-key`), cut = document.getElementById(`${prefix}-cut`);
    // Most moves show the same colors: new elements for them would be laid out before the frame of the picture.
    const hasBefore = data.flags.some((flag) => flag & BEFORE), shown = JSON.stringify([data.names, data.colors, dark(), hasBefore]);
    if (list && data.names && (state(figure).keyed !== shown || !list.childElementCount)) {
      state(figure).keyed = shown;
      list.replaceChildren(...Object.entries(data.names).map(([i, name]) => entry(name, colorOf(data.colors[i]))));
      if (hasBefore) list.append(entry("from before the recording", "#8d99a5", "hatched"));
    }
    if (cut) cut.textContent = data.cut && data.ids.includes(SMALLER)
      ? `Blocks under ${window.vramscope.bytes(data.cut)} are drawn as one band on top; zoom in to see each.` : "";
    write(figure, data.fields || {});
  }
  function write(figure, fields) {
    for (const element of document.querySelectorAll(`[data-from="${prefixOf(figure)}"]`)) {
      const value = fields[element.dataset.field];
      if (value !== undefined) element.textContent = value;
    }
  }
  const colorOf = (hex) => hex in HOLES ? HOLES[hex][dark() ? 1 : 0] : hex;
  function entry(name, color, extra) {
    const item = document.createElement("span"), swatch = document.createElement("i"), text = document.createElement("bdi");
    swatch.className = `swatch ${extra || ""}`;
    swatch.style.setProperty("--swatch", color);
    text.textContent = name;
    item.append(swatch, text);
    return item;
  }
  function tell(figure, text) {
    const cut = document.getElementById(`${prefixOf(figure)}-cut`);
    if (cut) cut.textContent = text;
  }
  const prefixOf = (figure) => figure.id.split("-")[0];

  // --------------------------------------------------------------------------- hit test and tip
  function hit(figure, clientX, clientY) {
    const its = state(figure);
    if (!its || !its.data) return null;
    const [canvas] = canvases(figure), box = canvas.getBoundingClientRect();
    const frame = figure.querySelector(".raster-clip").getBoundingClientRect();
    if (clientX < frame.left || clientX >= frame.right || clientY < frame.top || clientY >= frame.bottom) return null;
    const column = Math.floor((clientX - box.left) / box.width * its.data.w);
    const row = Math.floor((clientY - box.top) / box.height * its.data.h);
    return at(its.data, column, row);
  }
  function at(data, column, row) {
    if (column < 0 || row < 0 || column >= data.w || row >= data.h) return null;
    const pixel = data.rows ? row * data.w + column : data.column[column] * data.h + (data.h - 1 - row);
    let low = 0, high = data.local.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (data.start[middle] <= pixel) low = middle; else high = middle - 1;
    }
    return { id: data.ids[data.local[low]], instant: data.instants ? data.instants[data.rows ? 0 : column] : null };
  }

  function tip() {
    let box = document.getElementById("raster-tip");
    if (!box) {
      box = document.createElement("div");
      box.id = "raster-tip";
      box.className = "raster-tip";
      box.setAttribute("role", "tooltip");
      document.body.append(box);
    }
    return box;
  }
  function hide() {
    const box = document.getElementById("raster-tip");
    if (box) box.hidden = true;
    clearTimeout(waiting);
    if (hovering && state(hovering)) { state(hovering).hover = null; mark(hovering); window.vramscope.preview(""); }
    hovering = null;
  }
  function show(event, rows) {
    const box = tip();
    box.replaceChildren(...rows.map(([kind, text]) => {
      const line = document.createElement("div");
      line.className = kind;
      line.dir = "auto";
      line.textContent = text;
      return line;
    }));
    box.hidden = false;
    const wide = box.offsetWidth, tall = box.offsetHeight;
    const x = event.clientX + 16 + wide > innerWidth ? event.clientX - 16 - wide : event.clientX + 16;
    const y = Math.min(event.clientY + 14, innerHeight - tall - 8);
    Object.assign(box.style, { left: `${Math.max(8, x)}px`, top: `${Math.max(8, y)}px` });
  }

  function sentences(info) {
    const bytes = window.vramscope.bytes;
    const lines = [["tip-name", `${info.where}${info.place ? `  ${info.place}` : ""}`]];
    if (info.bytes !== undefined) lines.push(["tip-size", `${bytes(info.bytes)} · ${info.category}`]);
    if (info.born) lines.push(["tip-when", `from ${info.born}`]);
    if (info.freed !== undefined) lines.push(["tip-when", info.freed ? `to ${info.freed}${info.lived ? `, lived ${info.lived}` : ""}` : "not freed"]);
    for (const text of info.more || []) lines.push(["tip-when", text]);
    return lines;
  }

  function look(figure, event) {
    const found = hit(figure, event.clientX, event.clientY), its = state(figure);
    if (!found || found.id === EMPTY) { hide(); return; }
    if (hovering !== figure || its.hover !== found.id) {
      hovering = figure;
      its.hover = found.id;
      mark(figure);
      if (found.id >= 0) window.vramscope.preview(`b${found.id}`);
    }
    if (found.id === SMALLER && !its.data.rows) {
      show(event, [["tip-name", `Blocks under ${window.vramscope.bytes(its.data.cut)}`], ["tip-when", "zoom in to see each"]]);
      return;
    }
    const url = detailAddress(figure, found.id);
    if (details.has(url)) { show(event, sentences(details.get(url))); return; }
    clearTimeout(waiting);
    waiting = setTimeout(async function () {
      const answer = await fetch(url).catch(() => null);
      if (!answer || !answer.ok) return;
      const info = await answer.json();
      if (details.size > 500) details.clear();
      details.set(url, info);
      if (hovering === figure && state(figure).hover === found.id) show(event, sentences(info));
    }, HOVER_MS);
  }
  function detailAddress(figure, id) {
    const query = asks(figure), here = new URLSearchParams(location.search), url = new URLSearchParams({ id });
    for (const name of ["run", "rank", "device", "restart"]) if (here.get(name)) url.set(name, here.get(name));
    const { data } = state(figure);
    if (data.rows) url.set("at", data.instants[0]);
    return `${query.info || "/api/alloc"}?${url}`;
  }

  const over = (event) => event.target && event.target.closest && event.target.closest(".bands, .strip");
  document.addEventListener("pointermove", function (event) {
    const figure = over(event);
    if (figure && state(figure) && !event.buttons) look(figure, event); else if (hovering) hide();
  });
  document.addEventListener("pointerdown", function (event) {
    const figure = event.button === 0 ? over(event) : null;
    pressed = figure && state(figure) ? { figure, x: event.clientX, y: event.clientY } : null;
  }, true);
  document.addEventListener("pointerup", function (event) {
    const from = pressed;
    pressed = null;
    if (!from || Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4) return;
    const found = hit(from.figure, event.clientX, event.clientY);
    if (!found || found.id === EMPTY || found.id === SMALLER && !state(from.figure).data.rows) return;
    const at = hasAxes(from.figure) ? null : Number(found.instant);
    window.vramscope.inspect(found.id >= 0 ? `b${found.id}` : `f${FIRST_FREE - found.id}`, at);
  }, true);

  // ------------------------------------------------------------------------------ life cycle
  function attach(figure) {
    if (state(figure)) return;
    known.set(figure, { below: asks(figure).at });
    new ResizeObserver(() => refresh(figure)).observe(figure);
    refresh(figure);
  }
  function attachAll() {
    for (const figure of document.querySelectorAll(".bands, .strip")) attach(figure);
  }
  // The old picture moves with the axes at once; the new one is requested at the first of several moves, and when
  // the axes rest.
  const ALONE_MS = 200;
  let movedMs = -Infinity;
  const withAxes = () => [...document.querySelectorAll(".bands")].filter(state);
  S.on("view", function () {
    const isFirst = performance.now() - movedMs > ALONE_MS;
    movedMs = performance.now();
    // What is under the pointer is another block now, of which nothing is shown until the pointer moves.
    if (hovering) hide();
    // Before the frame: the server works while it is drawn.
    if (isFirst) for (const figure of withAxes()) refresh(figure, false, true);
    requestAnimationFrame(function () {
      for (const figure of withAxes()) {
        const view = ranges(figure);
        if (view) place(figure, view);
      }
    });
  });
  S.on("columns", () => withAxes().forEach((figure) => refresh(figure)));
  S.on("view rests", () => withAxes().forEach((figure) => refresh(figure, false, true)));

  let queued = false;
  new MutationObserver(function () {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; attachAll(); });
  }).observe(document.documentElement, { childList: true, subtree: true });
  new MutationObserver(function () {
    for (const figure of document.querySelectorAll(".bands, .strip")) if (state(figure) && state(figure).data) paint(figure);
  }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

  // Other parameters for the same canvas; null leaves one as it is.
  function change(id, changes, eager, isThere) {
    const figure = document.getElementById(`${id}-frame`);
    if (!figure) return;
    figure.dataset.asks = JSON.stringify(Object.assign(asks(figure), changes));
    if (!state(figure)) return;
    state(figure).eager = eager;
    // What was asked for in another way is not asked for again.
    if (isThere) state(figure).url = address(figure, ranges(figure));
    refresh(figure, !Object.keys(changes).length);
  }
  // The picture of the page that has axes; it has one at most.
  function repaint(query, version) {
    const figure = document.querySelector(".bands"), its = figure && state(figure);
    const triggered = (dash_clientside.callback_context.triggered[0] || {}).prop_id || "";
    if (triggered.startsWith("version")) {
      // New events arrive twice a second; the picture follows every other second.
      if (its && !its.due) its.due = setTimeout(() => { its.due = null; refresh(figure, true); }, 1500);
      return window.dash_clientside.no_update;
    }
    S.remember({ q: query || null });
    if (figure) change(figure.id.replace(/-frame$/, ""), { q: query || "" });
    return window.dash_clientside.no_update;
  }

  // ---------------------------------------------------------------------- scrubbing over time
  // A slider over the timeline names the picture that it moves, and the store that gets the instant where it is
  // let go: data-picture, data-instant.
  const HAND_MS = 300;
  let scrubbed = -Infinity, isHeld = false;
  const scrubber = (element) => element && element.closest ? element.closest(".scrubber") : null;
  // The edges of the timeline's view; nothing while it has none.
  function edges() {
    const { a, b } = S.state, shown = a === null ? window.vramscope.timeline.whole() : [a, b];
    return shown[0] === null ? null : shown;
  }
  document.addEventListener("input", function (event) {
    const its = scrubber(event.target), view = its && edges();
    if (!view) return;
    scrubbed = performance.now();
    isHeld = true;
    const x = view[0] + event.target.value / 1000 * (view[1] - view[0]);
    change(its.dataset.picture, { x, at: null }, true);
    S.scrub(x);
  });
  // Let go, the slider is at the instant of the picture, once that has come.
  let isLetGo = false;
  document.addEventListener("change", function (event) {
    const names = scrubber(event.target);
    if (!names) return;
    isHeld = false;
    isLetGo = true;
    const figure = document.getElementById(`${names.dataset.picture}-frame`);
    if (figure && state(figure) && !state(figure).asked) answered(figure);
  });
  function answered(figure) {
    const names = document.querySelector(".scrubber"), its = state(figure);
    if (!names || figure.id !== `${names.dataset.picture}-frame` || !its.data || its.asked) return;
    if (isLetGo) {
      isLetGo = false;
      window.vramscope.timeline.learn(its.data.exact);
      dash_clientside.set_props(names.dataset.instant, { data: its.data.instants[0] });
    }
    if (!isHeld) fillTables(figure);
    placeInstant();
  }
  // The tables below are of the instant of the picture; they were laid out for the first.
  function fillTables(figure) {
    const its = state(figure), { data } = its, [at] = data.instants;
    if (at === its.below) return;
    its.below = at;
    write(figure, data.below.fields);
    for (const [id, rowData] of Object.entries(data.below.rows)) dash_clientside.set_props(id, { rowData });
  }

  // The slider where the instant of the picture is on the timeline, not while the hand moves it; the timeline marks
  // that instant too where none is chosen.
  function placeInstant() {
    const names = document.querySelector(".scrubber"), view = names && edges();
    const its = names && window.vramscope.rasterOf(names.dataset.picture);
    if (!view || !its || its.asked) return;
    if (S.state.at === null) S.scrub(its.data.x);
    const share = (its.data.x - view[0]) / (view[1] - view[0]);
    const rest = HAND_MS - (performance.now() - scrubbed);
    if (rest > 0) setTimeout(placeInstant, rest);
    else names.querySelector("input").value = String(Math.round(1000 * Math.max(0, Math.min(1, share))));
  }
  S.on(["view", "columns", "view rests"], placeInstant);
  function moved(at) {
    const { no_update } = window.dash_clientside;
    const names = document.querySelector(".scrubber"), its = names && window.vramscope.rasterOf(names.dataset.picture);
    if (!names || at === null || at === undefined) return no_update;
    const isThere = its && !its.asked && its.data.instants[0] === at;
    change(names.dataset.picture, { at, x: null }, true, isThere);
    return no_update;
  }

  window.vramscope = Object.assign(window.vramscope || {}, {
    repaintWith: change,
    rasterOf: (id) => { const figure = document.getElementById(`${id}-frame`), its = figure && state(figure); return its && its.data ? its : null; },
    pixelOf: at,
    showTip: show,
    hideTip: hide,
  });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { repaint, moved });
})();
